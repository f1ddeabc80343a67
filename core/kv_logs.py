"""Recognizing the figure in an engine's log line.

Engines print how much memory their KV cache takes, each in its own words, and the words mislead: “GB” that is
GiB, “tokens” that are blocks shared by several groups of layers, a size that is one of two buffers.
`recognize` finds the figures in a pasted log and says which quantity each is; `expected` computes the same
quantity for a layout, so that the two can be laid side by side. Only the lines listed here are known;
everything else is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from core.errors import ExplainerError
from core.kv_memory import KVLayout, kv_bytes, layer_bytes

MAX_LOG = 50_000  # characters looked at
UNITS = {"B": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "KB": 1000, "MB": 1000**2, "GB": 1000**3}


@dataclass(frozen=True)
class LogFigure:
    """One figure of a log. `quantity` is one of QUANTITIES; what is not in the line is None."""

    engine: str
    quantity: str
    line: str
    n_bytes: int | None = None
    n_tokens: int | None = None
    cells: int | None = None
    layers: int | None = None
    sequences: int | None = None
    k_dtype: str | None = None
    v_dtype: str | None = None
    blocks: int | None = None
    concurrency: float | None = None
    rounding_bytes: int = 0  # the line's last printed digit, in bytes


# llama.cpp: total of one cache (all its devices) · one device's buffer · recurrent state. vLLM: tokens of
# the pool · memory
# for the cache · blocks · concurrency · memory one request needs. SGLang: K or V of the pool. TensorRT-LLM:
# pool.
QUANTITIES = (
    "cache_size", "buffer", "state", "cells", "pool_tokens", "available", "blocks", "concurrency", "request", "k_size",
    "v_size", "pool_size",
)  # fmt: skip

_N = r"(\d[\d,]*(?:\.\d+)?)"
_UNIT = r"\s*([KMG]i?B|B)\b"
_DTYPE = r"(\w+)"


def _bytes(number: str, unit: str, binary: bool = False) -> tuple[int, int]:
    """(bytes, bytes of half the last printed digit). `binary`: this engine writes GB and means GiB."""
    name = unit.upper()
    if binary and name in ("KB", "MB", "GB"):
        name = name[0] + "IB"
    digits = number.replace(",", "")
    decimals = len(digits.partition(".")[2])
    return round(float(digits) * UNITS[name]), round(0.5 * UNITS[name] / 10**decimals)


def _int(number: str) -> int:
    return int(float(number.replace(",", "")))


def _sized(engine: str, quantity: str, binary: bool = False) -> Callable[[re.Match[str]], LogFigure]:
    def make(m: re.Match[str]) -> LogFigure:
        n_bytes, rounding = _bytes(m["n"], m["u"], binary)
        found = m.groupdict()
        whole = {k: _int(found[k]) for k in ("cells", "layers", "sequences", "n_tokens") if found.get(k)}
        names = {k: found[k].lower() for k in ("k_dtype", "v_dtype") if found.get(k)}
        return LogFigure(engine, quantity, "", n_bytes, rounding_bytes=rounding, **whole, **names)  # type: ignore[arg-type]

    return make


def _counted(engine: str, quantity: str, name: str) -> Callable[[re.Match[str]], LogFigure]:
    return lambda m: LogFigure(engine, quantity, "", **{name: _int(m["n"])})  # type: ignore[arg-type]


def _concurrency(m: re.Match[str]) -> LogFigure:
    return LogFigure("vLLM", "concurrency", "", n_tokens=_int(m["n_tokens"]), concurrency=float(m["n"]))


_SIZE = rf"(?P<n>{_N[1:-1]}){_UNIT.replace('(', '(?P<u>', 1)}"
_COUNT = rf"(?P<n>{_N[1:-1]})"
_KV_TYPES = rf".*?K \((?P<k_dtype>{_DTYPE[1:-1]})\).*?V \((?P<v_dtype>{_DTYPE[1:-1]})\)"
_CELLS = r"\(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers,\s*(?P<sequences>\d+)(?:/\d+)? seqs\)"

# In this order: the first pattern that fits a line names its figure.
PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], LogFigure]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), make)
    for pattern, make in (
        (rf"llama_memory_recurrent.*?size\s*=\s*{_SIZE}\s*{_CELLS}", _sized("llama.cpp", "state")),
        (rf"size\s*=\s*{_SIZE}\s*{_CELLS},?{_KV_TYPES}", _sized("llama.cpp", "cache_size")),
        (rf"KV self size\s*=\s*{_SIZE}{_KV_TYPES}", _sized("llama.cpp", "cache_size")),
        (
            rf"KV self size\s*=\s*{_SIZE},\s*c\^KV \((?P<k_dtype>\w+)\)",
            _sized("llama.cpp", "cache_size"),
        ),
        (rf"RS buffer size\s*=\s*{_SIZE}", _sized("llama.cpp", "state")),
        (rf"KV buffer size\s*=\s*{_SIZE}", _sized("llama.cpp", "buffer")),
        (r"SWA KV cache, size\s*=\s*(?P<n>\d+) cells", _counted("llama.cpp", "cells", "cells")),
        (rf"GPU KV cache size:\s*{_COUNT} tokens", _counted("vLLM", "pool_tokens", "n_tokens")),
        (rf"Available KV cache memory:\s*{_SIZE}", _sized("vLLM", "available")),
        (rf"reserved for KV Cache is\s*{_SIZE}", _sized("vLLM", "available")),
        (rf"# GPU blocks:\s*{_COUNT}", _counted("vLLM", "blocks", "blocks")),
        (rf"Maximum concurrency for (?P<n_tokens>[\d,]+) tokens per request:\s*{_COUNT}x", _concurrency),
        (
            rf"max seq len \((?P<n_tokens>\d+)\).*?{_SIZE} KV cache is needed",
            _sized("vLLM", "request"),
        ),
        (
            rf"max seq len \(\d+\).*?can be stored in KV cache \({_COUNT}\)",
            _counted("vLLM", "pool_tokens", "n_tokens"),
        ),
        (rf"#tokens:\s*(?P<n_tokens>[\d,]+),\s*K size:\s*{_SIZE}", _sized("SGLang", "k_size", binary=True)),
        (
            rf"Allocated {_SIZE} for max tokens in paged KV cache \((?P<n_tokens>\d+)\)",
            _sized("TensorRT-LLM", "pool_size"),
        ),
    )
)


def recognize(text: str) -> tuple[LogFigure, ...]:
    """The figures of all lines that are known, in order. Only the first 50,000 characters and 40 figures."""
    found: list[LogFigure] = []
    for line in text[:MAX_LOG].splitlines():
        for pattern, make in PATTERNS:
            match = pattern.search(line[:2_000])
            if match:
                figure = make(match)
                found.append(LogFigure(**{**vars(figure), "line": line.strip()[:300]}))
                break
        if len(found) == 40:
            break
    return tuple(found)


def expected(
    figure: LogFigure,
    layout: KVLayout,
    *,
    n_tokens: int,
    n_sequences: int = 1,
    k_dtype: str = "f16",
    v_dtype: str | None = None,
    tensor_parallel: int = 1,
) -> int | float | None:
    """The same quantity for `layout`: bytes, tokens or blocks as the figure has. None where the line does not
    settle it. What the line says (cells, sequences, dtypes) wins over the settings.
    """
    k = figure.k_dtype or k_dtype
    common: dict[str, Any] = {"k_dtype": k, "v_dtype": figure.v_dtype or (k if figure.k_dtype else v_dtype)}
    common |= {"tensor_parallel": tensor_parallel}
    try:
        if figure.quantity == "cache_size":
            return _cache_size(figure, layout, n_tokens, n_sequences, common)
        if figure.quantity == "state":
            slots = figure.cells or n_sequences
            return kv_bytes(layout, 0, n_sequences=slots, tensor_parallel=tensor_parallel).state
        if figure.quantity == "request" and figure.n_tokens:
            return kv_bytes(layout, figure.n_tokens, engine="vllm", **common).total
        if figure.quantity == "k_size" and figure.n_tokens:
            whole = kv_bytes(layout, figure.n_tokens, engine="no_window", **common)
            return _k_share(layout, whole.full + whole.window)
        if figure.quantity == "pool_size" and figure.n_tokens:
            return kv_bytes(layout, figure.n_tokens, engine="no_window", **common).total
        if figure.quantity in ("pool_tokens", "blocks"):
            n = figure.n_tokens or (figure.blocks or 0) * 16
            return kv_bytes(layout, n, engine="no_window", **common).total
    except ExplainerError:
        return None
    return None


def _k_share(layout: KVLayout, n_bytes: int) -> int | None:
    k = sum(layer.k_elements for layer in layout.layers)
    total = sum(layer.elements for layer in layout.layers)
    return None if not total else n_bytes * k // total


def _cache_size(
    figure: LogFigure, layout: KVLayout, n_tokens: int, n_sequences: int, common: dict[str, Any]
) -> int | None:
    """llama.cpp prints one line for full layers and one for window layers: told apart by their number of
    layers.
    """
    if figure.cells is None:
        got = kv_bytes(layout, n_tokens, n_sequences=n_sequences, engine="llama.cpp", **common)
        return got.full + got.window
    sequences = figure.sequences or 1
    for kind in ("full", "window"):
        layers = KVLayout(tuple(layer for layer in layout.layers if layer.kind == kind))
        if len(layers.layers) == figure.layers:
            options = {**common, "n_sequences": sequences, "engine": "no_window"}
            return sum(layer_bytes(_stateless(layers), figure.cells, **options))
    return None


def _stateless(layout: KVLayout) -> KVLayout:
    return KVLayout(tuple(replace(layer, state_elements=0) for layer in layout.layers))
