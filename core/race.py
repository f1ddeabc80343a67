"""The cache race: the same answer twice, with the KV cache and without it.

Without a cache, a model that has just chosen a token must read the whole text again to choose the next one: keys and
values of every position are computed anew in every pass. With a cache, they are computed once; each pass computes them
for the one new token. The tokens are the same, and so are the logits, up to rounding.

For n tokens from an empty prompt, that is 1 + 2 + … + n = n(n+1)/2 keys and values per layer without, n with. What the
cache does not save is the comparing: token i still looks at i positions, so the dot products of queries and keys are
n(n+1)/2 in both lanes.

Both lanes run now, on the real model, one pass after the other in turns, so that a machine that is slow for a moment is
slow for both. Counted is what was really fed to the model, beside the formula.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from core.errors import TraceFileError
from core.tokenizer import Token, make_tokens

if TYPE_CHECKING:
    from core.kv_cache import KVCache
    from core.model import LoadedModel

Lane = Literal["with", "without"]

MAX_RACE_TOKENS = 512  # prompt and answer together
MAX_RACE_S = 90.0


@dataclass(frozen=True)
class LanePass:
    """One pass of one lane. `n_context`: positions that the new token sees, itself included.

    n_computed: positions whose K and V this pass computed, in each layer. dot_products: pairs of one query and one key
    that the *new* token needs, per head and layer; reading everything again repeats those of all earlier tokens too
    (`repeated_dot_products`). max_difference: largest difference of the two lanes' logits, known in the second lane.
    """

    lane: Lane
    index: int
    n_context: int
    n_computed: int
    seconds: float
    token_id: int
    max_difference: float | None = None
    same_token: bool | None = None

    @property
    def dot_products(self) -> int:
        """Query–key pairs of the new token: the same in both lanes."""
        return self.n_context

    @property
    def repeated_dot_products(self) -> int:
        """Query–key pairs computed again for tokens that had been compared before."""
        return self.n_computed * (self.n_computed + 1) // 2 - self.n_context if self.lane == "without" else 0


def computed_without_cache(n_tokens: int) -> int:
    """K/V computations per layer for n tokens from an empty prompt, reading everything again: n(n+1)/2."""
    return n_tokens * (n_tokens + 1) // 2


def computed_with_cache(n_tokens: int) -> int:
    """The same with a cache: each position once."""
    return n_tokens


def cache_race(loaded: LoadedModel, prompt_ids: Sequence[int], n_tokens: int) -> Iterator[LanePass]:
    """A job for `Scheduler.run_job`: two passes per answer token, the lane with the cache first.

    Greedy. Stops when prompt and answer reach MAX_RACE_TOKENS or after MAX_RACE_S seconds of computing. The first token
    comes out of the prompt's pass in both lanes; there the lanes do the same work.
    """
    ids, spent = list(prompt_ids), 0.0
    cache = loaded.new_cache(capacity=len(ids) + n_tokens)
    _warm_up(loaded, ids)
    for index in range(min(n_tokens, MAX_RACE_TOKENS - len(ids) + 1)):
        new = tuple(ids) if index == 0 else (ids[-1],)
        logits, seconds = _timed(loaded, cache, new)
        token = int(logits.argmax())
        yield LanePass("with", index, len(ids), len(new), seconds, token)
        again, again_s = _timed(loaded, loaded.new_cache(capacity=len(ids)), tuple(ids))
        difference = float(np.abs(again - logits).max())
        same = int(again.argmax()) == token
        yield LanePass("without", index, len(ids), len(ids), again_s, int(again.argmax()), difference, same)
        ids.append(token)
        spent += seconds + again_s
        if spent > MAX_RACE_S:
            return


@dataclass(frozen=True)
class RaceSummary:
    """Both lanes added up. Seconds, and counts per layer."""

    n_tokens: int
    with_s: float
    without_s: float
    with_computed: int
    without_computed: int
    dot_products: int
    max_difference: float
    same_tokens: bool

    @property
    def speed_up(self) -> float:
        """How many times longer the lane without a cache took."""
        return self.without_s / self.with_s if self.with_s else 1.0


def summarize(passes: Sequence[LanePass]) -> RaceSummary:
    """Totals over the answer tokens that both lanes have finished."""
    without = [p for p in passes if p.lane == "without"]
    cached = [p for p in passes if p.lane == "with"][: len(without)]
    return RaceSummary(
        n_tokens=len(without),
        with_s=sum(p.seconds for p in cached),
        without_s=sum(p.seconds for p in without),
        with_computed=sum(p.n_computed for p in cached),
        without_computed=sum(p.n_computed for p in without),
        dot_products=sum(p.dot_products for p in cached),
        max_difference=max((p.max_difference or 0.0 for p in without), default=0.0),
        same_tokens=all(p.same_token for p in without),
    )


def speed_up_by_length(passes: Sequence[LanePass], width: int = 16) -> tuple[tuple[int, float], ...]:
    """(context length, median ratio of the two lanes' times) for groups of `width` neighbouring tokens."""
    pairs: dict[int, list[float]] = {}
    cached = {p.index: p.seconds for p in passes if p.lane == "with"}
    for p in passes:
        if p.lane == "without" and p.index > 0:
            pairs.setdefault((p.n_context // width) * width + width // 2, []).append(
                p.seconds / cached[p.index]
            )
    return tuple((length, statistics.median(ratios)) for length, ratios in sorted(pairs.items()))


def expected_counts(n_prompt: int, n_tokens: int) -> tuple[int, int]:
    """K/V computations per layer of a race, (with, without), by formula.

    With: the prompt once, then one position for each further token. Without: the first pass reads n_prompt positions,
    each later one more than the one before.
    """
    if n_tokens == 0:
        return 0, 0
    longest = n_prompt + n_tokens - 1
    return longest, computed_without_cache(longest) - computed_without_cache(n_prompt - 1)


@dataclass(frozen=True)
class RaceRecord:
    """A finished race with what is needed to show it: `tokens` of the answer, one per pair of passes."""

    prompt: str
    n_prompt: int
    machine: str
    kv_bytes_per_token: int
    tokens: tuple[Token, ...]
    passes: tuple[LanePass, ...]

    @classmethod
    def of(
        cls, loaded: LoadedModel, prompt: str, n_prompt: int, machine: str, passes: Sequence[LanePass]
    ) -> RaceRecord:
        """The record of a race that the model has just run; an unfinished last pair is left out."""
        n_pairs = sum(p.lane == "without" for p in passes)
        ids = [p.token_id for p in passes if p.lane == "with"][:n_pairs]
        tokens = make_tokens(loaded.tokenizer, ids, n_prompt)
        return cls(
            prompt, n_prompt, machine, loaded.spec.kv_bytes_per_token, tokens, tuple(passes[: 2 * n_pairs])
        )

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        data = asdict(self)
        data["tokens"] = [[t.id, t.bytes.hex(), t.text, t.is_special, t.position] for t in self.tokens]
        path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> RaceRecord:
        """Read a file written by `save`. Raises TraceFileError."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["tokens"] = tuple(Token(r[0], bytes.fromhex(r[1]), *r[2:]) for r in data["tokens"])
            data["passes"] = tuple(LanePass(**values) for values in data["passes"])
            return RaceRecord(**data)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise TraceFileError(
                path=str(path), reason="it is missing, damaged or no recorded race"
            ) from error


def _warm_up(loaded: LoadedModel, ids: Sequence[int]) -> None:
    """The first passes after a pause are slower; they are not counted."""
    _timed(loaded, loaded.new_cache(), tuple(ids))


def _timed(loaded: LoadedModel, cache: KVCache, ids: tuple[int, ...]) -> tuple[np.ndarray, float]:
    from core.forward import Span, packed_forward

    (record,) = packed_forward(loaded, [Span(cache, ids)], record=False)
    return record.logits[-1], record.ended_s - record.started_s
