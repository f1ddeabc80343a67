"""How much memory a KV cache takes.

For a plain transformer the answer is one product:

    bytes = 2 (K and V) × layers × KV heads × head dim × bytes per value × tokens × sequences

Llama 3.1 8B: 2 × 32 × 8 × 128 × 2 = 131,072 bytes, 128 KiB, for every token that the model has read or
written. The same product is wrong for most models published since: windows, latents, shared and recurrent
layers change it. So we sum over the layers of a `KVLayout`, and say which of three figures we mean: what the
mathematics needs (`engine="ideal"`), what an engine reserves ("llama.cpp", "vllm" …), or the bound of an
engine that ignores windows ("no_window").

    >>> from core.kv_memory import KVLayout, kv_bytes
    >>> kv_bytes(KVLayout.uniform(n_layers=32, n_kv_heads=8, head_dim=128), 4096).total
    536870912
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NamedTuple

from core.errors import InvalidSettingError, UnsupportedConfigError
from core.kv_dtypes import BLOCKS, INDEX_BLOCK, bytes_per_value, dtype_name, stored_bytes, weight_bytes
from core.kv_engines import ENGINES, Ideal, Vllm, make_engine
from core.kv_layout import KINDS, MAX_COUNT, KVLayer, KVLayout, check_count

__all__ = [
    "BLOCKS",
    "ENGINES",
    "KINDS",
    "BytesPerToken",
    "KVBytes",
    "KVLayer",
    "KVLayout",
    "UnsupportedConfigError",
    "VllmPool",
    "bytes_per_token",
    "bytes_per_value",
    "kv_bytes",
    "layer_bytes",
    "max_sequences",
    "max_tokens",
    "paged_blocks",
    "vllm_pool",
    "weight_bytes",
]


@dataclass(frozen=True)
class KVBytes:
    """Bytes by kind of layer. With tensor parallelism: of one rank."""

    full: int
    window: int
    state: int
    cross: int

    @property
    def total(self) -> int:
        return self.full + self.window + self.state + self.cross


class BytesPerToken(NamedTuple):
    """`slope`: bytes of each further token of one sequence, once every window is full. `constant`: what does
    not grow, full windows and states. Beyond the longest window the cache holds exactly `constant + slope ×
    tokens`.
    """

    slope: int
    constant: int


@dataclass(frozen=True)
class _Settings:
    k_dtype: str
    v_dtype: str
    state_dtype: str
    tensor_parallel: int
    include_indexer: bool


def _settings(
    k_dtype: str, v_dtype: str | None, state_dtype: str, tensor_parallel: int, include_indexer: bool
) -> _Settings:
    check_count("tensor_parallel", tensor_parallel, low=1, high=65_536)
    k = dtype_name(k_dtype, "k_dtype")
    v = k if v_dtype is None else dtype_name(v_dtype, "v_dtype")
    return _Settings(k, v, dtype_name(state_dtype, "state_dtype"), tensor_parallel, bool(include_indexer))


def kv_bytes(
    layout: KVLayout,
    n_tokens: int,
    *,
    n_sequences: int = 1,
    k_dtype: str = "f16",
    v_dtype: str | None = None,
    state_dtype: str = "f32",
    n_cross_tokens: int = 0,
    tensor_parallel: int = 1,
    include_indexer: bool = False,
    engine: str = "ideal",
    **engine_settings: Any,
) -> KVBytes:
    """Bytes of the cache of `n_sequences` sequences of `n_tokens` tokens each, on one of `tensor_parallel`
    ranks.

    `v_dtype` follows `k_dtype` if not given. `state_dtype` is the dtype of recurrent states, 32-bit in the
    engines that log it. `n_cross_tokens` are the encoder or image tokens of each sequence. `include_indexer`
    adds the 8-bit keys of a sparse-attention indexer. `engine` and its settings: see `core.kv_engines`.
    Raises InvalidSettingError for anything that no engine could do.
    """
    check_count("n_tokens", n_tokens)
    check_count("n_sequences", n_sequences, low=1)
    check_count("n_cross_tokens", n_cross_tokens)
    settings = _settings(k_dtype, v_dtype, state_dtype, tensor_parallel, include_indexer)
    places = make_engine(engine, engine_settings)
    sums = {"full": 0, "window": 0, "state": 0, "cross": 0}
    for layer, count in Counter(layout.layers).items():
        n_places = _places(layer, places, n_tokens, n_sequences, n_cross_tokens)
        if n_places is not None:
            sums[layer.kind] += count * _stored(layer, n_places, settings)
        sums["state"] += count * _state_bytes(layer, places.states(n_sequences), settings)
    return KVBytes(**sums)


def layer_bytes(layout: KVLayout, n_tokens: int, **settings: Any) -> tuple[int, ...]:
    """Bytes of each layer (K, V and state together), in order; the arguments are those of `kv_bytes`."""
    each = {layer: kv_bytes(KVLayout((layer,)), n_tokens, **settings).total for layer in set(layout.layers)}
    return tuple(each[layer] for layer in layout.layers)


def _places(layer: KVLayer, engine: Ideal, n_tokens: int, n_sequences: int, n_cross: int) -> int | None:
    if layer.kind == "full":
        return engine.full_places(n_tokens, n_sequences)
    if layer.kind == "window" and layer.window is not None:
        return engine.window_places(n_tokens, n_sequences, layer.window)
    if layer.kind == "cross":
        return engine.cross_places(n_cross, n_sequences)
    return None


def _stored(layer: KVLayer, n_places: int, settings: _Settings) -> int:
    """Bytes of one layer's K and V in `n_places` token places on one rank."""
    k = _rank_share(layer, layer.k_elements, settings.tensor_parallel)
    v = _rank_share(layer, layer.v_elements, settings.tensor_parallel)
    for name, width in ((settings.k_dtype, k), (settings.v_dtype, v)):
        if name == "fp8_ds_mla" and width and (width != BLOCKS[name][0] or layer.kv_heads):
            raise InvalidSettingError(
                name="k_dtype", value=name, allowed="fp8; this format is for latents of 576 values"
            )
    index = 0
    if settings.include_indexer:
        values, size = INDEX_BLOCK
        index = -(-layer.index_elements * n_places * size // values)
    return stored_bytes(k * n_places, settings.k_dtype) + stored_bytes(v * n_places, settings.v_dtype) + index


def _rank_share(layer: KVLayer, elements: int, ranks: int) -> int:
    """Values per token on one rank. Heads are dealt out; with more ranks than heads each rank keeps a copy of
    one head; a latent (no heads) is kept whole by every rank.
    """
    heads = layer.kv_heads
    if ranks == 1 or elements == 0:
        return elements
    if heads == 0:
        if layer.v_elements == 0:
            return elements
        raise InvalidSettingError(
            name="tensor_parallel", value=ranks, allowed="1, or give the layers their kv_heads"
        )
    if heads % ranks and ranks % heads:
        raise InvalidSettingError(
            name="tensor_parallel", value=ranks, allowed=f"a divisor or a multiple of the {heads} KV heads"
        )
    return elements // heads * max(1, heads // ranks)


def _state_bytes(layer: KVLayer, n_states: int, settings: _Settings) -> int:
    ranks, parts = settings.tensor_parallel, layer.state_parts or layer.state_elements
    if layer.state_elements and parts % ranks:
        raise InvalidSettingError(
            name="tensor_parallel",
            value=ranks,
            allowed=f"a divisor of {parts}, into which the state can be cut",
        )
    return stored_bytes(layer.state_elements // ranks * n_states, settings.state_dtype)


def bytes_per_token(
    layout: KVLayout, dtype: str = "f16", *, v_dtype: str | None = None, state_dtype: str = "f32"
) -> BytesPerToken:
    """Slope and constant of the ideal cache of one sequence, apart. See BytesPerToken."""
    longest = max(layout.windows, default=0)
    at = [
        kv_bytes(layout, n, k_dtype=dtype, v_dtype=v_dtype, state_dtype=state_dtype)
        for n in (longest, longest + _common_block(dtype, v_dtype))
    ]
    slope, rest = divmod(at[1].total - at[0].total, _common_block(dtype, v_dtype))
    return BytesPerToken(slope + (rest > 0), at[0].window + at[0].state)


def _common_block(dtype: str, v_dtype: str | None) -> int:
    """So many tokens fill whole blocks of both formats, whatever the width of a row."""
    a, b = (BLOCKS[dtype_name(name)][0] for name in (dtype, v_dtype or dtype))
    return a * b // gcd(a, b)


def max_tokens(layout: KVLayout, budget_bytes: int, **settings: Any) -> int | None:
    """The longest context, in tokens per sequence, whose cache fits in `budget_bytes`; None if the cache
    stops growing below the budget (windows and states only). Arguments as for `kv_bytes`. Engines that
    reserve in steps give whole steps.
    """
    check_count("budget_bytes", budget_bytes)
    return _largest(lambda n: kv_bytes(layout, n, **settings).total <= budget_bytes, low=0)


def max_sequences(layout: KVLayout, budget_bytes: int, n_tokens: int, **settings: Any) -> int | None:
    """The most sequences of `n_tokens` tokens whose caches fit in `budget_bytes` (0 if not even one does)."""
    check_count("budget_bytes", budget_bytes)
    return _largest(
        lambda n: n == 0 or kv_bytes(layout, n_tokens, n_sequences=n, **settings).total <= budget_bytes, low=0
    )


def _largest(fits: Callable[[int], bool], low: int) -> int | None:
    """The largest n with fits(n), for a `fits` that turns false once and stays so; 0 if none, None if there
    is no end.
    """
    high = 1
    while fits(high):
        low, high = high, high * 4
        if high > MAX_COUNT:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def paged_blocks(
    layout: KVLayout,
    budget_bytes: int,
    *,
    block_size: int = 16,
    round_up_blocks: bool = False,
    **settings: Any,
) -> int:
    """Blocks of `block_size` tokens that a budget gives. vLLM rounds down; TensorRT-LLM rounds up
    (`round_up_blocks`).
    """
    block = kv_bytes(
        layout, check_count("block_size", block_size, low=1), engine="no_window", **settings
    ).full
    block += kv_bytes(layout, block_size, engine="no_window", **settings).window
    if block == 0:
        raise InvalidSettingError(
            name="layout", value="without growing layers", allowed="a model with attention layers"
        )
    budget = check_count("budget_bytes", budget_bytes)
    return -(-budget // block) if round_up_blocks else budget // block


@dataclass(frozen=True)
class VllmPool:
    """What vLLM prints at start. `log_tokens` is its “GPU KV cache size”, `concurrency` its “Maximum
    concurrency”.
    """

    n_blocks: int
    n_groups: int
    log_tokens: int
    concurrency: float


def vllm_pool(
    layout: KVLayout,
    available_bytes: int,
    n_tokens: int,
    *,
    dtype: str = "bf16",
    block_size: int = 16,
    tensor_parallel: int = 1,
    max_num_batched_tokens: int = 2048,
) -> VllmPool:
    """vLLM's own arithmetic for one model on one rank, with `n_tokens` as max_model_len.

    Layers of one sort form groups of equal length, all groups draw blocks from one pool, and the widest layer
    sets the size of a block for all. So the tokens in the log are too few for a hybrid model, and its
    concurrency is the figure to read.
    """
    sorts = Counter(_sort(layer) for layer in layout.layers if layer.kind in ("full", "window", "state"))
    if not any(layer.kind in ("full", "window") for layer in sorts):
        raise InvalidSettingError(
            name="layout", value="without attention layers", allowed="a model with attention layers"
        )
    length = min(sorts.values())
    if max(sorts.values()) < 1.25 * length:
        length = max(sorts.values())
    pages = {
        s: kv_bytes(
            KVLayout((s,)), block_size, engine="no_window", k_dtype=dtype, tensor_parallel=tensor_parallel
        ).total
        for s in sorts
        if s.kind != "state"
    }
    page = max(pages.values())
    n_blocks = check_count("available_bytes", available_bytes) // (page * length)
    engine = Vllm(block_size, max_num_batched_tokens)
    groups, per_request = 0, 0
    for sort, count in sorts.items():
        n = -(-count // length)
        groups += n
        per_request += n * (
            1 if sort.kind == "state" else _request_blocks(sort, n_tokens, page // pages[sort], engine)
        )
    return VllmPool(n_blocks, groups, n_blocks // groups * block_size, n_blocks / max(per_request, 1))


def _request_blocks(layer: KVLayer, n_tokens: int, stretch: int, engine: Vllm) -> int:
    """Blocks of one layer for one request. A layer narrower than the widest gets blocks of `stretch` times
    the tokens.
    """
    stretched = Vllm(engine.block_size * stretch, engine.max_num_batched_tokens)
    return (_places(layer, stretched, n_tokens, 1, 0) or 0) // stretched.block_size


def _sort(layer: KVLayer) -> KVLayer:
    """Layers that vLLM groups together: all recurrent layers are one sort, whatever their state."""
    return KVLayer("state") if layer.kind == "state" else replace(layer, state_elements=0, state_parts=0)
