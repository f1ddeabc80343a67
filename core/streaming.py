"""Streaming: three stages between the model and the eye, each with a clock of its own.

1. The **model** emits tokens. A token is a few bytes, and those bytes may be half a character: one character
   of Japanese or one emoji can take several tokens.
2. The **server** sends messages: one per token, one per n tokens, or one every m milliseconds. It turns bytes
   into text as they come and keeps an unfinished character back until its other half exists. So a message can
   hold several tokens, and the gap between messages is not the gap between tokens.
3. The **screen** draws: at once, at a steady c characters per second, or everything when the answer is
   complete.

No stage can be ahead of the one before it, so the last character's moment hardly depends on the settings; the
first one's does. Everything here is computed from the emission times of a real run; only the network between
server and screen is simulated, with a seeded generator, and has to be labelled so.

All times are seconds on one clock. Each stage is a pure function from one tuple to the next.
"""

from __future__ import annotations

import codecs
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import InvalidSettingError, TraceFileError
from core.latency import Arrival, Events, check_times

if TYPE_CHECKING:
    from core.trace import Trace


@dataclass(frozen=True)
class Emission:
    """One token leaves the model at `time_s`; `data` are its bytes (maybe half a character, maybe none)."""

    time_s: float
    data: bytes


@dataclass(frozen=True)
class Message:
    """One message of the server: tokens `start` to `stop` - 1, the whole characters they finish, and two
    moments."""

    sent_s: float
    arrived_s: float
    start: int
    stop: int
    text: str

    @property
    def n_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Draw:
    """The screen changes at `time_s`; from then on it shows the first `n_chars` characters (code points)."""

    time_s: float
    n_chars: int


def emissions_of(trace: Trace) -> tuple[Emission, ...]:
    """What the model of a run emitted: one entry per answer token. Special tokens carry no text to show."""
    pairs = zip(trace.choice_steps, trace.answer_tokens, strict=True)
    return tuple(
        Emission(float(step.ended_s), b"" if token.is_special else token.bytes) for step, token in pairs
    )


def check_emissions(emissions: Sequence[Emission]) -> None:
    check_times("token times", [emission.time_s for emission in emissions])


# ---- stage 2: the server -----------------------------------------------------------------------------------


def messages_every_tokens(emissions: Sequence[Emission], n: int = 1) -> tuple[Message, ...]:
    """A message whenever `n` tokens have gathered, and one for the rest at the end."""
    if n < 1:
        raise InvalidSettingError(name="tokens per message", value=n, allowed="1 or more")
    check_emissions(emissions)
    stops = [*range(n, len(emissions), n), len(emissions)]
    return _messages(emissions, [(emissions[stop - 1].time_s, stop) for stop in stops] if emissions else [])


def messages_every_seconds(emissions: Sequence[Emission], period_s: float) -> tuple[Message, ...]:
    """The server looks every `period_s` seconds after the first token and sends what has gathered; the rest
    goes when the answer is complete. The first token goes at once, as servers do, so that the reader sees
    that the answer has begun."""
    if not math.isfinite(period_s) or period_s <= 0:
        raise InvalidSettingError(name="period", value=period_s, allowed="a time above 0 s")
    check_emissions(emissions)
    if not emissions:
        return ()
    return _messages(emissions, _ticks([emission.time_s for emission in emissions], period_s))


def _ticks(times: Sequence[float], period_s: float) -> list[tuple[float, int]]:
    """(moment of sending, tokens gathered by then) for a server that looks every `period_s` seconds."""
    looks = [(times[0], 1)]
    for index, time in enumerate(times[1:], start=1):
        # A token waits for the next look; the small allowance keeps a token that falls on a look from waiting
        # a period.
        tick = times[0] + math.ceil((time - times[0]) / period_s - 1e-9) * period_s
        moment = min(max(tick, time), times[-1])  # never before the token exists
        if looks[-1][0] == moment:
            looks.pop()
        looks.append((moment, index + 1))
    return looks


