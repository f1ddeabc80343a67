"""The learner's own run: started, watched, and kept while they change pages.

A run belongs to the scheduler's thread, not to a page's script: the script submits it and ends. Small fragments look at
it a few times per second. So a run goes on when the learner opens another page or moves a slider, and only a new run
replaces it. When nobody looks any more (the tab was closed), the scheduler cancels it by itself.

A link with `run=1` replays: the session that opens it starts the same prompt with the same settings and seed, as soon
as the model is ready, and gets the same tokens.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import streamlit as st

from core.errors import ExplainerError, InvalidSettingError
from core.sampling import SamplingParams
from pages.views import cache
from pages.views import settings as settings_module

if TYPE_CHECKING:
    from core.model import LoadedModel
    from core.scheduler import Job, Run
    from core.trace import Trace
    from pages.views.frame import Frame
    from pages.views.settings import Settings

MAX_CHARACTERS = (
    100_000  # far beyond any prompt the model takes; below what would make tokenizing slow for others
)
KEEPALIVE_S = 30.0
_RUN, _JOBS = "otat_run", "otat_jobs"
_TRACE, _WANTED, _ERROR = "otat_trace", "otat_run_wanted", "otat_run_error"


def current_run() -> Run | None:
    """The session's latest run in any state, or None."""
    found: Run | None = st.session_state.get(_RUN)
    return found


def is_active() -> bool:
    """True while the session's run goes on, or is still to be started."""
    run = current_run()
    return is_wanted() or (run is not None and not run.is_over)


def is_wanted() -> bool:
    """True where a run was asked for and waits for the model to be loaded."""
    return bool(st.session_state.get(_WANTED))


def error() -> ExplainerError | None:
    """Why the latest request could not be started or did not finish; None where nothing is wrong."""
    run = current_run()
    refused: ExplainerError | None = st.session_state.get(_ERROR)
    return refused or (run.error if run is not None else None)


def finished_trace() -> Trace | None:
    """The full trace of the session's latest run once it is over (also of a stopped one, if it chose a token)."""
    run = current_run()
    if run is None or not run.is_over or run.error is not None:
        return None
    if st.session_state.get(_TRACE, (None, None))[0] is not run:
        st.session_state[_TRACE] = (run, run.result(timeout=5))
    trace: Trace = st.session_state[_TRACE][1]
    return trace if trace.n_generated else None


def run_job(name: str, make: Callable[[LoadedModel], Iterator[object]]) -> Job:
    """A measurement that this session waits for, on whatever page it is. It ends soon after the session has gone.

    Raises BusyError. Call it only where the model is ready.
    """
    scheduler = cache.engine().scheduler
    assert scheduler is not None
    job = scheduler.run_job(name, make, keepalive_s=KEEPALIVE_S)
    st.session_state[_JOBS] = (*st.session_state.get(_JOBS, ()), job)
    return job


def jobs_go_on() -> bool:
    """True while a measurement of this session is under way. Being asked keeps it going."""
    active = tuple(job for job in st.session_state.get(_JOBS, ()) if not job.is_over)
    st.session_state[_JOBS] = active
    for job in active:
        job.touch()
    return bool(active)


def params_of(settings: Settings) -> SamplingParams:
    """The sampling settings of the learner. Raises InvalidSettingError."""
    return SamplingParams(**{name: settings.get(name) for name in settings_module.SAMPLING})


def ask() -> None:
    """Run the learner's prompt with their settings: now, or as soon as the model is ready. For button callbacks."""
    settings = settings_module.current()
    settings.set("run", True)
    settings.set("step", -1)
    settings_module.write_url(settings)
    st.session_state[_WANTED] = True
    st.session_state[_ERROR] = None
    try_start()


def stop() -> None:
    """Stop the run; what it has generated stays."""
    run = current_run()
    st.session_state[_WANTED] = False
    if run is not None:
        run.cancel()


def resume(settings: Settings) -> None:
    """At a page's start: a session that opened a link with `run=1` wants that run."""
    if settings.get("run") and current_run() is None and _WANTED not in st.session_state:
        st.session_state[_WANTED] = True
    try_start()


def try_start() -> bool:
    """Submit the run that is wanted, if the model is ready. True where one was started."""
    engine = cache.engine()
    if not is_wanted() or engine.scheduler is None:
        return False
    st.session_state[_WANTED] = False
    earlier = current_run()
    try:
        started = _submit(settings_module.current())
    except ExplainerError as refused:
        st.session_state[_ERROR] = refused
        return False
    if earlier is not None:
        earlier.cancel()
    st.session_state[_RUN] = started
    return True


def _submit(settings: Settings) -> Run:
    from core.scheduler import Request

    engine = cache.engine()
    assert engine.loaded is not None
    assert engine.scheduler is not None
    prompt = settings.get("prompt")
    if len(prompt) > MAX_CHARACTERS:
        raise InvalidSettingError(name="prompt", value=f"{len(prompt):,}", allowed=f"≤ {MAX_CHARACTERS:,}")
    request = Request.from_text(
        engine.loaded,
        prompt,
        params_of(settings),
        chat=settings.get("chat"),
        system=settings.get("system") or None,
        keepalive_s=KEEPALIVE_S,
    )
    return engine.scheduler.submit(request)


def poll_s() -> float:
    """How often a page looks at a run: four times a second when few are running, less often for a whole class."""
    scheduler = cache.engine().scheduler
    n_running = scheduler.n_running if scheduler is not None else 0
    return min(1.5, 0.25 * (1 + n_running / 6))


# ---- the status in the bar -------------------------------------------------------------------------------------------


def status(frame: Frame) -> None:
    """The state of the model and, away from the home page, of the run. Looks again only while there is news to come."""
    st.fragment(_status, run_every=0.8 if _has_news(frame) else None)(frame, _has_news(frame))


def _has_news(frame: Frame) -> bool:
    loading, measures = cache.engine().status, jobs_go_on()
    return measures or not (loading.ready or loading.failed) or is_wanted() or (frame.page != "home" and is_active())


def _status(frame: Frame, had_news: bool) -> None:
    if st.session_state.get("otat_drawn") and not cache.engine().status.failed:
        # Not in a session's very first run: importing torch would compete with drawing the page. And not after a
        # failure: that is told first, with a button to try again.
        cache.engine().start()
    st.session_state["otat_drawn"] = True
    started = try_start()
    if started or (had_news and not _has_news(frame)):
        st.rerun()  # once, so that the page sees the model, or the finished run
    kind, words = _status_words(frame)
    st.html(f'<span class="otat-status {kind}" role="status"><i></i>{html.escape(words)}</span>')


def _status_words(frame: Frame) -> tuple[str, str]:
    loading, run = cache.engine().status, current_run()
    if loading.failed:
        return "failed", frame.t("model.failed")
    if not loading.ready:
        return "loading", frame.t(f"model.stage.{loading.stage}", percent=round(loading.fraction * 100))
    if frame.page != "home" and run is not None and not run.is_over:
        return "loading", run_words(frame, run)
    loaded = cache.engine().loaded
    return "ready", frame.t("model.ready", model=loaded.spec.name if loaded else "")


def run_words(frame: Frame, run: Run) -> str:
    """One line on a run that goes on: its place in the queue, or how far it is."""
    position = run.queue_position
    if position is not None:
        return frame.t("run.waiting", n=position)
    n_chosen = sum(step.is_choice for step in run.steps)
    return frame.t("run.running", n=n_chosen, limit=run.request.params.max_tokens)
