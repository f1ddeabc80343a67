"""What happens before the first word? The prefill of one run, played, looked into, measured and compared."""

from __future__ import annotations

import statistics
from pathlib import Path

import streamlit as st

from pages.views import prefill_attention, prefill_lens, prefill_measure, prefill_table, prefill_wave
from pages.views.frame import Frame, page_frame
from pages.views.text import escape_markdown, seconds

STYLE = Path(__file__).resolve().parents[1] / "assets" / "prefill.css"


def surprise(frame: Frame) -> None:
    """Where attention goes, or, where that is nothing special, what reading took."""
    trace = frame.trace
    if not prefill_attention.surprise(frame, trace):
        took = seconds(sum(step.duration_s for step in prefill_wave.prefill_steps(trace)))
        frame.surprise(frame.md("surprise_time", n=trace.n_prompt, took=took, n_layers=trace.spec.n_layers))


def multiples(ratio: float, n: int) -> tuple[list[float], int]:
    """Three answers to “how many times one token's pass?”, smallest first, and which is right: 1, n, and the truth."""
    wrong = [x for x in (1.0, float(n), n / 2, n / 4, 2.0 * n) if not 0.6 < x / ratio < 1.6]
    options = sorted([*wrong[:2], ratio])
    return options, options.index(ratio)


def question(frame: Frame) -> None:
    """How long did reading take, in passes of one token? For the shortest prompts: what runs side by side?"""
    trace = frame.trace
    reading, writing = prefill_wave.prefill_steps(trace), prefill_wave.decode_steps(trace)
    took = sum(step.duration_s for step in reading)
    if trace.n_prompt < 8 or not writing:
        options = [frame.t(f"predict.same_{k}") for k in ("positions", "layers", "both")]
        why = frame.md("predict.same_why", n=trace.n_prompt, n_layers=trace.spec.n_layers, took=seconds(took))
        frame.predict("same_time", frame.t("predict.same"), options, 0, why)
        return
    one = statistics.median(step.duration_s for step in writing)
    ratios, answer = multiples(took / one, trace.n_prompt)
    options = [
        escape_markdown(
            frame.t(
                "predict.option", time=seconds(one * r), times=f"{round(r, 1):g}" if r < 9.95 else f"{r:.0f}"
            )
        )
        for r in ratios
    ]
    why = frame.md(
        "predict.why", n=trace.n_prompt, per_token=seconds(took / trace.n_prompt), one=seconds(one)
    )
    frame.predict("reading", frame.t("predict.q", n=trace.n_prompt, one=seconds(one)), options, answer, why)


def section(frame: Frame, name: str) -> None:
    """A heading and one sentence under it."""
    st.header(frame.t(f"section.{name}"), anchor=False)
    st.markdown(frame.t(f"section.{name}_lead", n_layers=frame.trace.spec.n_layers, n=frame.trace.n_prompt))


def wave(frame: Frame) -> None:
    """The wave, and beside it the two beliefs that it contradicts."""
    section(frame, "wave")
    prefill_wave.show(frame, frame.trace)
    for column, text in zip(st.columns(2, gap="medium"), prefill_wave.myths(frame, frame.trace), strict=True):
        with column:
            frame.myth(text)


prefill_attention.declare()
prefill_measure.declare()
frame = page_frame("prefill")
st.html(f"<style>{STYLE.read_text(encoding='utf-8')}</style>")
with frame.errors():
    surprise(frame)
    question(frame)
    wave(frame)
with frame.errors():
    section(frame, "attention")
    prefill_attention.show(frame, frame.trace)
with frame.errors():
    section(frame, "race")
    prefill_measure.race(frame, frame.trace)
with frame.errors():
    section(frame, "cost")
    prefill_measure.cost(frame, frame.trace)
with frame.errors():
    section(frame, "table")
    prefill_table.show(frame, frame.trace)
with frame.errors():
    section(frame, "lens")
    prefill_lens.show(frame, frame.trace)
frame.next_page()
