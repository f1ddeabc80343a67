"""Sampling against transformers' processors, against itself done slowly, and against the laws of probability."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import sampling
from core.errors import InvalidSettingError, RunFailedError
from core.sampling import SamplingParams, choose, distribution, entropy_bits, softmax, surprisal_bits, uniform

VOCAB = 49_152
UNIFORMS = [0.011546754286331562, 0.8133540609793564, 0.3035680343067586, 0.730826231312497]


def random_scores(rng: np.random.Generator, n: int, *, ties: bool) -> np.ndarray:
    """Scores like a model's (float32, some far above the rest), or so coarse that many are equal."""
    scores = rng.normal(0, 3, n) + 6 * (rng.random(n) < 0.01)
    return (np.round(scores) if ties else scores).astype(np.float32)


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 5.01),
        ("temperature", 1e-9),
        ("temperature", float("nan")),
        ("temperature", "warm"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("seed", -1),
        ("seed", 2**32),
        ("seed", 1.0),
        ("max_tokens", 0),
        ("max_tokens", 10**9),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.values["name"] == name
    assert name in str(caught.value)


def test_the_ends_of_every_range_are_allowed() -> None:
    SamplingParams(
        temperature=5, top_k=0, top_p=1e-12, min_p=1, repetition_penalty=10, seed=2**32 - 1, max_tokens=1
    )
    SamplingParams(
        temperature=0.01, top_k=10**6, top_p=1, min_p=0, repetition_penalty=0.1, seed=0, max_tokens=8192
    )
    assert SamplingParams().is_greedy


# --- the rules against transformers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processors():
    return pytest.importorskip("transformers.generation.logits_process")


def through(processor, scores: np.ndarray, previous: list[int] | None = None) -> np.ndarray:
    import torch

    ids = torch.tensor([previous or [0]])
    out = processor(ids, torch.tensor(scores, dtype=torch.float64)[None])
    return out[0].numpy()


CASES = list(itertools.product(range(20), [3, 50, 4000], [False, True]))


@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.7, 1.0, 1.3, 2.0, 5.0])
def test_temperature_equals_transformers(processors, temperature: float) -> None:
    for seed, n, ties in CASES:
        scores = random_scores(np.random.default_rng(seed), n, ties=ties).astype(np.float64)
        expected = through(processors.TemperatureLogitsWarper(temperature), scores)
        np.testing.assert_array_equal(sampling.apply_temperature(scores, temperature), expected)


@pytest.mark.parametrize("top_k", [1, 2, 3, 7, 50, 3999, 4000, 10**6])
def test_top_k_equals_transformers_ties_included(processors, top_k: int) -> None:
    for seed, n, ties in CASES:
        scores = random_scores(np.random.default_rng(seed), n, ties=ties).astype(np.float64)
        expected = through(processors.TopKLogitsWarper(top_k), scores)
        np.testing.assert_array_equal(sampling.apply_top_k(scores, top_k), expected)


@pytest.mark.parametrize("top_p", [1e-9, 0.01, 0.25, 0.5, 0.9, 0.95, 0.999999])
def test_top_p_equals_transformers_without_ties(processors, top_p: float) -> None:
    for seed, n, _ in CASES:
        scores = random_scores(np.random.default_rng(seed), n, ties=False).astype(np.float64)
        expected = through(processors.TopPLogitsWarper(top_p), scores)
        np.testing.assert_array_equal(sampling.apply_top_p(scores, top_p), expected)


@pytest.mark.parametrize("top_p", [0.01, 0.25, 0.55, 0.9, 0.95])
def test_top_p_differs_from_transformers_only_in_which_of_equals_it_keeps(processors, top_p: float) -> None:
    """transformers sorts equals at random; we keep the lower ids. Both keep as many, with the same scores."""
    differ = 0
    for seed, n, _ in CASES:
        scores = random_scores(np.random.default_rng(seed), n, ties=True).astype(np.float64)
        ours = sampling.apply_top_p(scores, top_p)
        theirs = through(processors.TopPLogitsWarper(top_p), scores)
        np.testing.assert_array_equal(np.sort(ours), np.sort(theirs))
        differ += not np.array_equal(ours, theirs)
        last = ours[~np.isneginf(ours)].min()
        kept_equals = np.flatnonzero(ours == last)
        np.testing.assert_array_equal(kept_equals, np.flatnonzero(scores == last)[: kept_equals.size])
    assert differ  # otherwise this rule would not be needed


