"""Why is decode slow when the chip is fast? Two limits of a machine, measured, and the passes under them."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.roofline import DECODE_CONTEXT, MachineLimits, PassPoint
from pages.views import components, jobs, roofline_data, roofline_parts
from pages.views.frame import Frame, page_frame
from pages.views.text import percent, seconds

KEY = "roofline_lab"


def keep_controls() -> None:
    """The learner has moved something in the lab: remember it, and put it into the link."""
    from pages.views import settings

    roofline_data.keep(settings.current(), st.session_state[KEY].controls)


def single(points: tuple[PassPoint, ...]) -> PassPoint:
    """The decode pass of one sequence."""
    return next(p for p in points if p.kind == "decode" and p.n_sequences == 1)


def surprise(frame: Frame, limits: MachineLimits, points: tuple[PassPoint, ...], is_own: bool) -> None:
    """What the arithmetic units do while one token is decoded."""
    one, most = single(points), max((p for p in points if p.kind == "decode"), key=lambda p: p.n_sequences)
    values = {"time": seconds(one.seconds), "used": percent(one.mfu(limits), 0), "n": most.n_sequences}
    frame.surprise(frame.md("surprise", **values, times=f"{most.seconds / one.seconds:.1f}"))
    if not is_own:
        st.caption(frame.md("recorded", machine=limits.machine))


def question(frame: Frame, points: tuple[PassPoint, ...]) -> None:
    """Eight sequences in one pass: how much longer does it take than one?"""
    one = single(points)
    eight = next(p for p in points if p.kind == "decode" and p.n_sequences == 8)
    truth = eight.seconds / one.seconds
    options = sorted({1.0: 1, truth: 0, 8.0: 1} if 1.15 < truth < 7 else {truth: 0, 4.0: 1, 8.0: 1})
    labels = [frame.t("predict.option", times=f"{times:.1f}") for times in options]
    rate = f"{eight.tokens_per_s / one.tokens_per_s:.1f}"
    why = frame.md("predict.why", one=seconds(one.seconds), eight=seconds(eight.seconds), rate=rate)
    frame.predict("eight", frame.t("predict.q", one=seconds(one.seconds)), labels, options.index(truth), why)


def measure(frame: Frame) -> None:
    """Measure this machine: once for all sessions, and again on request."""

    def draw(results: tuple[Any, ...], over: bool) -> None:
        if over and frame.loaded is not None and roofline_data.store(frame.loaded, results):
            st.rerun()

    jobs.panel(frame, roofline_data.task(frame.loaded), draw)


def section(frame: Frame, name: str) -> None:
    """A heading and the sentence under it."""
    st.header(frame.t(f"{name}.title"), anchor=False)
    st.markdown(frame.t(f"{name}.lead", cached=DECODE_CONTEXT))


roofline_data.declare()
frame = page_frame("roofline")
with frame.errors():
    measurement, is_own = roofline_data.shown(frame.loaded)
    limits, points = measurement
    surprise(frame, limits, points, is_own)
    with frame.errors():
        measure(frame)
    data = roofline_data.component_data(frame, measurement, is_own)
    components.mount(KEY, data, KEY, numbered="controls", on_controls_change=keep_controls)
    frame.figures(
        [
            (frame.t("fig.read"), f"{limits.read_bytes_per_s / 1e9:.1f} GB/s", "measured"),
            (frame.t("fig.flops"), f"{limits.flops_per_s / 1e9:,.0f} GFLOP/s", "measured"),
            (frame.t("fig.ridge"), f"{limits.ridge:.1f}", "computed"),
            (frame.t("fig.mbu"), percent(single(points).mbu(limits), 0), "computed"),
            (frame.t("fig.mfu"), percent(single(points).mfu(limits), 0), "computed"),
        ]
    )
    left, right = st.columns(2, gap="large")
    with left:
        question(frame, points)
        frame.myth(frame.md("belief.always"))
    with right:
        frame.try_this(frame.md("try"))
        frame.myth(frame.md("belief.busy", used=percent(single(points).mfu(limits), 0)))
    section(frame, "points")
    roofline_parts.points_table(frame, limits, points)
    section(frame, "request")
    roofline_parts.whole_request(frame, points)
with frame.errors():
    section(frame, "precision")
    roofline_parts.precision(frame, frame.trace)
with frame.errors():
    section(frame, "cards")
    roofline_parts.cards(frame)
frame.next_page()
