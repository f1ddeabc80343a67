"""What the tests share: one real model, its tokenizer, one scheduler, one recorded run.

`loaded`      the default model, `core.model.load_model()`; the first load ever converts it, so it takes longer
`tokenizer`   its tokenizer
`scheduler`   one `core.scheduler.Scheduler` over it for the whole session
`recorded`    the bundled recorded run that the home page opens on
`live_trace`  a short greedy run made now (8 tokens), for tests that need a trace from this machine
`no_model`    the app's engine, still loading and staying so: what everybody sees in the first seconds

All are made once per session, on first use, so a test that needs none of them starts without torch. They are shared:
leave them as they are. Tests run offline, as the app must (`HF_HUB_OFFLINE=1`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from core.model import LoadedModel
    from core.scheduler import Scheduler
    from core.trace import Trace
    from pages.views.cache import Engine

ROOT = Path(__file__).resolve().parent.parent

# Set before anything imports transformers, and inherited by the servers that the browser tests start.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["STREAMLIT_BROWSER_GATHER_USAGE_STATS"] = "false"
# Model, server and browser share few cores here: a thread that waits should sleep, not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    import torch

    from core.model import load_model

    # More threads than cores make small matrix products slower, and equal results should not depend on the machine.
    torch.set_num_threads(max(1, min(4, os.cpu_count() or 1)))
    return load_model()


@pytest.fixture(scope="session")
def tokenizer(loaded: LoadedModel) -> Any:
    return loaded.tokenizer


@pytest.fixture(scope="session")
def scheduler(loaded: LoadedModel) -> Iterator[Scheduler]:
    from core.scheduler import Scheduler

    shared = Scheduler(loaded)
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def recorded() -> Trace:
    from core.trace import Trace

    return Trace.load(recorded_run_path())


def recorded_run_path() -> Path:
    """The recording that the home page opens on."""
    runs = sorted((ROOT / "assets" / "runs").glob("*.otat"))
    return next((path for path in runs if path.stem.startswith("gravity")), runs[0])


@pytest.fixture(scope="session")
def live_trace(scheduler: Scheduler) -> Trace:
    from core.sampling import SamplingParams
    from core.scheduler import Request

    request = Request.from_text(scheduler.loaded, "What is gravity?", SamplingParams(max_tokens=8))
    return scheduler.submit(request).result(timeout=120)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> Engine:
    from pages.views import cache

    engine = cache.Engine()
    monkeypatch.setattr(engine, "start", lambda: None)
    monkeypatch.setattr(cache, "engine", lambda: engine)
    return engine