@pytest.mark.parametrize("min_p", [0.0001, 0.05, 0.1, 0.5, 0.99, 1.0])
def test_min_p_equals_transformers(processors, min_p: float) -> None:
    for seed, n, ties in CASES:
        scores = random_scores(np.random.default_rng(seed), n, ties=ties).astype(np.float64)
        theirs = through(processors.MinPLogitsWarper(min_p), scores)
        ours = sampling.apply_min_p(scores, min_p)
        if min_p < 1:
            np.testing.assert_array_equal(ours, theirs)
        else:  # at 1 transformers loses tokens equal to the likeliest one to rounding; we keep them all
            np.testing.assert_array_equal(
                np.flatnonzero(~np.isneginf(ours)), np.flatnonzero(scores == scores.max())
            )


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.1, 1.3, 2.0, 10.0])
def test_repetition_penalty_equals_transformers(processors, penalty: float) -> None:
    for seed, n, ties in CASES:
        rng = np.random.default_rng(seed)
        scores = random_scores(rng, n, ties=ties).astype(np.float64)
        previous = rng.integers(0, n, 40).tolist()  # with repeats
        expected = through(processors.RepetitionPenaltyLogitsProcessor(penalty), scores, previous)
        np.testing.assert_array_equal(sampling.apply_repetition_penalty(scores, previous, penalty), expected)


def test_the_chain_equals_transformers_chain(processors) -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        scores = random_scores(rng, 2000, ties=False)
        previous = rng.integers(0, 2000, 30).tolist()
        params = random_params(rng)
        if params.is_greedy:
            continue
        expected = scores.astype(np.float64)
        for rule in (
            processors.RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
            processors.TemperatureLogitsWarper(float(params.temperature)),
            processors.TopKLogitsWarper(params.top_k or 2000),
            processors.TopPLogitsWarper(params.top_p) if params.top_p < 1 else None,
            processors.MinPLogitsWarper(params.min_p),
        ):
            expected = expected if rule is None else through(rule, expected, previous)
        record = distribution(scores, params, previous)
        np.testing.assert_array_equal(record.stage("min_p").scores, expected)
        np.testing.assert_allclose(record.probabilities, softmax(expected), atol=1e-12)


def test_rules_do_not_change_what_they_are_given() -> None:
    scores = random_scores(np.random.default_rng(0), 50, ties=True).astype(np.float64)
    before = scores.copy()
    record = distribution(scores, SamplingParams(temperature=1, top_k=3, top_p=0.5, min_p=0.1), [1])
    np.testing.assert_array_equal(scores, before)
    scores[0] = 99  # still writable, and the record did not keep it
    assert record.stage("logits").scores[0] == before[0]
    with pytest.raises(ValueError, match="read-only"):
        record.probabilities[0] = 1


# --- the record -----------------------------------------------------------------------------------------------------


def random_params(rng: np.random.Generator) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0, 0.01, 0.2, 0.7, 1.0, 1.5, 2.0, 5.0])),
        top_k=int(rng.choice([0, 0, 1, 2, 5, 40, 1000])),
        top_p=float(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0, 1.0])),
        min_p=float(rng.choice([0, 0, 0.01, 0.1, 0.5, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 1.1, 1.3, 0.8])),
        seed=int(rng.integers(0, 2**32)),
    )


