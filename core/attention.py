"""Attention maps: who looked at whom, and how strongly.

In each layer and each head, a token's query is compared with the key of every position up to its own. The products are
scaled and turned into shares that sum to one (softmax). The share is how much of that position's value flows into the
token. A map has one row per token that looks and one column per position that is looked at; above the diagonal it is
zero, because nobody can look at what comes later.

The maps of a run are many (layers × heads) and large (tokens²), so they are not stored. They are computed again from
the recorded queries and keys when somebody wants to see one; that takes milliseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidSettingError, NotTracedError
from core.trace import Trace


def attention_map(trace: Trace, layer: int, head: int) -> NDArray[np.float32]:
    """Attention weights `(n_traced, n_traced)` of one query head; row i sums to 1 over columns 0…i.

    Raises InvalidSettingError for a layer or head that the model does not have.
    """
    _check(trace, layer, head)
    positions = np.arange(trace.n_traced)
    weights: NDArray[np.float32] = _weights(trace, layer, slice(head, head + 1), positions)[0]
    return weights


def attention_rows(trace: Trace, layer: int, position: int) -> NDArray[np.float32]:
    """What one position looks at, in all heads of a layer: `(n_heads, position + 1)`.

    Raises NotTracedError if that position was not recorded.
    """
    _check(trace, layer, 0)
    if not 0 <= position < trace.n_traced:
        raise NotTracedError(position=position, n_traced=trace.n_traced)
    rows = _weights(trace, layer, slice(None), np.array([position]))
    return rows[:, 0, : position + 1]


def layer_maps(trace: Trace, layer: int) -> NDArray[np.float32]:
    """All heads of a layer: `(n_heads, n_traced, n_traced)`."""
    _check(trace, layer, 0)
    return _weights(trace, layer, slice(None), np.arange(trace.n_traced))


def _weights(trace: Trace, layer: int, heads: slice, positions: NDArray[np.intp]) -> NDArray[np.float32]:
    """softmax(QKᵀ · scale + mask) for some heads and query positions: `(n_heads, n_positions, n_traced)`."""
    queries = np.asarray(trace.queries[layer, heads][:, positions], dtype=np.float32)
    n_rep = trace.spec.n_heads // trace.spec.n_kv_heads
    kv_heads = np.arange(trace.spec.n_heads)[heads] // n_rep
    keys = np.asarray(trace.keys[layer], dtype=np.float32)[kv_heads]
    scores: Any = queries @ keys.transpose(0, 2, 1) * np.float32(trace.spec.attention_scale)
    column = np.arange(trace.n_traced)
    visible = column[None, :] <= positions[:, None]
    if (window := trace.spec.window_of(layer)) is not None:
        visible &= column[None, :] > positions[:, None] - window
    scores = np.where(visible, scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: NDArray[np.float32] = (scores / scores.sum(axis=-1, keepdims=True)).astype(np.float32)
    return weights


def _check(trace: Trace, layer: int, head: int) -> None:
    limits = {"layer": (layer, trace.spec.n_layers), "head": (head, trace.spec.n_heads)}
    for name, (value, n) in limits.items():
        if not 0 <= value < n:
            raise InvalidSettingError(name=name, value=value, allowed=f"a number from 0 to {n - 1}")
    if trace.n_traced == 0:
        raise NotTracedError(position=0, n_traced=0)
