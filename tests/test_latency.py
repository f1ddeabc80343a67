"""Latency figures against examples worked by hand, against numpy, and the table of tools against its own words."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import latency
from core.errors import InvalidSettingError
from core.latency import Arrival, Events, Request, events_from_times, request_of, summarize

# Four tokens at 0.50, 0.60, 0.72 and 0.81 s: TTFT 0.50, E2E 0.81, gaps 0.10, 0.12, 0.09.
FOUR = events_from_times((0.50, 0.60, 0.72, 0.81))
# The same, but 0.20 s of the wait were the queue.
QUEUED = events_from_times((0.50, 0.60, 0.72, 0.81), admitted_s=0.20)

sorted_times = st.lists(
    st.floats(0, 1e4, allow_nan=False, allow_infinity=False), min_size=2, max_size=40
).map(sorted)


def test_the_worked_example_of_four_tokens() -> None:
    figures = summarize(FOUR)
    assert figures.ttft_s == pytest.approx(0.50)
    assert figures.e2e_s == pytest.approx(0.81)
    assert figures.gaps_s == pytest.approx((0.10, 0.12, 0.09))
    assert figures.mean_itl_s == pytest.approx(0.1033, abs=5e-5)
    assert figures.mean_itl_s == pytest.approx((0.81 - 0.50) / 3)
    assert figures.tpot_s == pytest.approx((0.81 - 0.50) / 3)
    assert figures.median_itl_s == pytest.approx(0.10)
    assert figures.p95_itl_s == pytest.approx(0.10 + 0.9 * 0.02)  # place 1.9 of (0.09, 0.10, 0.12)
    assert figures.tokens_per_s == pytest.approx(4 / 0.81)
    assert figures.decode_tokens_per_s == pytest.approx(3 / 0.31)


def test_ttft_holds_the_queue_the_prefill_and_the_network() -> None:
    split = summarize(QUEUED, network_s=0.05).split
    assert split is not None
    assert (split.queue_s, split.prefill_s, split.network_s) == pytest.approx((0.20, 0.30, 0.05))
    assert split.total_s == pytest.approx(summarize(QUEUED, network_s=0.05).ttft_s)


def test_a_network_delay_moves_ttft_and_e2e_but_no_gap() -> None:
    near, far = summarize(FOUR), summarize(FOUR, network_s=0.2)
    assert far.ttft_s == pytest.approx(near.ttft_s + 0.2)
    assert far.e2e_s == pytest.approx(near.e2e_s + 0.2)
    assert far.gaps_s == near.gaps_s
    assert far.tpot_s == near.tpot_s


def test_one_token_has_a_ttft_but_nothing_between() -> None:
    figures = summarize(events_from_times((0.5,)))
    assert (figures.ttft_s, figures.e2e_s, figures.gaps_s) == (0.5, 0.5, ())
    assert figures.tpot_s is figures.mean_itl_s is figures.median_itl_s is figures.p95_itl_s is None
    assert figures.decode_tokens_per_s is None
    assert figures.tokens_per_s == pytest.approx(2.0)


def test_no_token_has_no_figures_at_all() -> None:
    figures = summarize(events_from_times(()), network_s=0.1)
    assert figures.n_tokens == 0
    assert figures.ttft_s is figures.e2e_s is figures.tpot_s is figures.tokens_per_s is figures.split is None


def test_tokens_of_one_pass_may_share_a_moment() -> None:
    """Speculative decoding emits several tokens in one pass; a gap of 0 is real, a speed of infinity is not."""
    figures = summarize(events_from_times((0.5, 0.5)))
    assert figures.gaps_s == (0.0,)
    assert figures.decode_tokens_per_s is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: events_from_times((0.6, 0.5)),
        lambda: events_from_times((-0.1, 0.5)),
        lambda: events_from_times((0.1, math.nan)),
        lambda: events_from_times((0.1, math.inf)),
        lambda: events_from_times(("0.1",)),
        lambda: Events(submitted_s=1.0, admitted_s=0.5, token_s=(2.0,)),
        lambda: Events(submitted_s=0.0, admitted_s=0.5, token_s=(0.4,)),
        lambda: Events(submitted_s=-1.0, admitted_s=0.5, token_s=()),
        lambda: summarize(FOUR, network_s=-0.1),
        lambda: summarize(FOUR, network_s=math.nan),
        lambda: latency.percentile((1.0,), 101),
        lambda: request_of(FOUR, tokens_per_message=0),
        lambda: Request(FOUR, (Arrival(0.5, 0),)),
        lambda: Request(FOUR, (Arrival(0.5, 1), Arrival(0.4, 1))),
    ],
)
def test_impossible_times_are_refused_in_words(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidSettingError, match="Choose"):
        make()


@given(sorted_times, st.floats(0, 100))
def test_percentiles_agree_with_numpy(values: list[float], percent: float) -> None:
    assert latency.percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


@given(sorted_times)
def test_e2e_is_ttft_plus_the_gaps(times: list[float]) -> None:
    figures = summarize(events_from_times(times))
    assert figures.e2e_s == pytest.approx(figures.ttft_s + math.fsum(figures.gaps_s))
    assert figures.tpot_s == pytest.approx(figures.mean_itl_s)


# ---- tools ----

PER_TOKEN = [request_of(FOUR)]
IN_PAIRS = [request_of(FOUR, tokens_per_message=2)]  # messages at 0.60 and 0.81, two tokens each
MIXED = [request_of(FOUR), request_of(events_from_times((1.0, 2.0)))]  # a second, short and slow answer


@pytest.mark.parametrize(
    ("name", "per_token", "in_pairs", "mixed"),
    [
        ("client_ttft", 0.50, 0.60, (0.50 + 1.0) / 2),
        ("scheduled_ttft", 0.50, 0.50, (0.50 + 1.0) / 2),
        ("after_first", 0.31 / 3, 0.21 / 3, (0.31 / 3 + 1.0) / 2),
        ("message_gaps", 0.31 / 3, 0.21, (0.31 + 1.0) / 4),
        ("shared_gaps", 0.31 / 3, 0.105, (0.31 + 1.0) / 4),
        ("divided_gaps", 0.31 / 3, 0.105, (0.31 + 1.0) / 4),
        ("with_first", 0.81 / 4, 0.81 / 4, (0.81 / 4 + 1.0) / 2),
        ("with_first_per_token", 0.81 / 4, 0.81 / 4, 2.81 / 6),
        ("after_first_per_token", 0.31 / 3, 0.21 / 3, 1.31 / 4),
        ("inference_per_token", 0.81 / 4, 0.81 / 4, (0.81 / 4 + 1.0) / 2),
        ("decode_per_gap", 0.31 / 3, 0.31 / 3, (0.31 / 3 + 1.0) / 2),
        ("decode_per_token", 0.31 / 4, 0.31 / 4, (0.31 / 4 + 0.5) / 2),
    ],
)
def test_each_definition_on_hand_worked_requests(
    name: str, per_token: float, in_pairs: float, mixed: float
) -> None:
    report = latency.TOOLS[name]
    assert report(PER_TOKEN) == pytest.approx(per_token)
    assert report(IN_PAIRS) == pytest.approx(in_pairs)
    assert report(MIXED) == pytest.approx(mixed)


def test_uneven_messages_tell_the_two_ways_of_dividing_apart() -> None:
    """Gaps 0.3 s with 3 tokens and 0.2 s with 1: per token (3 x 0.1 + 0.2) / 4, per message (0.1 + 0.2) / 2."""
    events = events_from_times((1.0, 1.1, 1.2, 1.3, 1.5))
    request = Request(events, (Arrival(1.0, 1), Arrival(1.3, 3), Arrival(1.5, 1)))
    assert latency.shared_gaps([request]) == pytest.approx(0.125)
    assert latency.divided_gaps([request]) == pytest.approx(0.15)
    assert latency.message_gaps([request]) == pytest.approx(0.25)


def test_the_queue_counts_only_where_the_definition_says_so() -> None:
    requests = [request_of(QUEUED)]
    assert latency.scheduled_ttft(requests) == pytest.approx(0.30)
    assert latency.client_ttft(requests) == pytest.approx(0.50)
    assert latency.inference_per_token(requests) == pytest.approx(0.61 / 4)


@pytest.mark.parametrize("name", sorted(latency.TOOLS))
def test_no_definition_fails_on_one_or_no_token(name: str) -> None:
    nothing = request_of(events_from_times(()))
    one = request_of(events_from_times((0.5,)))
    assert latency.TOOLS[name]([]) is None
    assert latency.TOOLS[name]([nothing]) is None
    value = latency.TOOLS[name]([one])
    assert value is None or (math.isfinite(value) and value >= 0)


def test_first_tokens_keeps_the_times_of_the_longer_run() -> None:
    short = latency.first_tokens(QUEUED, 2)
    assert short.token_s == (0.50, 0.60)
    assert short.admitted_s == QUEUED.admitted_s


def test_the_table_of_tools_is_complete_and_sourced() -> None:
    rows = latency.definitions()
    assert {row.function for row in rows} == set(latency.TOOLS)
    assert {row.first_token for row in rows} == {"with", "without", "only"}
    assert {row.weight for row in rows} == {"request", "token", "message"}
    assert {row.clock for row in rows} == {"client", "server"}
    assert len({(row.tool, row.figure) for row in rows}) == len(rows)
    for row in rows:
        assert row.source.startswith("https://")
        assert row.read_in
        assert row.formula


def test_the_words_of_each_row_fit_what_its_function_does() -> None:
    """Change only the first token's time: exactly the definitions 'with' the first token move with the wait before it,
    and only the message ones notice bundling."""
    early, late = FOUR, events_from_times([t + 10 for t in FOUR.token_s])
    for row in latency.definitions():
        before, after = row.report([request_of(early)]), row.report([request_of(late)])
        assert (after - before > 1) == (row.first_token in {"with", "only"}), row
        if row.clock == "server":
            assert row.report(IN_PAIRS) == pytest.approx(before), row
        if row.weight == "message" and "its tokens" not in row.formula:
            assert row.report(IN_PAIRS) == pytest.approx(0.21), row


def test_the_same_run_gives_different_answers_to_the_same_question() -> None:
    """Why the table exists: for the worked example, 'time per token' runs from 78 to 203 ms."""
    per_token = [
        row.report(PER_TOKEN) for row in latency.definitions() if row.first_token in {"with", "without"}
    ]
    assert min(per_token) == pytest.approx(0.0775)
    assert max(per_token) == pytest.approx(0.2025)
