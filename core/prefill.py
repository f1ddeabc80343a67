"""Reading the prompt: what it costs, and what it would cost token by token.

Before the first word of an answer, the model reads the prompt. It could feed the tokens one after another. But all of
them are known, so it feeds them together: in each layer, one matrix product serves all positions. That pass is the
prefill.

Its arithmetic has two parts. The linear layers treat every token alone, so their work grows with the number of tokens,
T. Attention compares every token with itself and with all tokens before it: 1 + 2 + … + T = T(T+1)/2 pairs, so its
work grows with T². One multiplication and one addition count as two FLOPs, the usual way.

Time does not follow the arithmetic alone: each pass also has to read the weights from memory, for one token as much as
for a hundred. Two measurements show it here: the same prompt fed one token at a time, and passes of several lengths.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.spec import ModelSpec

if TYPE_CHECKING:
    from core.kv_cache import KVCache
    from core.model import LoadedModel

MAX_RACE_TOKENS = 256
MAX_RACE_S = 120.0
MAX_LENGTHS_S = 60.0


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def attention_pairs(n_tokens: int, n_cached: int = 0, window: int | None = None) -> int:
    """Pairs (who looks, who is looked at) in one head: T(T+1)/2, plus T times what was cached before.

    With a sliding window of w positions, nobody looks at more than w.
    """
    if window is None:
        return n_tokens * (n_tokens + 1) // 2 + n_tokens * n_cached
    return sum(min(n_cached + i + 1, window) for i in range(n_tokens))


def layer_weights(spec: ModelSpec) -> int:
    """Weights in the matrices of one layer: Q, K, V, output, and the MLP's two or three."""
    projections = 2 * spec.hidden_size * spec.head_dim * (spec.n_heads + spec.n_kv_heads)
    return projections + mlp_matrices(spec) * spec.hidden_size * spec.intermediate_size


def mlp_matrices(spec: ModelSpec) -> int:
    """3 for a gated MLP (Llama and most others), 2 for the older kind (GPT-2); told apart by the parameter count."""
    if not spec.n_parameters:
        return 3
    embeddings = spec.vocab_size * spec.hidden_size * (1 if spec.tied_embeddings else 2)
    projections = 2 * spec.hidden_size * spec.head_dim * (spec.n_heads + spec.n_kv_heads)
    per_layer = (spec.n_parameters - embeddings) / spec.n_layers - projections
    return 2 if per_layer < 2.5 * spec.hidden_size * spec.intermediate_size else 3


@dataclass(frozen=True)
class PassCost:
    """What one pass must compute and move, by formula. FLOPs; bytes.

    linear: the matrices of all layers (∝ T). attention: scores and weighted values (∝ pairs). vocabulary: the logits of
    the positions that need them. weight_bytes: every weight read once. cache_bytes: K and V read and written. What a
    pass keeps for a moment only (activations) is not counted.
    """

    linear: int
    attention: int
    vocabulary: int
    weight_bytes: int
    cache_bytes: int

    @property
    def flops(self) -> int:
        """All arithmetic of the pass."""
        return self.linear + self.attention + self.vocabulary

    @property
    def bytes(self) -> int:
        """All bytes that have to come from or go to memory."""
        return self.weight_bytes + self.cache_bytes


def pass_cost(spec: ModelSpec, n_tokens: int, n_cached: int = 0, n_logits: int = 1) -> PassCost:
    """The cost of one pass of one sequence: `n_tokens` new positions on top of `n_cached`."""
    pairs = sum(attention_pairs(n_tokens, n_cached, spec.window_of(layer)) for layer in range(spec.n_layers))
    # An embedding of its own is looked up row by row, so only the rows of these tokens are read.
    table = 0 if spec.tied_embeddings else spec.vocab_size * spec.hidden_size
    rows = 0 if spec.tied_embeddings else n_tokens * spec.hidden_size
    return PassCost(
        linear=2 * spec.n_layers * layer_weights(spec) * n_tokens,
        attention=4 * spec.n_heads * spec.head_dim * pairs,
        vocabulary=2 * spec.vocab_size * spec.hidden_size * n_logits,
        weight_bytes=(spec.n_parameters - table + rows) * spec.dtype_bytes,
        cache_bytes=(n_cached + n_tokens) * spec.kv_bytes_per_token,
    )