def _messages(emissions: Sequence[Emission], cuts: Iterable[tuple[float, int]]) -> tuple[Message, ...]:
    """Turn cuts (moment, tokens so far) into messages of whole characters. A cut inside a character finds
    nothing new to send and waits for the next; at the very end an unfinished character becomes U+FFFD, as
    every decoder does."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    messages: list[Message] = []
    start, fed, text = 0, 0, ""
    for moment, stop in cuts:
        data = b"".join(emission.data for emission in emissions[fed:stop])
        text += decoder.decode(data, final=stop == len(emissions))
        fed = stop
        if text or stop == len(emissions):
            messages.append(Message(moment, moment, start, stop, text))
            start, text = stop, ""
    return tuple(messages)


def waiting_tokens(emissions: Sequence[Emission]) -> tuple[bool, ...]:
    """For each token: does it end inside a character, so that its text has to wait for the next token?"""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    waiting = []
    for emission in emissions:
        decoder.decode(emission.data)
        waiting.append(bool(decoder.getstate()[0]))
    return tuple(waiting)


# ---- between server and screen: simulated ------------------------------------------------------------------


def deliver(
    messages: Sequence[Message], delay_s: float = 0.0, jitter_s: float = 0.0, seed: int = 0
) -> tuple[Message, ...]:
    """SIMULATED network: each message takes `delay_s` plus a uniform part of `jitter_s`; none overtakes
    another (one connection keeps its order). The same seed gives the same journey."""
    check_times("delay", (delay_s,), "a delay in seconds, 0 or more")
    check_times("jitter", (jitter_s,), "a time in seconds, 0 or more")
    dice, previous, delivered = random.Random(seed), 0.0, []
    for message in messages:
        previous = max(previous, message.sent_s + delay_s + jitter_s * dice.random())
        delivered.append(replace(message, arrived_s=previous))
    return tuple(delivered)


def arrivals_of(messages: Sequence[Message]) -> tuple[Arrival, ...]:
    """The client's view of the messages, for the figures of `core.latency`."""
    return tuple(Arrival(message.arrived_s, message.n_tokens) for message in messages)


# ---- stage 3: the screen -----------------------------------------------------------------------------------


def draws_as_it_comes(messages: Sequence[Message]) -> tuple[Draw, ...]:
    """Draw each message's characters the moment it arrives."""
    draws, shown = [], 0
    for message in messages:
        if message.text:
            shown += len(message.text)
            draws.append(Draw(message.arrived_s, shown))
    return tuple(draws)


def draws_smoothed(messages: Sequence[Message], chars_per_s: float) -> tuple[Draw, ...]:
    """Draw one character at a time, never faster than `chars_per_s` and never before it has arrived."""
    if not math.isfinite(chars_per_s) or chars_per_s <= 0:
        raise InvalidSettingError(name="characters per second", value=chars_per_s, allowed="a number above 0")
    draws: list[Draw] = []
    for message in messages:
        for _ in message.text:
            ready = draws[-1].time_s + 1.0 / chars_per_s if draws else 0.0
            draws.append(Draw(max(message.arrived_s, ready), len(draws) + 1))
    return tuple(draws)


def draws_at_end(messages: Sequence[Message]) -> tuple[Draw, ...]:
    """Draw everything when the last message has arrived."""
    n_chars = sum(len(message.text) for message in messages)
    return (Draw(messages[-1].arrived_s, n_chars),) if n_chars else ()


def first_and_last_s(draws: Sequence[Draw]) -> tuple[float, float] | None:
    """When the first and the last character appear; None when nothing is ever drawn."""
    return (draws[0].time_s, draws[-1].time_s) if draws else None


# ---- recorded streams --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedStream:
    """A real run, of which only what streaming needs was kept: each token's bytes and moment, and how it was
    made."""

    emissions: tuple[Emission, ...]
    token_ids: tuple[int, ...]
    special: tuple[bool, ...]
    prompt: str
    chat: bool
    model: str
    n_prompt: int
    admitted_s: float
    machine: str
    created: str
    versions: dict[str, str]

    def events(self) -> Events:
        """The run's moments, for the figures of `core.latency`."""
        return Events(0.0, self.admitted_s, tuple(emission.time_s for emission in self.emissions))

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        values = {name: getattr(self, name) for name in _KEPT}
        rows = [
            [e.time_s, e.data.hex(), i, s]
            for e, i, s in zip(self.emissions, self.token_ids, self.special, strict=True)
        ]
        path.write_text(
            json.dumps({**values, "tokens": rows}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )

    @staticmethod
    def load(path: Path) -> RecordedStream:
        """Read what `save` wrote. Raises TraceFileError for anything else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            emissions = tuple(Emission(float(row[0]), bytes.fromhex(row[1])) for row in values["tokens"])
            check_emissions(emissions)
            return RecordedStream(
                emissions=emissions,
                token_ids=tuple(int(row[2]) for row in values["tokens"]),
                special=tuple(bool(row[3]) for row in values["tokens"]),
                **{name: values[name] for name in _KEPT},
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError, InvalidSettingError) as error:
            raise TraceFileError(path=str(path), reason="it is damaged or no recorded stream") from error


_KEPT = ("prompt", "chat", "model", "n_prompt", "admitted_s", "machine", "created", "versions")


def stream_of(trace: Trace) -> RecordedStream:
    """What streaming needs of a run."""
    return RecordedStream(
        emissions=emissions_of(trace),
        token_ids=tuple(token.id for token in trace.answer_tokens),
        special=tuple(token.is_special for token in trace.answer_tokens),
        prompt=trace.prompt,
        chat=trace.chat,
        model=trace.spec.name,
        n_prompt=trace.n_prompt,
        admitted_s=float(trace.admitted_s),
        machine=trace.machine,
        created=trace.created,
        versions=dict(trace.versions),
    )
