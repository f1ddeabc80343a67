"""Prefill and decode side by side: one table, each cell filled from the run on screen."""

from __future__ import annotations

import html
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st

from core import latency
from core.prefill import PassCost, pass_cost
from pages.views.prefill_wave import decode_steps, prefill_steps
from pages.views.text import seconds

if TYPE_CHECKING:
    from core.trace import Step, Trace
    from pages.views.frame import Frame

Cell = tuple[str, str]  # text, kind ("" where it is no figure)
CLEARLY = 1.25  # how many times more counts as clearly more


@dataclass(frozen=True)
class Phase:
    """The passes of one phase, on average per pass. flops, bytes: by formula; seconds: measured."""

    n_passes: int
    n_tokens: int
    seconds: float
    flops: float
    bytes: float

    @property
    def flops_per_byte(self) -> float:
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def flops_rate(self) -> float:
        """FLOPs per second: computed arithmetic over measured time."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_rate(self) -> float:
        """Bytes per second: computed traffic over measured time."""
        return self.bytes / self.seconds if self.seconds else 0.0


def phase_of(trace: Trace, steps: tuple[Step, ...]) -> Phase | None:
    """The averages of these passes; None if there are none."""
    if not steps:
        return None
    costs: list[PassCost] = [pass_cost(trace.spec, s.n_input, s.n_cached_before) for s in steps]
    return Phase(
        n_passes=len(steps),
        n_tokens=sum(s.n_input for s in steps),
        seconds=statistics.mean(s.duration_s for s in steps),
        flops=statistics.mean(c.flops for c in costs),
        bytes=statistics.mean(c.bytes for c in costs),
    )


def limits(read: Phase, write: Phase | None) -> tuple[str, str]:
    """What limits each phase here, as text keys: the phase that computes faster than the other can reads slower."""
    if write is None or read.n_tokens == read.n_passes:
        return "limit_alike", "limit_alike"
    computes = read.flops_rate > CLEARLY * write.flops_rate
    reads = write.bytes_rate > CLEARLY * read.bytes_rate
    return ("limit_compute" if computes else "limit_alike"), ("limit_memory" if reads else "limit_alike")


def rows(frame: Frame, trace: Trace) -> list[tuple[str, Cell, Cell]]:
    """(label, prefill's cell, decode's cell) of every row."""
    read, write = phase_of(trace, prefill_steps(trace)), phase_of(trace, decode_steps(trace))
    assert read is not None
    return [
        _words(frame, "known", n=trace.n_prompt),
        _per_pass(frame, trace),
        _pair(frame, "passes", "measured", str(read.n_passes), str(write.n_passes) if write else None),
        _words(
            frame, "parallel", n=max(s.n_input for s in prefill_steps(trace)), n_layers=trace.spec.n_layers
        ),
        _words(frame, "serial", n=trace.n_prompt, n_layers=trace.spec.n_layers),
        *_figures(frame, read, write),
        _limit_row(frame, read, write),
        _latency(frame, trace),
    ]


def _words(frame: Frame, name: str, **values: object) -> tuple[str, Cell, Cell]:
    text = [frame.t(f"table.{name}_{phase}", **values) for phase in ("prefill", "decode")]
    return frame.t(f"table.{name}"), (text[0], ""), (text[1], "")


def _pair(
    frame: Frame, name: str, kind: str, read: str, write: str | None, **values: object
) -> tuple[str, Cell, Cell]:
    none = (frame.t("table.none"), "")
    return frame.t(f"table.{name}", **values), (read, kind), (write, kind) if write is not None else none


def _per_pass(frame: Frame, trace: Trace) -> tuple[str, Cell, Cell]:
    sizes = [s.n_input for s in prefill_steps(trace)]
    shown = " + ".join(map(str, sizes[:4])) + (" + …" if len(sizes) > 4 else "")
    return _pair(frame, "tokens", "measured", shown, "1" if decode_steps(trace) else None)


def _figures(frame: Frame, read: Phase, write: Phase | None) -> list[tuple[str, Cell, Cell]]:
    def pair(name: str, kind: str, show: object) -> tuple[str, Cell, Cell]:
        assert callable(show)
        return _pair(frame, name, kind, show(read), show(write) if write else None)

    return [
        pair("time", "measured", lambda p: seconds(p.seconds)),
        pair("time_token", "measured", lambda p: seconds(p.seconds * p.n_passes / p.n_tokens)),
        pair("flops", "computed", lambda p: giga(p.flops)),
        pair("bytes", "computed", lambda p: f"{p.bytes / 1e6:,.0f} MB"),
        pair("intensity", "computed", lambda p: f"{p.flops_per_byte:,.1f}"),
        pair("flops_rate", "computed", lambda p: f"{giga(p.flops_rate)}/s"),
        pair("bytes_rate", "computed", lambda p: f"{p.bytes_rate / 1e9:,.1f} GB/s"),
    ]


def giga(flops: float) -> str:
    """`7.3 GFLOP`, `0.27 GFLOP`, `1.2 TFLOP`."""
    if flops >= 1e12:
        return f"{flops / 1e12:,.1f} TFLOP"
    return f"{flops / 1e9:,.1f} GFLOP" if flops >= 1e9 else f"{flops / 1e9:,.2f} GFLOP"


def _limit_row(frame: Frame, read: Phase, write: Phase | None) -> tuple[str, Cell, Cell]:
    keys = limits(read, write)
    values = {
        "flops": f"{read.flops_rate / write.flops_rate:,.1f}" if write else "",
        "bytes": f"{write.bytes_rate / read.bytes_rate:,.1f}" if write else "",
    }
    cells = [(frame.t(f"table.{key}", **values), "computed" if key != "limit_alike" else "") for key in keys]
    return frame.t("table.limit"), cells[0], cells[1] if write else (frame.t("table.none"), "")


def _latency(frame: Frame, trace: Trace) -> tuple[str, Cell, Cell]:
    """The figure that each phase decides, with this run's value."""
    events = latency.events_of(trace)
    first, gap = latency.ttft_s(events), latency.mean(latency.gaps_s(events.token_s))
    read = frame.t("table.ttft", value=seconds(first)) if first is not None else None
    write = frame.t("table.itl", value=seconds(gap)) if gap is not None else None
    return _pair(frame, "latency", "measured", read or frame.t("table.none"), write)


def show(frame: Frame, trace: Trace) -> None:
    """The table, and a note where passes were shared with others."""
    st.html(table_html(frame, rows(frame, trace)))
    if any(step.batch_size > 1 for step in trace.steps):
        st.caption(frame.t("table.shared"))


def table_html(frame: Frame, made: list[tuple[str, Cell, Cell]]) -> str:
    """All cells are escaped: they may hold anything."""

    def cell(content: Cell) -> str:
        text, kind = content
        mark = f'<em class="otat-kind {kind}">{html.escape(frame.t(f"kind.{kind}"))}</em>' if kind else ""
        return f"<td>{html.escape(text)}{mark}</td>"

    head = "".join(
        f'<th scope="col" class="{p}">{html.escape(frame.t(f"table.{p}"))}</th>'
        for p in ("prefill", "decode")
    )
    body = "".join(
        f'<tr><th scope="row">{html.escape(label)}</th>{cell(read)}{cell(write)}</tr>'
        for label, read, write in made
    )
    return f'<table class="pf-table"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
