"""What if it had said something else? Other continuations of a run, grown from a copy of its cache.

A model has no plan that could be read in advance: the token after the next one depends on the next one. So the only
way to see another future is to put another token in that place and let the model go on from there. Everything *before*
that place stays true, though. Its keys and values are in the cache, and they do not depend on what comes later. A copy
of the cache, cut off at the fork, is the whole state of the model at that moment: the first pass of the new branch
feeds one single token, the one that was put there.

Several branches can grow at once: a pass takes the next token of each of them, as it does for several learners. That
makes many futures cheap. It does not make one future faster: in a branch, each token still waits for the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.sampling import SamplingParams, entropy_bits, likeliest_first, softmax
from core.tokenizer import EncodedPrompt, Token, make_tokens

if TYPE_CHECKING:
    from core.kv_cache import KVCache
    from core.model import LoadedModel
    from core.scheduler import Request
    from core.trace import Step

N_CANDIDATES = 5


@dataclass(frozen=True)
class Crossroads:
    """What the model thought possible at one place, before any sampling setting.

    token_id: what stands there. probability: of that token. bits: the doubt (entropy). candidates: (id, probability) of
    the likeliest tokens, likeliest first.
    """

    token_id: int
    probability: float
    bits: float
    candidates: tuple[tuple[int, float], ...]


def crossroads(logits: NDArray[Any], token_id: int, n_candidates: int = N_CANDIDATES) -> Crossroads:
    """The facts of one choice, from the logits `(vocab_size,)` over the whole vocabulary."""
    p = softmax(logits)
    n = min(n_candidates, p.size)
    few = np.sort(np.argpartition(p, p.size - n)[p.size - n :])
    likeliest = few[likeliest_first(p[few])]
    candidates = tuple((int(i), float(p[i])) for i in likeliest)
    return Crossroads(token_id, float(p[token_id]), entropy_bits(p), candidates)


def passes_before(steps: Sequence[Step], n_shared: int) -> int:
    """Passes that wrote the first `n_shared` positions: what a branch that starts there does not compute again."""
    return sum(step.n_cached_after <= n_shared for step in steps)


def reading_request(tokens: Sequence[Token], *, keepalive_s: float | None = None) -> Request:
    """Fill a cache with these tokens in one prefill, where no earlier run has kept one (a recorded run has none)."""
    from core.scheduler import Request  # here, so that this module can be read without torch

    return Request(_as_given(tokens), SamplingParams(max_tokens=1), keepalive_s=keepalive_s, ignore_stop=True)


def branch_request(
    loaded: LoadedModel, cache: KVCache, before: Sequence[Token], token_id: int, params: SamplingParams, *,
    choice: int, keepalive_s: float | None = None,
) -> Request:  # fmt: skip
    """A request that continues `before` with `token_id` from a copy of `cache`.

    choice: number of the choice that is replaced (0 = first answer token), so that later choices throw the same dice as
    in the original run. Raises ValueError if the cache does not hold all of `before`.
    """
    from core.scheduler import Request

    n_shared = len(before)
    prefix = cache.fork(n_shared, capacity=n_shared + 1 + params.max_tokens)
    forced = make_tokens(loaded.tokenizer, [token_id], n_shared)
    encoded = _as_given((*before, *forced))
    return Request(encoded, params, prefix=prefix, first_choice=choice + 1, keepalive_s=keepalive_s)


def _as_given(tokens: Sequence[Token]) -> EncodedPrompt:
    return EncodedPrompt(tuple(tokens), (False,) * len(tokens), "")
