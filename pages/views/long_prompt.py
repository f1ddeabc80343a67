"""The measurement “does a long prompt slow the answer after it starts?”: start, progress, stop, result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from core.prompt_effect import PromptEffect, RecordedEffect, effects, expected_slowdown, n_passes, slower_by
from pages.views import charts, live, tables
from pages.views.cache import RUNS
from pages.views.tables import Cell
from pages.views.text import seconds, size

if TYPE_CHECKING:
    from pages.views.frame import Frame

_JOB = "otat_prompt_effect"
POLL_S = 0.4


def _start(frame: Frame) -> None:
    from core.prompt_effect import measure_prompt_effect

    with frame.errors():
        st.session_state[_JOB] = live.run_job("prompt_effect", measure_prompt_effect())


def _stop() -> None:
    st.session_state[_JOB].cancel()


def section(frame: Frame) -> None:
    """The whole section. While the measurement runs, a fragment looks at it and lets everything else
    alone."""
    job = st.session_state.get(_JOB)
    active = job is not None and not job.is_over
    if frame.loaded is None:
        tables.note(frame.t("model.needed"))
        _recorded(frame)
        return
    if not active:
        # Pressed in the script's own run, not in a callback, so that a refusal is shown where it happened.
        if st.button(
            frame.t("long.again" if job else "long.start"), icon=":material/timer:", key="long_start"
        ):
            _start(frame)
            active = st.session_state.get(_JOB) is not job
        tables.note(frame.t("long.what"))
    if st.session_state.get(_JOB) is None:
        _recorded(frame)
    st.fragment(_watch, run_every=POLL_S if active else None)(frame, active)


def _watch(frame: Frame, was_active: bool) -> None:
    job = st.session_state.get(_JOB)
    live.jobs_go_on()
    if job is None:
        return
    if was_active and job.is_over:
        st.rerun()
    if not job.is_over:
        done, all_passes = len(job.results), n_passes()
        st.progress(min(1.0, done / all_passes), frame.t("long.progress", n=done, all=all_passes))
        st.button(frame.t("long.stop"), key="long_stop", on_click=_stop)
    if job.error is not None:
        st.error(frame.explain(job.error), icon=":material/info:")
    loaded = frame.loaded
    if loaded is not None:
        rows = effects(job.results, loaded.spec.kv_bytes_per_token)
        result(frame, rows, loaded.spec.weight_bytes, job.is_over)


def _recorded(frame: Frame) -> None:
    """A measurement made earlier, elsewhere, and said to be so."""
    made = RecordedEffect.load(RUNS / "prompt_effect.json")
    result(frame, made.rows, made.weight_bytes, True)
    tables.note(frame.t("long.recorded", machine=made.machine, model=made.model))


def result(frame: Frame, rows: tuple[PromptEffect, ...], weight_bytes: int, is_over: bool) -> None:
    """A table that grows while it is measured; the sentence and the chart when there is something to
    compare."""
    if not rows:
        return
    times = slower_by(rows)
    if times is not None and is_over:
        expected = expected_slowdown(rows, weight_bytes) or 1.0
        values: dict[str, Any] = {
            "short": rows[0].n_prompt, "long": f"{rows[-1].n_prompt:,}",
            "prefill": f"{times[0]:.1f}", "token": f"{times[1]:.2f}", "expected": f"{expected:.2f}",
        }  # fmt: skip
        frame.surprise(frame.md("long.surprise", **values))
    longest = max(row.prefill_s for row in rows)
    slowest = max(row.median_itl_s for row in rows)
    head = [frame.t(f"long.{name}") for name in ("prompt", "prefill", "itl", "cache")]
    cells = [
        [
            Cell(frame.t("long.tokens", n=f"{row.n_prompt:,}"), css="nowrap"),
            Cell(seconds(row.prefill_s), bar=row.prefill_s / longest, css="first"),
            Cell(seconds(row.median_itl_s), bar=row.median_itl_s / slowest),
            Cell(size(row.kv_bytes)),
        ]
        for row in rows
    ]
    tables.show(frame.t("long.title"), head, cells)
    if times is not None and is_over:
        chart(frame, rows)


def chart(frame: Frame, rows: tuple[PromptEffect, ...]) -> None:
    """Both costs as multiples of the shortest prompt's, on one axis."""
    figure = charts.figure(frame.dark, x=frame.t("long.axis_x"), y=frame.t("long.axis_y"), height=280)
    lengths = [row.n_prompt for row in rows]
    for name, values, label in (
        ("prefill", [row.prefill_s / rows[0].prefill_s for row in rows], frame.t("long.line_prefill")),
        ("decode", [row.median_itl_s / rows[0].median_itl_s for row in rows], frame.t("long.line_token")),
    ):
        figure.add_scatter(
            x=lengths, y=values, name=label, mode="lines+markers", line_color=charts.color(name, frame.dark),
            line_dash=charts.DASH[name], marker_symbol=charts.MARKER[name], marker_size=9,
        )  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    frame.chart(figure, key="long_chart", alt=frame.t("long.alt"))
