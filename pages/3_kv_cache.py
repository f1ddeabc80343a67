"""What does it remember? The KV cache of one run, filled pass by pass."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.views import components, kv_cache_data, settings
from pages.views.frame import Frame, page_frame
from pages.views.text import escape_markdown, size, visible

settings.declare("kv", "k", str, settings.one_of("k", "v"))
settings.declare("kv_head", 0, int, settings.between(0, 255))
settings.declare(
    "kv_cell", "", kv_cache_data.parse_cell, lambda cell: kv_cache_data.parse_cell(cell) == cell
)

KEY = "kv_stage"
SINK_RATIO = 0.8  # the first column is called pale only where it is


def view_now(frame: Frame) -> dict[str, Any]:
    """Where the stage starts, from the settings: what the browser chose last, or what the link says."""
    trace, step = frame.trace, frame.settings.get("step")
    cell = kv_cache_data.cell_of(frame.settings.get("kv_cell"), trace)
    return {
        "step": step if 0 <= step < len(trace.steps) else None,
        "kv": frame.settings.get("kv"),
        "head": frame.settings.get("kv_head"),
        "cell": list(cell),
    }


def keep_view() -> None:
    """The learner chose a pass, K or V, a head or a cell: remember it, and put it into the link."""
    view, now = st.session_state[KEY].view, settings.current()
    now.set("step", -1 if view["step"] is None else view["step"])
    now.set("kv", view["kv"])
    now.set("kv_head", view["head"])
    if view["cell"]:
        now.set("kv_cell", f"{view['cell'][0] + 1}-{view['cell'][1] + 1}")
    settings.write_url(now)


@st.fragment
def stage(frame: Frame, data: dict[str, Any]) -> None:
    """Grid and cell in one fragment: choosing a cell sends that cell's numbers, and the grid stays as it is."""
    components.mount("kv_stage", data, KEY, on_view_change=keep_view)
    trace = frame.trace
    layer, position = kv_cache_data.cell_of(frame.settings.get("kv_cell"), trace)
    meta = kv_cache_data.cell_facts(trace, (layer, position))
    meta |= {"lang": frame.lang, "text": frame.t.group("vector")}
    components.mount(
        "kv_vector", {"meta": meta, **kv_cache_data.vectors(trace, (layer, position))}, "kv_vector"
    )


def surprise(frame: Frame) -> None:
    """The text and what the model keeps of it, in bytes."""
    trace = frame.trace
    text_bytes = sum(len(token.bytes) for token in trace.tokens[: trace.n_cached])
    frame.surprise(
        frame.md(
            "surprise",
            n=trace.n_cached,
            text=f"{text_bytes:,}",
            cache=size(trace.kv_bytes),
            times=f"{trace.kv_bytes / max(1, text_bytes):,.0f}",
        )
    )


def question(frame: Frame) -> None:
    """How many positions does the cache hold when the first token was just chosen?"""
    trace = frame.trace
    n, first = trace.n_prompt, escape_markdown(visible(trace.tokens[trace.n_prompt].text))
    options = [frame.t("predict.option", n=k) for k in (n - 1, n, n + 1)]
    text = {"n": n, "token": visible(trace.tokens[trace.n_prompt].text), "next": n + 1}
    frame.predict(
        "after_prefill", frame.t("predict.q", n=n, token=first), options, 1, frame.md("predict.why", **text)
    )


def try_these(frame: Frame) -> None:
    """Two experiments whose outcome is computed from this run."""
    trace = frame.trace
    n_prefill = trace.choice_steps[0].index + 1
    if n_prefill < len(trace.steps):
        first = visible(trace.tokens[trace.n_prompt].text)
        frame.try_this(
            frame.md("try.step", before=n_prefill, after=n_prefill + 1, n=trace.n_prompt, token=first)
        )
    ratios = kv_cache_data.sink_ratios(trace)
    if ratios and max(ratios) < SINK_RATIO:
        k, v = (f"{100 * ratio:.0f}" for ratio in ratios)
        frame.try_this(frame.md("try.sink", token=visible(trace.tokens[0].text), k=k, v=v))


frame = page_frame("kv_cache")
with frame.errors():
    surprise(frame)
    run = frame.run if frame.run is not None and frame.trace.origin == "live" else None
    weight = kv_cache_data.weighed(frame.trace, run.cache if run else None)
    data = kv_cache_data.grid(frame.trace, frame.trace.created + frame.trace.origin, view_now(frame), weight)
    data["meta"] |= {"lang": frame.lang, "text": frame.t.group("stage")}
    stage(frame, data)
    left, right = st.columns(2, gap="medium")
    with left:
        question(frame)
        frame.myth(frame.md("belief.choosing"))
    with right:
        frame.myth(frame.md("belief.text"))
        try_these(frame)
frame.next_page()
