"""Where attention goes, as one number per head: to the first token, to the token before, to itself.

A model of 30 layers with 9 heads has 270 attention maps, too many to look at. Three averages tell most of their story.
Many heads give most of their attention to the very first token, whatever it says: each row of a map must sum to one,
and a head that finds nothing of use parks its share there. That is the attention sink. Some heads look at the token
just before; some look at the token itself. All are averages over the rows of a run's own maps (the first row is left
out: the first token can look at nothing but itself).

The causal mask is part of every map. `unmasked_share` shows what it prevents: how much attention would go to tokens
that come later if nothing were masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.attention import layer_maps
from core.errors import NotTracedError
from core.trace import Trace

Shares = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class HeadProfile:
    """Mean attention shares of every head, `(n_layers, n_heads)` each, over the rows 1 … n_rows of the run.

    even: what the first token would get if every row spread its attention evenly. With a single token all are 1.
    """

    first: Shares
    previous: Shares
    itself: Shares
    even: float
    n_rows: int

    def strongest(self, shares: Shares) -> tuple[int, int]:
        """(layer, head) of the largest of these shares."""
        layer, head = np.unravel_index(int(shares.argmax()), shares.shape)
        return int(layer), int(head)


def head_profile(trace: Trace) -> HeadProfile:
    """The profile of a run, over its traced positions. Raises NotTracedError if there are none."""
    n_tokens = trace.n_traced
    rows = np.arange(1, n_tokens) if n_tokens > 1 else np.arange(n_tokens)
    first, previous, itself = [], [], []
    for layer in range(trace.spec.n_layers):
        maps = layer_maps(trace, layer)
        first.append(maps[:, rows, 0].mean(axis=1))
        previous.append(maps[:, rows, np.maximum(rows - 1, 0)].mean(axis=1))
        itself.append(maps[:, rows, rows].mean(axis=1))
    even = float((1.0 / (rows + 1)).mean())
    return HeadProfile(np.stack(first), np.stack(previous), np.stack(itself), even, len(rows))


def unmasked_share(trace: Trace, n_tokens: int | None = None, layer: int = 0) -> float:
    """How much attention would go to later tokens without the mask, on average over heads and rows.

    n_tokens: the first tokens, which are read together (default: the whole prompt, as far as it was traced).

    Only layer 0 is exact: its queries and keys do not depend on attention. In later layers they would differ too.
    """
    n_tokens = min(n_tokens or trace.n_prompt, trace.n_traced)
    if n_tokens == 0:
        raise NotTracedError(position=0, n_traced=0)
    n_rep = trace.spec.n_heads // trace.spec.n_kv_heads
    queries = np.asarray(trace.queries[layer, :, :n_tokens], dtype=np.float32)
    keys = np.repeat(np.asarray(trace.keys[layer, :, :n_tokens], dtype=np.float32), n_rep, axis=0)
    scores = queries @ keys.transpose(0, 2, 1) * np.float32(trace.spec.attention_scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return float(np.triu(weights, k=1).sum(axis=-1).mean())
