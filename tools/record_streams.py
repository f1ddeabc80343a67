"""Record the short streams that the streaming page can show besides the learner's own run, and a long-prompt
measurement.

Emoji and Japanese show what English hides: tokens that are half a character. Only bytes and moments are kept
(a few kilobytes), not the whole trace. A test runs each again and compares the tokens.
`make record` calls this too.
"""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from pathlib import Path

from core.machine import processor_name
from core.model import LoadedModel, load_model
from core.prompt_effect import RecordedEffect, effects, measure_prompt_effect
from core.sampling import SamplingParams
from core.scheduler import Request, Scheduler
from core.streaming import stream_of, waiting_tokens

RUNS = Path(__file__).resolve().parent.parent / "assets" / "runs"
WARM_UP = 2

# file name, prompt, chat template, length
STREAMS = (
    ("emoji", "Write five emojis for a party.", True, 30),
    ("japanese", "こんにちは！", True, 24),
)


def main() -> None:
    """Record all; prints one line for each."""
    loaded = load_model()
    scheduler = Scheduler(loaded)
    for name, prompt, chat, length in STREAMS:
        request = Request.from_text(loaded, prompt, SamplingParams(max_tokens=length), chat=chat)
        for _ in range(WARM_UP):
            scheduler.submit(request).result(600)
        gc.collect()
        trace = scheduler.submit(request).result(600)
        stream_of(trace).save(RUNS / f"{name}.stream.json")
        halves = sum(waiting_tokens(stream_of(trace).emissions))
        print(f"{name}: {trace.n_generated} tokens, {halves} inside a character: {trace.answer_text!r}")
    record_prompt_effect(loaded, scheduler)
    scheduler.close()


def record_prompt_effect(loaded: LoadedModel, scheduler: Scheduler) -> None:
    """What the latency page shows under “does a long prompt slow the answer?” until it is measured there."""
    passes = scheduler.run_job("prompt_effect", measure_prompt_effect(budget_s=600)).wait(900)
    rows = effects(passes, loaded.spec.kv_bytes_per_token)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    made = RecordedEffect(rows, loaded.spec.weight_bytes, loaded.spec.name, processor_name(), created)
    made.save(RUNS / "prompt_effect.json")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
