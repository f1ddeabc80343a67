"""What the cache-race page shows: a race (the learner's own, or the recorded one), its lanes and its figures."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from core import race
from core.machine import processor_name
from core.race import LanePass, RaceRecord
from pages.views import charts, prefill_wave
from pages.views import settings as settings_module
from pages.views.cache import RUNS
from pages.views.jobs import Task

if TYPE_CHECKING:
    from core.trace import Trace
    from pages.views.frame import Frame

LENGTHS = (16, 32, 64, 128, 256)
_KEY = "otat_race_record"


def declare() -> None:
    """How many tokens are raced for, in the URL."""
    settings_module.declare("race_n", 32, int, lambda n: n in LENGTHS)


@functools.lru_cache(maxsize=2)
def _load(path: Path, mtime_ns: int) -> RaceRecord:
    return RaceRecord.load(path)


def recorded() -> RaceRecord:
    """The race that comes with the project. Raises TraceFileError."""
    path = RUNS / "gravity.race.json"
    return _load(path, path.stat().st_mtime_ns if path.exists() else 0)


def shown(trace: Trace) -> tuple[RaceRecord, bool]:
    """The race to show, and whether it is the learner's own."""
    name, record = st.session_state.get(_KEY, ("", None))
    return (
        (record, True) if record is not None and name == prefill_wave.run_name(trace) else (recorded(), False)
    )


def keep(frame: Frame, trace: Trace, passes: tuple[LanePass, ...]) -> bool:
    """Make a race that is over the one that is shown. True if that is new."""
    name, record = st.session_state.get(_KEY, ("", None))
    if frame.loaded is None or len(passes) < 4:
        return False
    new = RaceRecord.of(frame.loaded, trace.prompt, passes[0].n_context, processor_name(), passes)
    if name == prefill_wave.run_name(trace) and record is not None and record.passes == new.passes:
        return False
    st.session_state[_KEY] = (prefill_wave.run_name(trace), new)
    return True


def task(trace: Trace, n_tokens: int) -> Task:
    """The measurement for this run's prompt."""
    ids = tuple(token.id for token in trace.prompt_tokens)[: prompt_room(n_tokens)]
    about = f"{prefill_wave.run_name(trace)}-{n_tokens}"
    return Task("own", about, lambda loaded: race.cache_race(loaded, ids, n_tokens), 2 * n_tokens)


def prompt_room(n_tokens: int) -> int:
    """So many tokens of a prompt leave room for an answer of `n_tokens` (the last one is not read)."""
    return race.MAX_RACE_TOKENS - n_tokens + 1


def note_bound(frame: Frame, n_tokens: int) -> None:
    """Say that a long prompt is cut."""
    room, n_prompt = prompt_room(n_tokens), frame.trace.n_prompt
    if n_prompt > room:
        st.caption(frame.md("own.bounded", n=room, all=n_prompt))


def component_data(frame: Frame, record: RaceRecord) -> dict[str, Any]:
    """The payload of the component `race_lanes` (see its main.js)."""
    lanes = {
        lane: {
            "seconds": [round(p.seconds, 6) for p in record.passes if p.lane == lane],
            "computed": [p.n_computed for p in record.passes if p.lane == lane],
        }
        for lane in ("with", "without")
    }
    words = {**frame.t.group("stage"), **frame.t.group("lanes"), "kind_measured": frame.t("kind.measured")}
    return {
        **lanes,
        "n_prompt": record.n_prompt,
        "tokens": [{"text": t.text, "hex": t.bytes.hex(), "special": t.is_special} for t in record.tokens],
        "dots": [p.dot_products for p in record.passes if p.lane == "with"],
        "lang": frame.lang,
        "text": words,
    }


def chart(frame: Frame, record: RaceRecord) -> Any:
    """Measured time of each pass against the context that its token sees, in both lanes; the prompt's pass left out."""
    figure = charts.figure(frame.dark, x=frame.t("chart.x"), y=frame.t("chart.y"))
    for lane, tone in (("without", "prefill"), ("with", "decode")):
        passes = [p for p in record.passes if p.lane == lane and p.index > 0]
        figure.add_scatter(
            x=[p.n_context for p in passes], y=[1e3 * p.seconds for p in passes], name=frame.t(f"lanes.{lane}"),
            mode="markers", marker={"color": charts.color(tone, frame.dark), "symbol": charts.MARKER[tone], "size": 7},
            hovertemplate="%{x}: %{y:.0f} ms",
        )  # fmt: skip
    figure.update_yaxes(rangemode="tozero")
    return figure
