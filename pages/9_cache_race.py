"""What does the KV cache save? The same answer twice, with the cache and without it, both real."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core import race
from core.race import RaceRecord, RaceSummary
from pages.views import components, controls, jobs, race_data, tables
from pages.views.frame import Frame, page_frame
from pages.views.tables import Cell
from pages.views.text import seconds, size, tiny

A_THOUSAND = 1000  # the example of the formula: an answer of this length from an empty prompt


def surprise(frame: Frame, record: RaceRecord, total: RaceSummary) -> None:
    """The same words, so many times slower, for keys and values that were known already."""
    values = {"n": total.n_tokens, "ratio": f"{total.speed_up:.1f}", "computed": f"{total.without_computed:,}"}
    frame.surprise(frame.md("surprise", **values, needed=f"{total.with_computed:,}"))
    if not race_data.shown(frame.trace)[1]:
        st.caption(frame.md("recorded", prompt=record.prompt, machine=record.machine))


def measure(frame: Frame) -> None:
    """The learner's own race: a button, progress, stop; a race that is over takes the stage."""
    n_tokens = controls.select(frame, "race_n", race_data.LENGTHS)
    race_data.note_bound(frame, n_tokens)

    def draw(passes: tuple[Any, ...], over: bool) -> None:
        if over and race_data.keep(frame, frame.trace, passes):
            st.rerun()

    jobs.panel(frame, race_data.task(frame.trace, n_tokens), draw)


def question(frame: Frame, record: RaceRecord, total: RaceSummary) -> None:
    """What would an answer twice as long cost without the cache?"""
    _, twice = race.expected_counts(record.n_prompt, 2 * total.n_tokens)
    growth = twice / total.without_computed
    options = [frame.t("predict.option", times=f"{times:.1f}") for times in (2.0, growth, 2 * growth)]
    values = {"n": 2 * total.n_tokens, "half": total.n_tokens}
    why = frame.md("predict.why", **values, computed=f"{twice:,}", before=f"{total.without_computed:,}")
    frame.predict("twice", frame.t("predict.q", **values), options, 1, why)


def counts(frame: Frame, record: RaceRecord, total: RaceSummary) -> None:
    """What was counted beside what the formula says, for this race and for a thousand tokens."""
    cached, again = race.expected_counts(record.n_prompt, total.n_tokens)
    thousand = (race.computed_with_cache(A_THOUSAND), race.computed_without_cache(A_THOUSAND))
    head = [frame.t("counts.what"), *(frame.t(f"lanes.{lane}") for lane in ("with", "without"))]
    measured, computed = frame.t("kind.measured"), frame.t("kind.computed")
    rows = [
        ("counts.counted", measured, total.with_computed, total.without_computed),
        ("counts.formula", computed, cached, again),
        ("counts.dots", measured, total.dot_products, total.dot_products),
        ("counts.thousand", computed, *thousand),
        ("counts.thousand_dots", computed, thousand[1], thousand[1]),
    ]
    cells = [
        [Cell(frame.t(key, n=f"{A_THOUSAND:,}"), note=kind), Cell(f"{a:,}"), Cell(f"{b:,}")]
        for key, kind, a, b in rows
    ]
    tables.show(frame.t("counts.title"), head, cells)
    st.caption(frame.t("counts.note"))


def lengths(frame: Frame, record: RaceRecord) -> None:
    """Time per token against context, and the speed-up at each length."""
    frame.chart(race_data.chart(frame, record), key="race_chart", alt=frame.t("chart.alt"))
    groups = race.speed_up_by_length(record.passes)
    most = max((ratio for _, ratio in groups), default=1.0)
    rows = [[Cell(f"≈ {length:,}"), Cell(f"{ratio:.1f}×", bar=ratio / most)] for length, ratio in groups]
    tables.show(frame.t("lengths.title"), [frame.t("lengths.context"), frame.t("lengths.ratio")], rows)


race_data.declare()
frame = page_frame("cache_race")
with frame.errors():
    record, _ = race_data.shown(frame.trace)
    total = race.summarize(record.passes)
    surprise(frame, record, total)
    components.mount("race_lanes", race_data.component_data(frame, record), "race_lanes")
    frame.figures(
        [
            (frame.t("fig.with"), seconds(total.with_s), "measured"),
            (frame.t("fig.without"), seconds(total.without_s), "measured"),
            (frame.t("fig.ratio"), f"{total.speed_up:.1f}×", "measured"),
            (frame.t("fig.difference"), tiny(total.max_difference), "measured"),
            (
                frame.t("fig.memory"),
                size(total.with_computed * record.kv_bytes_per_token),
                "computed",
                "kv_cache",
            ),
        ]
    )
    st.markdown(frame.md("same" if total.same_tokens else "not_same", n=total.n_tokens))
    st.header(frame.t("own.title"), anchor=False)
    st.markdown(frame.md("own.lead", prompt=" ".join(frame.trace.prompt.split())[:60]))
    with frame.errors():
        measure(frame)
    left, right = st.columns(2, gap="large")
    with left:
        question(frame, record, total)
        st.header(frame.t("counts.title"), anchor=False)
        counts(frame, record, total)
        frame.myth(frame.md("belief.linear", dots=f"{total.dot_products:,}"))
    with right:
        st.header(frame.t("lengths.title"), anchor=False)
        lengths(frame, record)
        frame.myth(frame.md("belief.output", difference=tiny(total.max_difference)))
        frame.try_this(frame.md("try"))
frame.next_page()
