"""How one token is chosen from the scores of all of them.

A pass of the model ends in one number per token of the vocabulary: the logits. They are not a choice. Choosing is a
short chain of small rules, always in this order:

    repetition penalty → temperature → top-k → top-p → min-p → renormalise → draw

The first two change scores, the next three only cut tokens away, and what is left is scaled to sum to 1. Then one
uniform number u in [0, 1) is laid on a bar on which the tokens lie side by side, likeliest first: the token under u is
the answer. u depends on (seed, step) alone, so the same link gives the same text, and the dice can be shown on screen.

`distribution` keeps every stage over the whole vocabulary, to be looked at. `choose` is the fast way to the same token:
it sorts only as many tokens as it needs, and falls back on `distribution` whenever rounding could matter.

Everything is computed in float64, as in JavaScript, so that the browser can repeat it digit by digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.errors import InvalidSettingError, RunFailedError

Scores = NDArray[np.float64]
StageName = Literal["logits", "repetition_penalty", "temperature", "top_k", "top_p", "min_p"]

MIN_TEMPERATURE = 0.01  # below it (but not 0) every answer is greedy's, and the division begins to overflow
MAX_TEMPERATURE = 5.0
MAX_SEED = 2**32 - 1
MAX_TOKENS = 8192

_MARGIN = (
    1e-9  # far above the rounding error of a sum over the vocabulary, far below anything a learner can set
)
_HEADS = (
    1e-3,
    1e-6,
)  # weights (relative to the likeliest token) down to which `choose` sorts, first and second try


@dataclass(frozen=True)
class SamplingParams:
    """The settings of one choice. The defaults choose greedily: always the likeliest token.

    temperature: 0 (greedy) or 0.01 … 5. top_k: 0 means off. top_p: 1 means off. min_p: 0 means off, otherwise the
    smallest probability that stays, as a share of the likeliest token's. repetition_penalty: 1 means off. max_tokens:
    the longest answer. Raises InvalidSettingError.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    max_tokens: int = 64

    def __post_init__(self) -> None:
        if self.temperature != 0:
            _check_real("temperature", self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE, "0, 0.01 … 5")
        _check_real("top_p", self.top_p, math.ulp(0.0), 1.0, "0 < top_p ≤ 1")
        _check_real("min_p", self.min_p, 0.0, 1.0, "0 … 1")
        _check_real("repetition_penalty", self.repetition_penalty, 0.1, 10.0, "0.1 … 10")
        _check_whole("top_k", self.top_k, 0, MAX_SEED)
        _check_whole("seed", self.seed, 0, MAX_SEED)
        _check_whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def _check_real(name: str, value: object, low: float, high: float, allowed: str) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not ok:  # NaN fails the comparison too
        raise InvalidSettingError(name=name, value=value, allowed=allowed)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidSettingError(name=name, value=value, allowed=f"{low} … {high}")


PRESETS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0),
    "factual": SamplingParams(temperature=0.3, top_p=0.9),
    "chat": SamplingParams(temperature=0.7, top_k=40, top_p=0.95),
    "creative": SamplingParams(temperature=1.2, min_p=0.05),
}
"""Settings as products use them, from always-the-same to surprising. Each is one point in the same space."""


# --- the rules: scores -> scores, each a pure function over the whole vocabulary; −inf means "cut"


def apply_repetition_penalty(scores: ArrayLike, previous_ids: Iterable[int], penalty: float) -> Scores:
    """Scores of tokens that were already read or written, made smaller: divided by `penalty`, multiplied when negative.

    A token is punished once, however often it occurred. Source: CTRL (Keskar et al., 2019).
    """
    result = np.array(scores, dtype=np.float64)
    ids = np.unique(np.fromiter(previous_ids, dtype=np.int64))
    ids = ids[(ids >= 0) & (ids < result.size)]
    if penalty != 1 and ids.size:
        old = result[ids]
        result[ids] = np.where(old < 0, old * penalty, old / penalty)
    return result


