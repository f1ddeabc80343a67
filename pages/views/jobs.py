"""Measurements on request: a button, progress, a way to stop, and results that are drawn as they come.

The work is a generator that the scheduler runs between its passes, so it slows nobody down for longer than one pass
of its own. Only one such measurement runs at a time on a machine: two would measure each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from core.errors import ExplainerError
from pages.views import cache, live

if TYPE_CHECKING:
    from core.model import LoadedModel
    from core.scheduler import Job
    from pages.views.frame import Frame

POLL_S = 0.4
SHARED_NAME = "measurement"


@dataclass(frozen=True)
class Task:
    """A measurement. `about` names what it is about: results about something else are not shown.

    `name` is its text table and its place in the session; `n_total` the number of results that a whole one gives.
    job_name: what the scheduler calls it; jobs of one name wait for each other. timing: False where a second time would
    give the same: then there is no “again”, and who has asked once is answered for every other `about` too.
    """

    name: str
    about: str
    make: Callable[[LoadedModel], Iterator[object]]
    n_total: int
    job_name: str = SHARED_NAME
    timing: bool = True

    @property
    def key(self) -> str:
        return f"otat_job_{self.name}"


def job_of(task: Task) -> Job | None:
    """The session's job for this task, if it is about the same thing."""
    about, job, _ = st.session_state.get(task.key, ("", None, None))
    return job if about == task.about else None


def is_active(task: Task) -> bool:
    job = job_of(task)
    return job is not None and not job.is_over


def start(task: Task) -> None:
    """Begin the measurement. What speaks against it is kept and shown by the panel."""
    if cache.engine().scheduler is None or is_active(task):
        return
    try:
        st.session_state[task.key] = (task.about, live.run_job(task.job_name, task.make), None)
    except ExplainerError as error:
        st.session_state[task.key] = (task.about, job_of(task), error)  # an earlier result stays on screen


def stop(task: Task) -> None:
    job = job_of(task)
    if job is not None:
        job.cancel()


def panel(frame: Frame, task: Task, draw: Callable[[tuple[Any, ...], bool], None]) -> None:
    """The button, and below it what `draw(results, over)` shows of the results so far."""
    if (
        not task.timing
        and job_of(task) is None
        and st.session_state.get(task.key, ("", None, None))[1] is not None
    ):
        start(task)
    about, earlier, _ = st.session_state.get(task.key, ("", None, None))
    if task.timing and about != task.about and earlier is not None:
        earlier.cancel()  # something else is asked now, and it would only stand in the way
    active = is_active(task)
    st.fragment(_panel, run_every=POLL_S if active else None)(frame, task, draw, active)


def _panel(frame: Frame, task: Task, draw: Callable[[tuple[Any, ...], bool], None], was_active: bool) -> None:
    live.jobs_go_on()
    active = is_active(task)
    if active != was_active:
        st.rerun()  # the timer of a fragment is set by the whole page
    with frame.errors():
        _buttons(frame, task, active)
        about, job, refused = st.session_state.get(task.key, ("", None, None))
        if about != task.about:
            return
        with frame.errors():
            if refused is not None:
                raise refused
        if job is not None and job.error is not None:
            raise job.error
        if job is not None and (job.results or not active):
            draw(job.results, not active)


def _buttons(frame: Frame, task: Task, active: bool) -> None:
    if frame.scheduler is None:
        st.caption(frame.t("model.needed"))
        return
    job = job_of(task)
    with st.container(horizontal=True, vertical_alignment="center", key=f"{task.key}_row"):
        again = job is not None and bool(job.results)
        if not active and (task.timing or not again):
            label = frame.t("jobs.again") if again else frame.t(f"{task.name}.start")
            st.button(label, key=f"{task.key}_start", on_click=start, args=(task,), icon=":material/timer:")
        elif active:
            st.button(frame.t("jobs.stop"), key=f"{task.key}_stop", on_click=stop, args=(task,))
            done = len(job.results) if job else 0
            words = frame.t("jobs.progress", n=done, total=task.n_total)
            st.progress(min(1.0, done / max(1, task.n_total)), text=words)
        if job is not None and job.state == "cancelled":
            st.caption(frame.t("jobs.stopped", n=len(job.results), total=task.n_total))