def test_a_record_keeps_every_stage_and_loses_nothing() -> None:
    for seed in range(300):
        rng = np.random.default_rng(seed)
        n = int(rng.choice([2, 17, 3000]))
        record = distribution(
            random_scores(rng, n, ties=bool(seed % 2)), random_params(rng), rng.integers(0, n, 9)
        )
        assert [s.name for s in record.stages] == [
            "logits", "repetition_penalty", "temperature", "top_k", "top_p", "min_p",
        ]  # fmt: skip
        assert record.probabilities.sum() == pytest.approx(1, abs=1e-12)
        assert all(stage.scores.shape == (n,) for stage in record.stages)
        kept = [stage.n_kept for stage in record.stages]
        assert kept == sorted(kept, reverse=True)  # a rule never brings a token back
        assert 1 <= record.n_survivors <= kept[-1]
        final = record.stage("min_p").kept
        assert not record.probabilities[~final].any()
        whole = softmax(
            record.stage("repetition_penalty" if record.params.is_greedy else "temperature").scores
        )
        assert record.kept_mass == pytest.approx(whole[final].sum(), abs=1e-9)
        assert np.all(np.diff(record.probabilities[record.order]) <= 0)
        np.testing.assert_array_equal(np.sort(record.order), np.arange(n))


def test_neutral_settings_change_nothing() -> None:
    scores = random_scores(np.random.default_rng(1), 5000, ties=False)
    record = distribution(scores, SamplingParams(temperature=1), [1, 2, 3])
    np.testing.assert_allclose(record.probabilities, softmax(scores), rtol=1e-12)
    assert record.kept_mass == 1
    assert record.n_survivors == 5000


def test_temperature_zero_is_argmax_and_the_lowest_id_of_equals() -> None:
    scores = np.array([1, 7, 7, 3, 7], dtype=np.float32)
    record = distribution(scores, SamplingParams(temperature=0))
    assert record.survivors.tolist() == [1]
    assert record.draw(0.999) == 1
    assert choose(scores, SamplingParams(), 0)[0] == 1
    assert record.stage("temperature").excluded_mass == pytest.approx(1 - softmax(scores)[1])
    assert record.order.tolist() == [1, 2, 4, 3, 0]


def test_temperature_never_changes_the_ranking() -> None:
    scores = random_scores(np.random.default_rng(2), 4000, ties=False)
    orders = [distribution(scores, SamplingParams(temperature=t)).order for t in (0.01, 0.5, 1.0, 2.0, 5.0)]
    for order in orders[1:]:
        np.testing.assert_array_equal(order, orders[0])


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60),
    st.floats(1e-6, 1, exclude_max=True),
    st.floats(0.1, 5),
)
@settings(max_examples=300, deadline=None)
def test_the_nucleus_keeps_the_token_that_crosses_p_and_no_more(scores, top_p, temperature) -> None:
    record = distribution(
        np.array(scores, dtype=np.float32), SamplingParams(temperature=temperature, top_p=top_p)
    )
    whole = softmax(record.stage("temperature").scores)[record.order]
    n = record.stage("top_p").n_kept
    assert whole[:n].sum() >= top_p - 1e-9
    assert whole[: n - 1].sum() < top_p + 1e-9


def test_a_nucleus_that_ends_exactly_on_a_token() -> None:
    """Four equal tokens, p = 0.5: two reach it, the third is not needed (transformers agrees)."""
    record = distribution(np.zeros(4), SamplingParams(temperature=1, top_p=0.5))
    assert record.survivors.tolist() == [0, 1]


def test_scores_that_are_not_numbers_are_refused() -> None:
    for bad in (np.nan, np.inf):
        scores = np.array([1.0, bad, 2.0])
        for params in (SamplingParams(), SamplingParams(temperature=1)):
            with pytest.raises(RunFailedError):
                choose(scores, params, 0)
            with pytest.raises(RunFailedError):
                distribution(scores, params)


# --- the dice -------------------------------------------------------------------------------------------------------


def test_uniform_numbers_are_fixed_for_ever() -> None:
    """Written down once: a link shared last year must still roll the same dice."""
    assert [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(2**32 - 1, 300)] == UNIFORMS


