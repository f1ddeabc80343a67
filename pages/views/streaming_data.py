"""What the streaming page shows: a stream (the learner's run, or a recorded one), the settings, and figures
of them.

The three lanes are drawn by the component `streaming_lanes`, which computes the stages again in the browser
while a slider moves. The same stages in Python (core/streaming.py) give the sentences their figures.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import streaming
from core.streaming import Draw, Message, RecordedStream
from pages.views import settings as settings_module
from pages.views.cache import RUNS

if TYPE_CHECKING:
    from core.trace import Trace
    from pages.views.frame import Frame
    from pages.views.settings import Settings

STREAMS = ("run", "emoji", "japanese")
SENDS, DRAWS = ("token", "count", "time"), ("asis", "smooth", "end")
JITTER_SEED = 0

# name in the component: (name in the URL, default, lowest, highest)
DIALS = {
    "n": ("st_n", 4, 2, 12),
    "ms": ("st_ms", 250, 50, 1000),
    "cps": ("st_cps", 40, 5, 200),
    "delay": ("st_delay", 0, 0, 500),
    "jitter": ("st_jitter", 0, 0, 500),
}


def declare() -> None:
    """The page's settings, all in the URL."""
    settings_module.declare("stream", "run", str, settings_module.one_of(*STREAMS))
    settings_module.declare("st_send", "token", str, settings_module.one_of(*SENDS))
    settings_module.declare("st_draw", "asis", str, settings_module.one_of(*DRAWS))
    for name, default, low, high in DIALS.values():
        settings_module.declare(name, default, int, settings_module.between(low, high))


def keep(settings: Settings, values: dict[str, Any]) -> None:
    """Store what the component says the learner has set. Anything that is not allowed is left as it was."""
    names = {"send": "st_send", "draw": "st_draw"} | {key: dial[0] for key, dial in DIALS.items()}
    for key, name in names.items():
        if key in values:
            settings.set(name, values[key])
    settings_module.write_url(settings)


def controls(settings: Settings) -> dict[str, Any]:
    """The settings as the component names them."""
    chosen = {key: settings.get(dial[0]) for key, dial in DIALS.items()}
    return {"send": settings.get("st_send"), "draw": settings.get("st_draw"), **chosen}


@functools.lru_cache(maxsize=8)
def _recorded(path: Path, mtime_ns: int) -> RecordedStream:
    return RecordedStream.load(path)


def stream(name: str, trace: Trace) -> RecordedStream:
    """The stream to show: of the learner's run, or one of the recorded ones. Raises TraceFileError."""
    if name == "run":
        return streaming.stream_of(trace)
    path = RUNS / f"{name}.stream.json"
    return _recorded(path, path.stat().st_mtime_ns if path.exists() else 0)


def dice(n: int) -> list[float]:
    """The random part of each message's journey; the same numbers go to the browser and to
    `core.streaming.deliver`."""
    generator = random.Random(JITTER_SEED)
    return [generator.random() for _ in range(n)]


def component_data(frame: Frame, name: str, shown: RecordedStream) -> dict[str, Any]:
    """All that the component needs."""
    halves = streaming.waiting_tokens(shown.emissions)
    tokens = [
        {
            "t": emission.time_s,
            "hex": emission.data.hex(),
            "text": emission.data.decode("utf-8", errors="replace"),
            "special": special,
            "half": half,
        }
        for emission, special, half in zip(shown.emissions, shown.special, halves, strict=True)
    ]
    return {
        "stream": {
            "id": f"{name}:{shown.created}:{len(tokens)}",
            "admitted": shown.admitted_s,
            "tokens": tokens,
        },
        "controls": controls(frame.settings),
        "dice": dice(len(tokens)),
        "lang": frame.lang,
        "text": frame.t.group("stage") | frame.t.group("lanes"),
    }


def messages(shown: RecordedStream, chosen: dict[str, Any]) -> tuple[Message, ...]:
    """The messages of these settings, after their simulated journey."""
    if chosen["send"] == "time":
        sent = streaming.messages_every_seconds(shown.emissions, chosen["ms"] / 1000)
    else:
        sent = streaming.messages_every_tokens(
            shown.emissions, chosen["n"] if chosen["send"] == "count" else 1
        )
    return streaming.deliver(sent, chosen["delay"] / 1000, chosen["jitter"] / 1000, JITTER_SEED)


def draws(arrived: tuple[Message, ...], draw: str, chars_per_s: float) -> tuple[Draw, ...]:
    """The screen's changes in one of the three ways."""
    if draw == "smooth":
        return streaming.draws_smoothed(arrived, chars_per_s)
    return streaming.draws_at_end(arrived) if draw == "end" else streaming.draws_as_it_comes(arrived)


def three_ways(shown: RecordedStream, chosen: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(way to draw, first character, last character) of the same messages, in seconds; empty without any
    text."""
    arrived = messages(shown, chosen)
    found = [(way, streaming.first_and_last_s(draws(arrived, way, chosen["cps"]))) for way in DRAWS]
    return [(way, moments[0], moments[1]) for way, moments in found if moments is not None]
