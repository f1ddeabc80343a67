"""What all sessions share: the recorded runs, and one engine (model and scheduler).

These are the only `st.cache_*` of the project. The recorded run is numpy only and is drawn at once. The model takes
seconds, and importing torch alone takes two, so a thread does both once the first page has been drawn. Nobody ever
waits for it in a page's script: `engine().loaded` is None until it is ready.

Streamlit collects garbage after each script run. With torch's objects around, that takes 200 ms and is felt in every
session; `gc.freeze()` after loading takes them out of the collector's sight.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from core.errors import ExplainerError

if TYPE_CHECKING:
    from core.model import LoadedModel
    from core.scheduler import Scheduler
    from core.trace import Trace

RUNS = Path(__file__).resolve().parents[2] / "assets" / "runs"
_log = logging.getLogger("otat")


@st.cache_resource(max_entries=8, show_spinner=False)
def _load_trace(path: str, mtime_ns: int) -> Trace:
    from core.trace import Trace

    return Trace.load(Path(path))


def recorded_runs() -> tuple[str, ...]:
    """Names of the recorded runs in `assets/runs`, the one for first paint first."""
    names = sorted(path.stem for path in RUNS.glob("*.otat"))
    return tuple(sorted(names, key=lambda name: not name.startswith("gravity")))


def recorded_trace(name: str | None = None) -> Trace:
    """A recorded real run. Loaded once per process, without torch. TraceFileError where the file is damaged."""
    path = RUNS / f"{name or next(iter(recorded_runs()), 'gravity')}.otat"
    return _load_trace(str(path), path.stat().st_mtime_ns if path.exists() else 0)


@st.cache_resource(max_entries=4, show_spinner=False)
def vocabulary(path: str) -> tuple[bytes, ...]:
    """The bytes of every token of a recorded run's model (see names.py)."""
    from pages.views.names import load_vocabulary

    return load_vocabulary(Path(path))


@dataclass(frozen=True)
class Status:
    """Where loading stands. `stage` is a key of common.toml's [model.stage]; `fraction` runs from 0 to 1."""

    stage: str = "waiting"
    fraction: float = 0.0
    error: ExplainerError | None = None  # may be None even after a failure: then nobody foresaw it

    @property
    def ready(self) -> bool:
        return self.stage == "ready"

    @property
    def failed(self) -> bool:
        return self.stage == "failed"


class Engine:
    """The model and its scheduler, loaded by a thread. Reading `status`, `loaded`, `scheduler` never blocks."""

    def __init__(self, source: str | None = None) -> None:
        self.source = source
        self.status = Status()
        self.loaded: LoadedModel | None = None
        self.scheduler: Scheduler | None = None
        self.load_s: float | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin loading, unless that is under way or done. After a failure it tries again."""
        with self._lock:
            if self.status.ready or (self._thread is not None and self._thread.is_alive()):
                return
            self.status = Status("waiting")
            self._thread = threading.Thread(target=self._load, name="otat-load", daemon=True)
            self._thread.start()

    def _load(self) -> None:
        started = time.perf_counter()
        try:
            self._progress("import", 0.02)
            from core.model import load_model
            from core.scheduler import Scheduler

            self.loaded = load_model(self.source, progress=self._progress)
            self.scheduler = Scheduler(self.loaded)
            gc.collect()
            gc.freeze()
            self.load_s = time.perf_counter() - started
            self.status = Status("ready", 1.0)
        except ExplainerError as error:
            self._fail(error)
        except Exception:  # whatever happened, the learner gets a sentence and the log gets the details
            self._fail(None)

    def _progress(self, stage: str, fraction: float) -> None:
        # What has been imported so far stays: without this, every look at the status would cost 200 ms of collecting.
        gc.freeze()
        # "ready" is said by this class alone, when the scheduler is there too.
        self.status = Status("scheduler" if stage == "ready" else stage, min(fraction, 0.99))

    def _fail(self, error: ExplainerError | None) -> None:
        _log.exception("The model could not be loaded")
        self.loaded = self.scheduler = None
        self.status = Status("failed", 0.0, error)


@st.cache_resource(max_entries=1, show_spinner=False)
def engine() -> Engine:
    """The one engine of this process. `start()` begins loading; the source is the variable OTAT_MODEL."""
    return Engine(os.environ.get("OTAT_MODEL") or None)