def crossing_length(spec: ModelSpec) -> int:
    """The prompt length from which attention needs more arithmetic than the linear layers (without windows)."""
    per_token = 2 * layer_weights(spec)
    return round(per_token / (2 * spec.n_heads * spec.head_dim)) - 1


# ---- one by one instead ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Race:
    """The same tokens twice: together in one pass, and one pass for each. Seconds of computing, waiting left out.

    max_difference: the largest difference between the two sets of logits after the last token, None before that.
    same_choice: whether both have the same highest logit.
    """

    n_tokens: int
    together_s: float
    n_fed: int = 0
    one_by_one_s: float = 0.0
    max_difference: float | None = None
    same_choice: bool | None = None

    @property
    def ratio(self) -> float:
        """How many times longer one by one took, for the tokens fed so far."""
        return self.one_by_one_s / self.together_s


def one_by_one(loaded: LoadedModel, ids: Sequence[int]) -> Iterator[Race]:
    """A job for `Scheduler.run_job`: one Race per pass, the last one with the comparison.

    At most MAX_RACE_TOKENS tokens; it stops early, without a comparison, after MAX_RACE_S seconds of computing.
    """
    ids = tuple(ids[:MAX_RACE_TOKENS])
    _timed_pass(loaded, loaded.new_cache(), ids)  # the first pass after a pause is slower: not counted
    together, together_s = _timed_pass(loaded, loaded.new_cache(), ids)
    race = Race(len(ids), together_s)
    yield race
    cache = loaded.new_cache(capacity=len(ids))
    logits = together
    for token_id in ids:
        logits, seconds = _timed_pass(loaded, cache, (token_id,))
        race = replace(race, n_fed=race.n_fed + 1, one_by_one_s=race.one_by_one_s + seconds)
        if race.n_fed == race.n_tokens:
            break
        yield race
        if race.one_by_one_s > MAX_RACE_S:
            return
    difference = float(np.abs(logits - together).max())
    yield replace(race, max_difference=difference, same_choice=bool(logits.argmax() == together.argmax()))


# ---- cost against length ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LengthTime:
    """One measured pass over `n_tokens` tokens with an empty cache."""

    n_tokens: int
    seconds: float


def times_by_length(
    loaded: LoadedModel, ids: Sequence[int], lengths: Sequence[int], repeats: int = 3
) -> Iterator[LengthTime]:
    """A job for `Scheduler.run_job`: `repeats` passes for each length, tokens taken from `ids` in a circle.

    Stops early after MAX_LENGTHS_S seconds of computing.
    """
    spent = 0.0
    _timed_pass(loaded, loaded.new_cache(), _circle(ids, min(lengths)))
    for length in lengths:
        for _ in range(repeats):
            _, seconds = _timed_pass(loaded, loaded.new_cache(capacity=length), _circle(ids, length))
            spent += seconds
            yield LengthTime(length, seconds)
            if spent > MAX_LENGTHS_S:
                return


def medians(times: Sequence[LengthTime]) -> tuple[LengthTime, ...]:
    """The median time of each length, in the order of the lengths."""
    lengths = sorted({t.n_tokens for t in times})
    return tuple(
        LengthTime(n, statistics.median(t.seconds for t in times if t.n_tokens == n)) for n in lengths
    )


def _circle(ids: Sequence[int], length: int) -> tuple[int, ...]:
    return tuple(ids[i % len(ids)] for i in range(length))


def _timed_pass(
    loaded: LoadedModel, cache: KVCache, ids: tuple[int, ...]
) -> tuple[NDArray[np.float32], float]:
    from core.forward import Span, packed_forward

    (record,) = packed_forward(loaded, [Span(cache, ids)], record=False)
    return record.logits[-1], record.ended_s - record.started_s
