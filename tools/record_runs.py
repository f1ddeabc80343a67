"""Record the runs that the app opens on.

The first page must show a finished real run before the model is loaded, so one is recorded here, with the same model,
the same scheduler and the same code as a live run, and saved with its settings, times and versions. A test runs every
recording again and compares. `make record` calls this; the files go to assets/runs.
"""

from __future__ import annotations

import gc
from pathlib import Path

from core.model import load_model
from core.sampling import SamplingParams
from core.scheduler import Request, Scheduler

RUNS = Path(__file__).resolve().parent.parent / "assets" / "runs"
WARM_UP = 2  # the first runs of a process pay for memory and threads that later ones find ready

# file name, prompt, chat template, length
RECORDINGS = (("gravity", "What is gravity?", True, 28),)


def main() -> None:
    """Record all runs; prints one line for each."""
    loaded = load_model()
    scheduler = Scheduler(loaded)
    RUNS.mkdir(parents=True, exist_ok=True)
    for name, prompt, chat, length in RECORDINGS:
        request = Request.from_text(loaded, prompt, SamplingParams(max_tokens=length), chat=chat)
        for _ in range(WARM_UP):
            scheduler.submit(request).result(600)
        gc.collect()
        trace = scheduler.submit(request).result(600)
        path = RUNS / f"{name}.otat"
        trace.save(path)
        print(f"{path.name}: {trace.n_generated} tokens, {path.stat().st_size:,} bytes: {trace.answer_text!r}")
    scheduler.close()


if __name__ == "__main__":
    main()