def test_uniform_numbers_fill_the_interval_in_both_directions() -> None:
    stats = pytest.importorskip("scipy.stats")
    for numbers in (
        [uniform(seed, 11) for seed in range(20_000)],
        [uniform(5, step) for step in range(20_000)],
    ):
        assert min(numbers) >= 0
        assert max(numbers) < 1
        assert stats.kstest(numbers, "uniform").pvalue > 0.001
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1),
        SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
        SamplingParams(temperature=1.5, min_p=0.05, repetition_penalty=1.3),
    ],
    ids=["plain", "cut", "hot"],
)
def test_a_hundred_thousand_draws_fit_the_distribution(params: SamplingParams) -> None:
    stats = pytest.importorskip("scipy.stats")
    record = distribution(random_scores(np.random.default_rng(3), 300, ties=False), params, [1, 2, 3, 4])
    numbers = np.array([uniform(seed, 4) for seed in range(100_000)])
    counts = np.bincount(record.draw_many(numbers), minlength=300)
    expected = record.probabilities * 100_000
    often = expected >= 5  # rare tokens are counted together, as the test demands
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    if wanted[-1] == 0:
        assert observed[-1] == 0
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, wanted * (observed.sum() / wanted.sum())).pvalue > 0.001
    assert [record.draw(u) for u in numbers[:500]] == record.draw_many(numbers[:500]).tolist()


# --- the fast path --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [2, 60, 3000])
def test_choose_equals_distribution_and_draw(n: int, ties: bool) -> None:
    for seed in range(400):
        rng = np.random.default_rng([seed, n, ties])
        scores = random_scores(rng, n, ties=ties) * float(rng.choice([0.01, 1, 1, 4]))
        params = random_params(rng)
        previous = rng.integers(0, n, 12).tolist()
        token_id, u = choose(scores, params, seed, previous)
        assert u == uniform(params.seed, seed)
        assert token_id == distribution(scores, params, previous).draw(u)


def test_choose_equals_distribution_at_the_real_size() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        scores = random_scores(rng, VOCAB, ties=bool(seed % 3 == 0))
        params = random_params(rng)
        token_id, u = choose(scores, params, 7, [5, 6, 7])
        assert token_id == distribution(scores, params, [5, 6, 7]).draw(u)


def test_choose_falls_back_on_the_whole_sort_when_the_head_cannot_decide(monkeypatch) -> None:
    """All scores equal: every boundary is exact, and the head is everything."""
    scores = np.zeros(VOCAB, dtype=np.float32)
    token_id, u = choose(scores, SamplingParams(temperature=1, seed=3), 0)
    assert token_id == int(u * VOCAB)
    calls: list[int] = []
    whole = sampling.distribution
    monkeypatch.setattr(sampling, "distribution", lambda *a: calls.append(1) or whole(*a))
    choose(
        random_scores(np.random.default_rng(0), VOCAB, ties=False),
        SamplingParams(temperature=0.7, top_p=0.9),
        0,
    )
    assert not calls  # the ordinary case does not sort everything


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(temperature=1, top_k=40)],
)
def test_choosing_is_fast(params: SamplingParams) -> None:
    """About a millisecond on the reference machine; the bound is loose because other tests share the cores."""
    scores = random_scores(np.random.default_rng(0), VOCAB, ties=False)
    times = []
    for step in range(40):
        start = time.perf_counter()
        choose(scores, params, step)
        times.append(time.perf_counter() - start)
    print(f"choose: median {1e3 * sorted(times)[20]:.2f} ms")
    assert sorted(times)[20] < 0.01


# --- measures -------------------------------------------------------------------------------------------------------


def test_entropy_and_surprisal_by_hand() -> None:
    assert entropy_bits([1.0, 0.0]) == 0
    assert entropy_bits([0.5, 0.5]) == pytest.approx(1)
    assert entropy_bits(np.full(1024, 1 / 1024)) == pytest.approx(10)
    logits = np.log([0.5, 0.25, 0.25])
    assert surprisal_bits(logits, 0) == pytest.approx(1)
    assert surprisal_bits(logits, 2) == pytest.approx(2)
    assert surprisal_bits(np.array([300.0, 0.0]), 0) == 0