def apply_temperature(scores: ArrayLike, temperature: float) -> Scores:
    """Scores divided by the temperature. 0 leaves one token: the highest score, the lowest id of equals."""
    values = np.asarray(scores, dtype=np.float64)
    if temperature != 0:
        return values / temperature
    only = np.full(values.shape, -np.inf)
    only[np.argmax(values)] = 0.0
    return only


def apply_top_k(scores: ArrayLike, top_k: int) -> Scores:
    """The k highest scores; everything lower is cut. Scores equal to the k-th all stay, so more than k can survive."""
    values = np.asarray(scores, dtype=np.float64)
    if not 0 < top_k < values.size:
        return values.copy()
    kth = np.partition(values, values.size - top_k)[values.size - top_k]
    return np.where(values < kth, -np.inf, values)


def apply_top_p(scores: ArrayLike, top_p: float) -> Scores:
    """The nucleus: the shortest run of tokens, likeliest first, whose probabilities reach `top_p`.

    The token that crosses the line stays. Of equal scores the lower id comes first (a fixed rule: a sort that treats
    equals at random would make the same link give different answers). Source: Holtzman et al., 2020.
    """
    values = np.asarray(scores, dtype=np.float64)
    if top_p >= 1:
        return values.copy()
    order = likeliest_first(values)
    cumulative = np.cumsum(_weights(values)[order])
    n_kept = int(np.searchsorted(cumulative, top_p * cumulative[-1], side="left")) + 1
    result = np.full(values.shape, -np.inf)
    result[order[:n_kept]] = values[order[:n_kept]]
    return result


def apply_min_p(scores: ArrayLike, min_p: float) -> Scores:
    """Tokens at least `min_p` times as likely as the likeliest one. Source: Nguyen et al., 2024."""
    values = np.asarray(scores, dtype=np.float64)
    return np.where(_weights(values) < min_p, -np.inf, values)


def likeliest_first(scores: ArrayLike) -> NDArray[np.int64]:
    """All ids, highest score first; of equal scores the lower id first."""
    return np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable").astype(np.int64, copy=False)


def _weights(scores: Scores) -> Scores:
    """exp(score − highest score): 1 for the likeliest token. A softmax before its division."""
    highest = scores.max()
    if not np.isfinite(highest):
        raise RunFailedError(reason="the scores of the model are not finite numbers")
    weights: Scores = np.exp(scores - highest)
    return weights


# --- measures of doubt


def softmax(logits: ArrayLike) -> Scores:
    """Probabilities (sum 1) of scores, over the whole vocabulary."""
    weights = _weights(np.asarray(logits, dtype=np.float64))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def entropy_bits(probabilities: ArrayLike) -> float:
    """Doubt in bits: 0 when one token is certain, 1 for a fair coin, log2(n) for n equally likely tokens."""
    p = np.asarray(probabilities, dtype=np.float64)
    p = p[p > 0]
    return abs(float(np.sum(p * np.log2(p))))


def surprisal_bits(logits: ArrayLike, token_id: int) -> float:
    """How unexpected one token was: −log2 of its probability at temperature 1 (0 bits: it had to come)."""
    values = np.asarray(logits, dtype=np.float64)
    log_sum = np.log(_weights(values).sum())
    return abs(float((log_sum - (values[token_id] - values.max())) / math.log(2)))


# --- one uniform number per step


def uniform(seed: int, step: int) -> float:
    """The dice of one step: a number in [0, 1) that depends on (seed, step) and nothing else.

    Philox4x64-10 keyed with (seed, step), first word, upper 53 bits: a counter-based generator, so step 7 needs no
    steps 1 to 6, and taking the raw word keeps the numbers the same in every version of numpy. The browser repeats it.
    """
    key = np.array([seed, step], dtype=np.uint64)
    word = int(np.random.Philox(key=key).random_raw())
    return float(word >> 11) * 2.0**-53


# --- the whole chain, kept


