"""What every layer of a model keeps for the tokens it has read.

A transformer layer remembers one key vector and one value vector per KV head and token: that is the KV cache.
Not every layer does. A layer with a sliding window forgets what has left the window; a recurrent layer keeps
one state of constant size, however long the text; a cross-attention layer keeps an image or a sound instead
of text; a layer that borrows its neighbour's cache keeps nothing; multi-head latent attention (MLA) keeps one
short vector for all heads.

So a model is described as a list of layers, each with its kind and its widths, and every question about
memory is arithmetic over that list. All widths are counted in values (elements), not bytes: bytes depend on
the cache's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from core.errors import InvalidSettingError

if TYPE_CHECKING:
    from core.kv_memory import BytesPerToken

KINDS = ("full", "window", "state", "cross", "none")
MAX_LAYERS = 10_000
MAX_COUNT = 10**15  # beyond any real model or machine; keeps arithmetic and loops finite


def check_count(name: str, value: object, low: int = 0, high: int = MAX_COUNT) -> int:
    """`value` as a whole number between `low` and `high`; anything else is an InvalidSettingError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidSettingError(
            name=name, value=_shown(value), allowed=f"a whole number from {low} to {high:,}"
        )
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


@dataclass(frozen=True)
class KVLayer:
    """One layer's memory.

    kind: "full" (grows with every token), "window" (stops at `window` tokens), "state" (constant), "cross"
    (grows with encoder or image tokens), "none". `k_elements` and `v_elements` are values per token over all
    KV heads of the layer; `state_elements` is a constant number of values per sequence, and may accompany
    "full" or "window" (parallel hybrids). `kv_heads` says in how many equal pieces tensor parallelism may cut
    K and V (0: not at all, a latent); `state_parts` the same for the state. `index_elements` are an indexer's
    keys per token, counted only on request.
    """

    kind: str
    k_elements: int = 0
    v_elements: int = 0
    window: int | None = None
    state_elements: int = 0
    kv_heads: int = 0
    state_parts: int = 0
    index_elements: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidSettingError(
                name="kind", value=_shown(self.kind), allowed="one of " + ", ".join(KINDS)
            )
        for name in (
            "k_elements",
            "v_elements",
            "state_elements",
            "kv_heads",
            "state_parts",
            "index_elements",
        ):
            check_count(name, getattr(self, name))
        if self.kind == "window" or self.window is not None:
            check_count("window", self.window, low=1)

    @property
    def elements(self) -> int:
        """Values per token: K and V together."""
        return self.k_elements + self.v_elements


@dataclass(frozen=True)
class KVLayout:
    """All layers of a model, in order. A layer with self- and cross-attention appears as two entries."""

    layers: tuple[KVLayer, ...]
    family: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not all(isinstance(layer, KVLayer) for layer in self.layers):
            raise InvalidSettingError(
                name="layers", value=_shown(self.layers), allowed="a sequence of KVLayer"
            )

    @classmethod
    def uniform(
        cls,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        window: int | None = None,
        window_pattern: int | str | Sequence[object] | None = None,
    ) -> KVLayout:
        """Layers of one shape. With `window`, all of them slide, unless `window_pattern` says which: an
        integer p (every p-th layer is full, the others slide), letters ("LLLG": local, local, local, global,
        repeated) or a sequence of truth values (true: slides), repeated over the layers.
        """
        check_count("n_layers", n_layers, high=MAX_LAYERS)
        width = check_count("n_kv_heads", n_kv_heads, low=1) * check_count("head_dim", head_dim, low=1)
        full = KVLayer("full", width, width, kv_heads=n_kv_heads)
        if window is None:
            return cls((full,) * n_layers)
        slides = KVLayer("window", width, width, check_count("window", window, low=1), kv_heads=n_kv_heads)
        return cls(tuple(slides if w else full for w in sliding_layers(n_layers, window_pattern)))

    @classmethod
    def latent(cls, n_layers: int, kv_lora_rank: int, rope_head_dim: int) -> KVLayout:
        """MLA: one latent of `kv_lora_rank + rope_head_dim` values per token and layer, shared by all heads."""
        check_count("n_layers", n_layers, high=MAX_LAYERS)
        width = check_count("kv_lora_rank", kv_lora_rank, low=1) + check_count("rope_head_dim", rope_head_dim)
        return cls((KVLayer("full", width),) * n_layers)

    @classmethod
    def from_config(cls, config: Mapping[str, object], include_mtp: bool = False) -> KVLayout:
        """The layout of a published `config.json`. Raises UnsupportedConfigError, naming the key, where the
        shape keys do not settle the answer. `include_mtp` adds the layers that predict several tokens ahead,
        where they are declared.
        """
        from core.kv_configs import layout_from_config  # imported late: it builds on this module

        return layout_from_config(config, include_mtp=include_mtp)

    @classmethod
    def from_gguf(cls, path: str | PathLike[str], include_mtp: bool = False) -> KVLayout:
        """The layout of a GGUF file, from its metadata alone; weights are not read."""
        from core.kv_gguf import layout_from_gguf

        return layout_from_gguf(path, include_mtp=include_mtp)

    @property
    def elements_per_token(self) -> int:
        """Values that one more text token adds while no window is full."""
        return sum(layer.elements for layer in self.layers if layer.kind in ("full", "window"))

    @property
    def state_elements(self) -> int:
        return sum(layer.state_elements for layer in self.layers)

    @property
    def cross_elements(self) -> int:
        """Values that one encoder or image token takes."""
        return sum(layer.elements for layer in self.layers if layer.kind == "cross")

    @property
    def windows(self) -> tuple[int, ...]:
        """The distinct window lengths, shortest first."""
        return tuple(
            sorted({layer.window for layer in self.layers if layer.kind == "window" and layer.window})
        )

    def bytes_per_token(
        self, dtype: str = "f16", v_dtype: str | None = None, state_dtype: str = "f32"
    ) -> BytesPerToken:
        """What each further token costs once windows are full (`slope`), and what stays the same
        (`constant`).
        """
        from core.kv_memory import bytes_per_token

        return bytes_per_token(self, dtype, v_dtype=v_dtype, state_dtype=state_dtype)

    def count(self, kind: str) -> int:
        return sum(layer.kind == kind for layer in self.layers)


def sliding_layers(n_layers: int, pattern: int | str | Sequence[object] | None) -> tuple[bool, ...]:
    """For each layer, whether it slides. See KVLayout.uniform for the spellings of `pattern`."""
    if pattern is None:
        return (True,) * n_layers
    if isinstance(pattern, int):
        period = check_count("window_pattern", pattern, low=1)
        return tuple((i + 1) % period != 0 for i in range(n_layers))
    marks = tuple(_slides(mark) for mark in pattern)
    if not marks:
        raise InvalidSettingError(name="window_pattern", value="empty", allowed="a number, letters or a list")
    return tuple(marks[i % len(marks)] for i in range(n_layers))


def _slides(mark: object) -> bool:
    if isinstance(mark, str) and mark.upper() in ("L", "S", "G", "F"):
        return mark.upper() in ("L", "S")
    if isinstance(mark, str) and mark in ("sliding_attention", "full_attention"):
        return mark == "sliding_attention"
    if isinstance(mark, int) and mark in (0, 1):
        return bool(mark)
    raise InvalidSettingError(
        name="window_pattern", value=_shown(mark), allowed="L and G, 1 and 0, or layer types"
    )
