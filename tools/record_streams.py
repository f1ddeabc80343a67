"""Record the short streams of assets/runs that the streaming page can show besides the learner's own run.

Emoji and Japanese show what English hides: tokens that are half a character. Only bytes and moments are kept
(a few kilobytes), not the whole trace. A test runs each again and compares the tokens. `python
tools/record_streams.py`
"""

from __future__ import annotations

import gc
from pathlib import Path

from core.model import load_model
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
    scheduler.close()


if __name__ == "__main__":
    main()
