"""What the KV cache page sends to the browser: one run's cache as lengths of vectors, and single cells on request.

The keys and values of a run are millions of numbers. The grid needs only how long each vector is, so that is what it
gets: one 16-bit code per layer, KV head and position, for K and for V. A cell's own numbers follow when it is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from core.tokenizer import Token
from core.trace import Step, Trace

if TYPE_CHECKING:  # torch takes seconds to import, and a page must show the recorded run before
    from core.kv_cache import KVCache

Cell = tuple[int, int]  # layer, position, both from 0
LEARNED_POSITIONS = ("gpt2", "opt")  # families that add positions to the input instead of rotating K
BUDGET_BYTES = 400_000  # of the grid's codes; models with many heads and long runs are cut to what fits


def norms(trace: Trace, n_positions: int | None = None) -> np.ndarray:
    """Length of each recorded K and V vector: float32 `(2, n_kv_heads, n_layers, n_positions)`, K first."""
    chosen = slice(0, n_positions)
    both = (np.asarray(part[:, :, chosen], dtype=np.float32) for part in (trace.keys, trace.values))
    return np.stack([np.linalg.norm(part, axis=-1).transpose(1, 0, 2) for part in both]).astype(np.float32)


def shown_positions(trace: Trace) -> int:
    """How many of the recorded positions fit into the budget."""
    per_position = 2 * 2 * trace.spec.n_kv_heads * trace.spec.n_layers
    return min(trace.n_traced, BUDGET_BYTES // per_position)


def grid(
    trace: Trace, run: str, view: dict[str, Any], measured: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The data of the component `kv_stage`, without language and texts."""
    n_shown = shown_positions(trace)
    lengths = norms(trace, n_shown)
    top = lengths.reshape(2, -1).max(axis=1, initial=0.0)
    scale = np.where(top > 0, top, 1.0) / 65535
    spec = trace.spec
    starts = np.array([step.layer_starts_s - step.started_s for step in trace.steps], dtype=np.float64) * 1e3
    return {
        "meta": {
            "run": run,
            "n_layers": spec.n_layers,
            "n_heads": spec.n_heads,
            "n_kv_heads": spec.n_kv_heads,
            "head_dim": spec.head_dim,
            "dtype_bytes": spec.dtype_bytes,
            "n_prompt": trace.n_prompt,
            "n_traced": n_shown,
            "tokens": [_token(token) for token in trace.tokens],
            "steps": _steps(trace),
            "scale": scale.tolist(),
            "measured": measured,
            "view": view,
        },
        "norms": np.rint(lengths / scale[:, None, None, None]).astype(np.uint16).ravel(),
        "layer_ms": starts.astype(np.float32).ravel(),
    }


def _token(token: Token) -> list[Any]:
    return [token.text, token.bytes.hex(), token.is_special, token.id]


def _steps(trace: Trace) -> list[list[Any]]:
    rows, position = [], trace.n_prompt
    for step in trace.steps:
        rows.append(_step_row(step, position if step.is_choice else None))
        position += step.is_choice
    return rows


def _step_row(step: Step, token_index: int | None) -> list[Any]:
    times = [round(step.started_s * 1e3, 3), round(step.ended_s * 1e3, 3)]
    return [step.phase, step.n_cached_before, step.n_input, token_index, *times]


def weighed(trace: Trace, cache: KVCache | None) -> dict[str, Any] | None:
    """Bytes that this run's cache really holds: its live tensors, or, for a recording, its recorded values counted."""
    if cache is not None and len(cache) == trace.n_cached:
        return {"bytes": cache.nbytes, "kind": "measured", "tensors": "held_live"}
    if trace.n_traced and trace.n_traced == trace.n_cached:
        n_values = trace.keys.size + trace.values.size
        return {"bytes": n_values * trace.spec.dtype_bytes, "kind": "computed", "tensors": "held_recorded"}
    return None


def default_cell(trace: Trace) -> Cell:
    """A cell worth looking at first: the middle layer at the last word that the learner typed."""
    own = [
        i
        for i in range(trace.n_prompt)
        if not trace.from_template[i] and trace.tokens[i].text.strip().isalnum()
    ]
    position = own[-1] if own else trace.n_prompt - 1
    return trace.spec.n_layers // 2, min(position, max(0, trace.n_traced - 1))


def parse_cell(raw: str) -> str:
    """Reads "12-27" (layer 12, position 27, both from 1, as on screen) or "". ValueError for anything else."""
    if raw:
        layer, position = (int(part) for part in raw.split("-"))
        if layer < 1 or position < 1:
            raise ValueError(raw)
    return raw


def cell_of(raw: str, trace: Trace) -> Cell:
    """The cell that a setting names, or the default where this run has no such cell."""
    if raw:
        layer, position = (int(part) - 1 for part in raw.split("-"))
        if layer < trace.spec.n_layers and position < len(trace.tokens):
            return layer, position
    return default_cell(trace)


def vectors(trace: Trace, cell: Cell) -> dict[str, Any]:
    """K and V of one cell, every number: `(n_kv_heads, head_dim)` each; empty where nothing was recorded."""
    layer, position = cell
    found = position < trace.n_traced
    parts = {"k": trace.keys, "v": trace.values}
    return {
        name: np.asarray(part[layer, :, position], dtype=np.float32).ravel()
        if found
        else np.zeros(0, np.float32)
        for name, part in parts.items()
    }


def writer(trace: Trace, position: int) -> Step | None:
    """The pass that computed K and V of a position; None where none has (or a fork's copied prefix)."""
    for step in trace.steps:
        if step.n_cached_before <= position < step.n_cached_after:
            return step
    return None


def sink_ratios(trace: Trace) -> tuple[float, float] | None:
    """Mean length of K and of V at the first position, as shares of the others. mean; None for one position."""
    if trace.n_traced < 2:
        return None
    lengths = np.sqrt((norms(trace) ** 2).sum(axis=1)).mean(axis=1)  # (K or V, position)
    first, others = lengths[:, 0], lengths[:, 1:].mean(axis=1)
    return float(first[0] / others[0]), float(first[1] / others[1])


def cell_facts(trace: Trace, cell: Cell) -> dict[str, Any]:
    """What is known about a cell besides its numbers (layer, position and pass counted from 1, as on screen)."""
    layer, position = cell
    step, spec = writer(trace, position), trace.spec
    written = position < trace.n_cached
    return {
        "n_kv_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "dtype_bytes": spec.dtype_bytes,
        "layer": layer + 1,
        "position": position + 1,
        "token": _token(trace.tokens[position]),
        "phase": step.phase if step else None,
        "pass": step.index + 1 if step else None,
        "rotary": spec.family not in LEARNED_POSITIONS,
        "state": "unwritten" if not written else "recorded" if position < trace.n_traced else "untraced",
    }