@dataclass(frozen=True, eq=False)
class Stage:
    """The scores after one rule.

    scores: (vocab,) float64, −inf where cut. kept: (vocab,) bool. excluded_mass: the probability this rule took away,
    as a share of the distribution that the cuts started from; the stages' shares and the kept mass sum to 1.
    """

    name: StageName
    scores: Scores
    kept: NDArray[np.bool_]
    excluded_mass: float

    @property
    def n_kept(self) -> int:
        return int(np.count_nonzero(self.kept))


@dataclass(frozen=True, eq=False)
class SamplingRecord:
    """Every stage of one choice over the whole vocabulary. All arrays are read-only.

    order: (vocab,) int64, ids as they lie on the bar. probabilities: (vocab,) float64, sum 1. cumulative: (vocab,)
    float64, the bar's right edges in that order, not divided by their last value.
    """

    params: SamplingParams
    stages: tuple[Stage, ...]
    order: NDArray[np.int64]
    probabilities: Scores
    cumulative: Scores

    def stage(self, name: StageName) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def kept_mass(self) -> float:
        return 1.0 - sum(stage.excluded_mass for stage in self.stages)

    @property
    def n_survivors(self) -> int:
        """Tokens that can still be drawn: kept, and not so unlikely that their probability is 0 in float64."""
        return int(np.count_nonzero(self.probabilities))

    @property
    def survivors(self) -> NDArray[np.int64]:
        """Ids that can still be drawn, likeliest first."""
        return self.order[: self.n_survivors]

    @property
    def entropy_bits(self) -> float:
        return entropy_bits(self.probabilities)

    def draw(self, u: float) -> int:
        """The id under `u` (0 ≤ u < 1) on the bar."""
        return int(self.order[_position(self.cumulative, u * self.cumulative[-1])])

    def draw_many(self, numbers: ArrayLike) -> NDArray[np.int64]:
        """The ids under many uniform numbers at once."""
        u = np.asarray(numbers, dtype=np.float64)
        places = np.searchsorted(self.cumulative, u * self.cumulative[-1], side="right")
        ids: NDArray[np.int64] = self.order[np.minimum(places, _last_place(self.cumulative))]
        return ids


def distribution(
    logits: ArrayLike, params: SamplingParams, previous_ids: Iterable[int] = ()
) -> SamplingRecord:
    """Every stage from logits (vocab,) to probabilities. `previous_ids` (prompt and answer) matter to the penalty.

    At temperature 0 the one excluded mass is what the likeliest token left to all others at temperature 1.
    """
    raw = np.array(logits, dtype=np.float64)
    penalised = apply_repetition_penalty(raw, previous_ids, params.repetition_penalty)
    scaled = apply_temperature(penalised, params.temperature)
    top_k = apply_top_k(scaled, params.top_k)
    top_p = apply_top_p(top_k, params.top_p)
    min_p = apply_min_p(top_p, params.min_p)
    whole = softmax(penalised if params.is_greedy else scaled)
    stages: list[Stage] = [
        _stage("logits", raw, None, whole),
        _stage("repetition_penalty", penalised, None, whole),
    ]
    before = np.ones(raw.shape, dtype=np.bool_)
    named: tuple[tuple[StageName, Scores], ...] = (
        ("temperature", scaled),
        ("top_k", top_k),
        ("top_p", top_p),
        ("min_p", min_p),
    )
    for name, scores in named:
        stages.append(_stage(name, scores, before, whole))
        before = stages[-1].kept
    # Every rule keeps a stretch from the left end of this order, so survivors stay side by side on the bar.
    order = likeliest_first(penalised if params.is_greedy else scaled)
    return _record(params, tuple(stages), order, min_p)


def _stage(name: StageName, scores: Scores, before: NDArray[np.bool_] | None, whole: Scores) -> Stage:
    kept = ~np.isneginf(scores)
    excluded = 0.0 if before is None else float(whole[before & ~kept].sum())
    _freeze(scores, kept)
    return Stage(name, scores, kept, excluded)


def _record(
    params: SamplingParams, stages: tuple[Stage, ...], order: NDArray[np.int64], scores: Scores
) -> SamplingRecord:
    weights = _weights(scores)
    cumulative = np.cumsum(weights[order])
    probabilities = weights / cumulative[-1]
    _freeze(order, probabilities, cumulative)
    return SamplingRecord(params, stages, order, probabilities, cumulative)


