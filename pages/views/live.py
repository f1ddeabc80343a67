"""The learner's own run: started, watched, and kept while they change pages.

A run belongs to the scheduler's thread, not to a page's script: the script submits it and ends. Small fragments look at
it a few times per second. So a run goes on when the learner opens another page or moves a slider, and it is gone only
when a new one replaces it.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import streamlit as st

from pages.views import cache

if TYPE_CHECKING:
    from core.scheduler import Run
    from core.trace import Trace
    from pages.views.frame import Frame

_RUN = "otat_run"
_TRACE = "otat_trace"


def current_run() -> Run | None:
    """The session's latest run in any state, or None."""
    found: Run | None = st.session_state.get(_RUN)
    return found


def finished_trace() -> Trace | None:
    """The full trace of the session's latest finished run, or None."""
    run = current_run()
    if run is None or run.state != "finished":
        return None
    if st.session_state.get(_TRACE, (None, None))[0] is not run:
        st.session_state[_TRACE] = (run, run.result(timeout=5))
    trace: Trace = st.session_state[_TRACE][1]
    return trace


def status(frame: Frame) -> None:
    """The model's state in the bar. It looks again twice a second until the model is ready, then stops."""
    status = cache.engine().status
    every = None if status.ready or status.failed else 0.5
    st.fragment(_status, run_every=every)(frame, bool(status.ready or status.failed))


def _status(frame: Frame, settled: bool) -> None:
    status = cache.engine().status
    if not settled and (status.ready or status.failed):
        st.rerun()  # once, so that the page sees the model
    kind = "ready" if status.ready else "failed" if status.failed else "loading"
    words = html.escape(_status_words(frame, kind, status))
    st.html(f'<span class="otat-status {kind}" role="status"><i></i>{words}</span>')


def _status_words(frame: Frame, kind: str, status: cache.Status) -> str:
    if kind == "loading":
        return frame.t(f"model.stage.{status.stage}", percent=round(status.fraction * 100))
    loaded = cache.engine().loaded
    return frame.t(f"model.{kind}", model=loaded.spec.name if loaded else "")
