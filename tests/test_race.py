"""The race gives the same tokens in both lanes, and counts what it really computed."""

from __future__ import annotations

import pytest

from core.model import LoadedModel
from core.race import (
    LanePass,
    RaceSummary,
    cache_race,
    computed_with_cache,
    computed_without_cache,
    speed_up_by_length,
    summarize,
)
from core.scheduler import Scheduler


def test_a_thousand_tokens_by_the_formula() -> None:
    """LESSONS A7: n = 1,000 from an empty prompt."""
    assert computed_without_cache(1000) == 500_500 == sum(range(1, 1001))
    assert computed_with_cache(1000) == 1000


def made_up(n_tokens: int, first_context: int = 1) -> list[LanePass]:
    """A race without a model: contexts 1, 2, 3, … and times that follow them."""
    passes = []
    for i in range(n_tokens):
        context = first_context + i
        passes.append(LanePass("with", i, context, context if i == 0 else 1, 1.0, 7))
        passes.append(LanePass("without", i, context, context, float(context), 7, 1e-6 * i, True))
    return passes


def test_summary_counts_both_lanes() -> None:
    summary = summarize(made_up(1000))
    assert summary == RaceSummary(
        1000, 1000.0, 500_500.0, 1000, 500_500, 500_500, pytest.approx(999e-6), True
    )
    assert summary.speed_up == 500.5
    half_a_turn = summarize(made_up(10)[:-1])  # the second lane has not finished its last pass
    assert half_a_turn.n_tokens == 9
    assert half_a_turn.with_computed == 9


def test_dot_products_of_the_new_token_do_not_shrink() -> None:
    passes = made_up(5)
    assert [p.dot_products for p in passes if p.lane == "with"] == [1, 2, 3, 4, 5]
    assert [p.dot_products for p in passes if p.lane == "without"] == [1, 2, 3, 4, 5]
    assert [p.repeated_dot_products for p in passes if p.lane == "without"] == [0, 1, 3, 6, 10]
    assert {p.repeated_dot_products for p in passes if p.lane == "with"} == {0}


def test_speed_up_grows_with_the_context() -> None:
    assert speed_up_by_length(made_up(40), width=16) == ((8, 8.5), (24, 23.5), (40, 36.0))


def test_nothing_yet() -> None:
    assert summarize([]).speed_up == 1.0
    assert speed_up_by_length([]) == ()


def test_the_real_race(scheduler: Scheduler, live_trace, loaded: LoadedModel) -> None:
    """The default model: the tokens of the ordinary run in both lanes, logits within a thousandth."""
    prompt = [t.id for t in live_trace.prompt_tokens]
    job = scheduler.run_job("race", lambda model: cache_race(model, prompt, 8))
    passes = job.wait(240)
    answer = [t.id for t in live_trace.answer_tokens]
    assert [p.token_id for p in passes if p.lane == "with"] == answer
    assert [p.token_id for p in passes if p.lane == "without"] == answer
    summary = summarize(passes)
    assert summary.same_tokens
    assert summary.max_difference <= 1e-3
    assert summary.with_computed == len(prompt) + 7
    assert summary.without_computed == sum(len(prompt) + i for i in range(8))
    assert summary.without_s > summary.with_s


def test_the_race_is_bounded_and_can_be_stopped(scheduler: Scheduler) -> None:
    job = scheduler.run_job("race", lambda model: cache_race(model, [1] * 500, 100))
    while len(job.results) < 3:
        assert not job.is_over
    job.cancel()
    passes = job.wait(60)
    assert 3 <= len(passes) <= 26  # 13 tokens fit beside a prompt of 500