def _freeze(*arrays: NDArray[Any]) -> None:
    for array in arrays:
        array.flags.writeable = False


def _position(cumulative: Scores, target: float) -> int:
    place = int(np.searchsorted(cumulative, target, side="right"))
    return min(place, _last_place(cumulative))


def _last_place(cumulative: Scores) -> int:
    """Where u just below 1 lands: rounding can make u × mass equal to the mass, which lies beyond every edge."""
    return int(np.searchsorted(cumulative, cumulative[-1], side="left"))


# --- the same token, fast


def choose(
    logits: ArrayLike, params: SamplingParams, step: int, previous_ids: Iterable[int] = ()
) -> tuple[int, float]:
    """(token_id, u): the token that `distribution(...).draw(u)` gives, in about a millisecond.

    Raises RunFailedError when the logits are not finite numbers.
    """
    u = uniform(params.seed, step)
    values = np.asarray(logits)
    previous = tuple(previous_ids) if params.repetition_penalty != 1 else ()
    if previous:
        values = apply_repetition_penalty(values, previous, params.repetition_penalty)
    if params.is_greedy:
        return _likeliest(values), u
    scaled = apply_temperature(values, params.temperature)
    token_id = _choose_from_head(scaled, params, u)
    if token_id is None:
        token_id = distribution(logits, params, previous).draw(u)
    return token_id, u


def _likeliest(values: NDArray[np.generic]) -> int:
    token_id = int(np.argmax(values))
    if not np.isfinite(values[token_id]):
        raise RunFailedError(reason="the scores of the model are not finite numbers")
    return token_id


def _choose_from_head(scaled: Scores, params: SamplingParams, u: float) -> int | None:
    """Try with the likeliest tokens first, then with more. None: a boundary is too close to trust rounding."""
    weights = _weights(scaled)
    for chosen in _heads(scaled, weights, params.top_k):
        head = np.flatnonzero(chosen)
        head = head[likeliest_first(scaled[head])]
        total = float(weights[head if 0 < params.top_k < weights.size else slice(None)].sum())
        bar = _cut_head(weights[head], total, params)
        if bar is not None:
            cumulative, mass = bar
            target = u * mass
            if target < cumulative[-1] - _MARGIN * total and not _is_close(cumulative, target, total):
                return int(head[_position(cumulative, target)])
    return None


def _heads(scaled: Scores, weights: Scores, top_k: int) -> Iterator[NDArray[np.bool_]]:
    """Masks of the likeliest tokens to try: exactly the survivors of top-k, or ever more of the whole."""
    if 0 < top_k < scaled.size:
        yield scaled >= np.partition(scaled, scaled.size - top_k)[scaled.size - top_k]
        return
    for smallest in _HEADS:
        yield weights >= smallest
    yield np.ones(scaled.shape, dtype=np.bool_)


def _cut_head(weights: Scores, total: float, params: SamplingParams) -> tuple[Scores, float] | None:
    """(right edges of the surviving head, mass of all survivors), or None when a cut falls beyond the head.

    weights: those of the head, likeliest first. total: the mass before the cuts by top-p and min-p.
    """
    mass = total
    cumulative = np.cumsum(weights)
    if params.top_p < 1:
        line = params.top_p * mass
        if cumulative[-1] < line or _is_close(cumulative, line, total):
            return None
        cumulative = cumulative[: int(np.searchsorted(cumulative, line, side="left")) + 1]
        mass = float(cumulative[-1])
    if params.min_p > 0:
        n_likely = int(np.count_nonzero(weights[: cumulative.size] >= params.min_p))
        if n_likely < cumulative.size:
            cumulative = cumulative[:n_likely]
            mass = float(cumulative[-1])
        elif mass > cumulative[-1] * (1 + _MARGIN):
            return None  # the cut by min-p lies beyond the head
    return cumulative, mass


def _is_close(edges: Scores, target: float, total: float) -> bool:
    return bool(np.min(np.abs(edges - target)) < _MARGIN * total)
