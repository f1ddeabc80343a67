"""The facts of a model, without its weights.

A language model of the transformer kind is described by a handful of whole numbers. Text enters as token ids out of a
vocabulary (`vocab_size`). Each id becomes a vector of `hidden_size` numbers, which goes through `n_layers` layers. In
each layer, attention works with `n_heads` query heads of `head_dim` numbers; several query heads may share one key
and value head (`n_kv_heads`), which makes the KV cache smaller. At the end the vector is compared with every entry of
the vocabulary: one score (logit) per possible next token.

These numbers are enough to compute how much memory a run needs and how much arithmetic it does, so they live here,
apart from the weights: this module imports neither torch nor transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from core.errors import UnsupportedConfigError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}

# Some families name the same fact differently in their configuration.
_ALIASES = {
    "n_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "vocab_size": ("vocab_size",),
    "max_context": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
}


@dataclass(frozen=True)
class ModelSpec:
    """Whole-number facts of one model. `dtype` is how weights and cache are held in memory ("float32", …).

    `n_parameters` counts each tied weight once and is 0 where nobody has counted yet. `sliding_window` is the number
    of latest positions that window layers may look at, or None; `window_layers` says which layers those are (empty:
    all). `attention_scale` is the factor on q·k.
    """

    name: str
    family: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_context: int
    n_parameters: int = 0
    dtype: str = "float32"
    sliding_window: int | None = None
    tied_embeddings: bool = False
    window_layers: tuple[bool, ...] = ()
    attention_scale: float = 0.0

    def __post_init__(self) -> None:
        if not self.attention_scale:
            object.__setattr__(self, "attention_scale", self.head_dim**-0.5)
        object.__setattr__(
            self, "window_layers", tuple(self.window_layers)
        )  # a list after a trip through JSON

    def window_of(self, layer: int) -> int | None:
        """How many latest positions that layer may look at; None means all."""
        if self.window_layers and not self.window_layers[layer]:
            return None
        return self.sliding_window

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one position takes in all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * self.dtype_bytes

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one value in memory."""
        return DTYPE_BYTES[self.dtype]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return self.n_parameters * self.dtype_bytes

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, name: str = "", dtype: str = "float32", n_parameters: int = 0
    ) -> ModelSpec:
        """Read the facts from the contents of a Hugging Face `config.json` of a plain decoder.

        Raises UnsupportedConfigError, naming the key, where a fact is missing.
        """
        n_heads = _required(config, "n_heads")
        hidden_size = _required(config, "hidden_size")
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        return cls(
            name=name or str(config.get("_name_or_path") or config.get("model_type", "model")),
            family=str(config.get("model_type", "")),
            n_layers=_required(config, "n_layers"),
            n_heads=n_heads,
            n_kv_heads=int(config.get("num_key_value_heads") or n_heads),
            head_dim=int(config.get("head_dim") or hidden_size // n_heads),
            hidden_size=hidden_size,
            intermediate_size=_intermediate_size(config, hidden_size),
            vocab_size=_required(config, "vocab_size"),
            max_context=_required(config, "max_context"),
            n_parameters=n_parameters,
            dtype=dtype,
            sliding_window=int(window) if window else None,
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            window_layers=tuple(kind == "sliding_attention" for kind in config.get("layer_types") or ()),
            attention_scale=_attention_scale(config),
        )

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSpec:
        """Inverse of `to_dict`; keys that this version does not know are ignored."""
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


def _intermediate_size(config: Mapping[str, Any], hidden_size: int) -> int:
    given = config.get("intermediate_size") or config.get("n_inner") or config.get("ffn_dim")
    return int(given or 4 * hidden_size)


def _attention_scale(config: Mapping[str, Any]) -> float:
    """The factor on q·k where a family sets its own (Granite, Gemma); 0 means the usual 1/√head_dim."""
    if scalar := config.get("query_pre_attn_scalar"):
        return 1.0 / math.sqrt(scalar)
    return float(config.get("attention_multiplier") or 0.0)


def _required(config: Mapping[str, Any], fact: str) -> int:
    for key in _ALIASES[fact]:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise UnsupportedConfigError(
        key=_ALIASES[fact][0],
        reason="is missing or not a positive whole number",
        remedy="Use the config.json that comes with the model.",
    )
