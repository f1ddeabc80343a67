"""Record the runs that the app opens on.

The first page must show a finished real run before the model is loaded, so one is recorded here, with the same model,
the same scheduler and the same code as a live run, and saved with its settings, times and versions. A test runs every
recording again and compares. `make record` calls this; the files go to assets/runs, and the names of all tokens (for
candidates that a recorded run did not choose) to assets/data.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path

from core.machine import processor_name
from core.model import load_model
from core.race import RaceRecord, cache_race
from core.roofline import MachineLimits, PassPoint, measure_roofline, to_json
from core.sampling import SamplingParams
from core.scheduler import Request, Scheduler
from pages.views.names import save_vocabulary, vocabulary_path

RUNS = Path(__file__).resolve().parent.parent / "assets" / "runs"
WARM_UP = 2  # the first runs of a process pay for memory and threads that later ones find ready

# file name, prompt, chat template, length
RECORDINGS = (("gravity", "What is gravity?", True, 28),)
RACE_TOKENS = 64


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
        print(
            f"{path.name}: {trace.n_generated} tokens, {path.stat().st_size:,} bytes: {trace.answer_text!r}"
        )
    save_vocabulary(loaded.tokenizer, loaded.spec.vocab_size, vocabulary_path(loaded.spec.name))
    record_race(scheduler)
    record_roofline(scheduler)
    scheduler.close()


def record_race(scheduler: Scheduler) -> None:
    """The first recording's prompt, answered with and without the cache."""
    loaded = scheduler.loaded
    _, prompt, chat, _ = RECORDINGS[0]
    encoded = Request.from_text(loaded, prompt, SamplingParams(), chat=chat).encoded
    passes = scheduler.run_job("race", lambda model: cache_race(model, encoded.ids, RACE_TOKENS)).wait(600)
    record = RaceRecord.of(loaded, prompt, len(encoded.ids), processor_name(), passes)
    record.save(RUNS / "gravity.race.json")
    print(f"gravity.race.json: {len(record.tokens)} tokens in each lane")


def record_roofline(scheduler: Scheduler) -> None:
    """What the machine of the recordings can do at best, and where its passes are under that roof."""
    machine = processor_name()
    results = scheduler.run_job("roof", lambda m: measure_roofline(m, range(100, 400), machine)).wait(600)
    limits = [r for r in results if isinstance(r, MachineLimits)][-1]
    points = [r for r in results if isinstance(r, PassPoint)]
    path = RUNS / "machine.roofline.json"
    path.write_text(json.dumps(to_json(limits, points)), encoding="utf-8")
    print(f"{path.name}: {limits.read_bytes_per_s / 1e9:.1f} GB/s, {limits.flops_per_s / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
