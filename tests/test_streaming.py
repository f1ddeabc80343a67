"""The three stages of streaming: hand-worked journeys, and what holds for every run and every setting."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import streaming
from core.errors import InvalidSettingError, TraceFileError
from core.streaming import (
    Draw,
    Emission,
    Message,
    RecordedStream,
    deliver,
    draws_as_it_comes,
    draws_at_end,
    draws_smoothed,
    messages_every_seconds,
    messages_every_tokens,
)
from tests.conftest import ROOT

HELLO = tuple(Emission(t, d) for t, d in ((0.5, b"Hel"), (0.6, b"lo"), (0.72, b" wor"), (0.81, b"ld")))
# 雨 is e9 9b a8: its first token holds two thirds of it, as byte-level tokens do.
RAIN = (Emission(0.5, b"\xe9\x9b"), Emission(0.6, b"\xa8"), Emission(0.7, "です".encode()))

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
gaps = st.lists(st.floats(0, 2, allow_nan=False), min_size=60, max_size=60)


def emissions(text: str, sizes: list[int], between: list[float]) -> tuple[Emission, ...]:
    """Cut a text's bytes anywhere, as byte-level tokens may."""
    data, parts, place, now = text.encode(), [], 0, 0.1
    for size, gap in zip(sizes * 60, between, strict=False):
        if place >= len(data):
            break
        now += gap
        parts.append(Emission(now, data[place : place + size]))
        place += size
    return tuple(parts) if place >= len(data) else (*parts, Emission(now, data[place:]))


def test_every_token_is_one_message() -> None:
    messages = messages_every_tokens(HELLO)
    assert [(m.sent_s, m.text) for m in messages] == [(0.5, "Hel"), (0.6, "lo"), (0.72, " wor"), (0.81, "ld")]
    assert all(m.arrived_s == m.sent_s for m in messages)


def test_every_three_tokens_and_the_rest_at_the_end() -> None:
    messages = messages_every_tokens(HELLO, 3)
    assert [(m.sent_s, m.start, m.stop, m.text) for m in messages] == [
        (0.72, 0, 3, "Hello wor"),
        (0.81, 3, 4, "ld"),
    ]


def test_every_quarter_second_the_server_looks_what_has_gathered() -> None:
    """First token at 0.50 goes at once; the look at 0.75 finds two; the last does not wait for 1.00."""
    messages = messages_every_seconds(HELLO, 0.25)
    assert [(m.sent_s, m.n_tokens, m.text) for m in messages] == [
        (0.5, 1, "Hel"),
        (0.75, 2, "lo wor"),
        (0.81, 1, "ld"),
    ]


def test_a_token_exactly_on_a_look_goes_with_it() -> None:
    on_look = (Emission(0.0, b"a"), Emission(0.1, b"b"), Emission(0.2, b"c"), Emission(0.3, b"d"))
    assert [m.sent_s for m in messages_every_seconds(on_look, 0.1)] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_no_message_leaves_before_its_token_exists() -> None:
    """A token a billionth of a second after a look is not sent with that look."""
    late = (Emission(0.0, b"a"), Emission(0.1, b"b"), Emission(0.1 + 1e-9, b"c"), Emission(0.5, b"d"))
    for message in messages_every_seconds(late, 0.1):
        assert message.sent_s >= late[message.stop - 1].time_s


def test_tokens_of_the_same_moment_share_the_first_message() -> None:
    together = (Emission(0.5, b"a"), Emission(0.5, b"b"), Emission(0.9, b"c"))
    assert [m.n_tokens for m in messages_every_seconds(together, 1.0)] == [2, 1]


def test_half_a_character_waits_for_its_other_half() -> None:
    assert streaming.waiting_tokens(RAIN) == (True, False, False)
    messages = messages_every_tokens(RAIN)
    assert [(m.sent_s, m.n_tokens, m.text) for m in messages] == [(0.6, 2, "雨"), (0.7, 1, "です")]


def test_an_unfinished_character_at_the_end_is_shown_as_such() -> None:
    messages = messages_every_tokens((Emission(0.5, b"a"), Emission(0.6, b"\xe9\x9b")))
    assert [m.text for m in messages] == ["a", "\ufffd"]


def test_the_emoji_family_of_many_tokens_comes_in_one_piece_per_code_point() -> None:
    family = "👨‍👩‍👧".encode()
    cut = tuple(Emission(float(i), family[i : i + 1]) for i in range(len(family)))
    messages = messages_every_tokens(cut)
    assert "".join(m.text for m in messages) == "👨‍👩‍👧"
    assert max(m.n_tokens for m in messages) == 4


def test_tokens_without_text_still_end_the_stream() -> None:
    """The stop token has no text to show, but its message tells the client that the answer is complete."""
    messages = messages_every_tokens((Emission(0.5, b"Hi"), Emission(0.6, b"")))
    assert [(m.text, m.n_tokens) for m in messages] == [("Hi", 1), ("", 1)]
    assert draws_as_it_comes(messages) == (Draw(0.5, 2),)


def test_nothing_in_nothing_out() -> None:
    assert messages_every_tokens(()) == messages_every_seconds((), 0.1) == deliver(()) == ()
    assert draws_as_it_comes(()) == draws_smoothed((), 10) == draws_at_end(()) == ()
    assert streaming.first_and_last_s(()) is None


def test_the_three_ways_to_draw() -> None:
    messages = messages_every_tokens(HELLO)
    assert draws_as_it_comes(messages) == (Draw(0.5, 3), Draw(0.6, 5), Draw(0.72, 9), Draw(0.81, 11))
    assert draws_at_end(messages) == (Draw(0.81, 11),)
    slow = draws_smoothed(messages, 10.0)  # one character per 0.1 s: the screen falls behind the model
    assert [d.time_s for d in slow] == pytest.approx([0.5 + 0.1 * i for i in range(11)])
    fast = draws_smoothed(messages, 100.0)  # faster than the model: each message's characters, 10 ms apart
    assert [d.time_s for d in fast[:5]] == pytest.approx([0.5, 0.51, 0.52, 0.6, 0.61])
    assert fast[-1] == Draw(pytest.approx(0.82), 11)


def test_the_network_keeps_the_order_and_its_seed() -> None:
    messages = messages_every_tokens(HELLO)
    once = deliver(messages, delay_s=0.05, jitter_s=0.5, seed=7)
    assert once == deliver(messages, delay_s=0.05, jitter_s=0.5, seed=7)
    assert once != deliver(messages, delay_s=0.05, jitter_s=0.5, seed=8)
    arrived = [m.arrived_s for m in once]
    assert arrived == sorted(arrived)
    assert all(m.arrived_s >= m.sent_s + 0.05 for m in once)
    assert [m.arrived_s - m.sent_s for m in deliver(messages, delay_s=0.05)] == pytest.approx([0.05] * 4)


def test_arrivals_for_the_figures_of_a_client() -> None:
    messages = deliver(messages_every_tokens(HELLO, 3), delay_s=0.1)
    assert [(a.time_s, a.n_tokens) for a in streaming.arrivals_of(messages)] == [
        (pytest.approx(0.82), 3),
        (pytest.approx(0.91), 1),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: messages_every_tokens(HELLO, 0),
        lambda: messages_every_seconds(HELLO, 0.0),
        lambda: messages_every_seconds(HELLO, math.nan),
        lambda: messages_every_tokens(HELLO[::-1]),
        lambda: messages_every_seconds((Emission(-1.0, b"a"),), 1.0),
        lambda: draws_smoothed(messages_every_tokens(HELLO), 0.0),
        lambda: draws_smoothed(messages_every_tokens(HELLO), math.inf),
        lambda: deliver(messages_every_tokens(HELLO), delay_s=-0.1),
        lambda: deliver(messages_every_tokens(HELLO), jitter_s=math.nan),
    ],
)
def test_impossible_settings_are_refused_in_words(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidSettingError, match="Choose"):
        call()


@given(
    texts, st.lists(st.integers(1, 5), min_size=1, max_size=8), gaps, st.integers(1, 7), st.floats(0.001, 3)
)
def test_no_stage_loses_text_or_overtakes_the_one_before(
    text: str, sizes: list[int], between: list[float], n: int, period: float
) -> None:
    model = emissions(text, sizes, between)
    for messages in (messages_every_tokens(model, n), messages_every_seconds(model, period)):
        arrived = deliver(messages, 0.02, 0.3, seed=3)
        check_messages(model, messages, text)
        assert messages[-1].sent_s == model[-1].time_s  # the last moment does not depend on the settings
        for draws in (draws_as_it_comes(arrived), draws_smoothed(arrived, 30.0), draws_at_end(arrived)):
            check_draws(arrived, draws, len(text))


def check_messages(model: tuple[Emission, ...], messages: tuple[Message, ...], text: str) -> None:
    assert "".join(m.text for m in messages) == text
    assert [m.start for m in messages] == [0, *(m.stop for m in messages[:-1])]
    assert messages[-1].stop == len(model)
    for message in messages:
        assert message.sent_s >= model[message.stop - 1].time_s


def check_draws(messages: tuple[Message, ...], draws: tuple[Draw, ...], n_chars: int) -> None:
    assert draws[-1].n_chars == n_chars
    assert [d.time_s for d in draws] == sorted(d.time_s for d in draws)
    for draw in draws:
        there = sum(len(m.text) for m in messages if m.arrived_s <= draw.time_s)
        assert draw.n_chars <= there


# ---- recorded streams ----

STREAMS = sorted((ROOT / "assets" / "runs").glob("*.stream.json"))


def test_a_stream_is_what_its_run_was(recorded: Any, tmp_path: Path) -> None:
    stream = streaming.stream_of(recorded)
    assert [e.time_s for e in stream.emissions] == [step.ended_s for step in recorded.choice_steps]
    text = "".join(message.text for message in messages_every_tokens(stream.emissions))
    assert text == recorded.answer_text
    assert stream.events().token_s[0] == recorded.first_token_s
    stream.save(tmp_path / "s.json")
    assert RecordedStream.load(tmp_path / "s.json") == stream


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"tokens": [[0.2, "zz", 1, false]]}', '{"tokens": 3}', "\x00"]
)
def test_a_damaged_stream_is_refused_in_words(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.stream.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TraceFileError, match="Record it again"):
        RecordedStream.load(path)
    with pytest.raises(TraceFileError):
        RecordedStream.load(tmp_path / "none.json")


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams_show_what_they_are_there_for(path: Path) -> None:
    """Half characters inside, whole ones at the end."""
    stream = RecordedStream.load(path)
    waiting = streaming.waiting_tokens(stream.emissions)
    assert sum(waiting) >= 3
    assert not waiting[-1]
    assert not any("\ufffd" in message.text for message in messages_every_tokens(stream.emissions))


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_recorded_streams_can_be_made_again(path: Path, scheduler: Any) -> None:
    from core.sampling import SamplingParams
    from core.scheduler import Request

    stream = RecordedStream.load(path)
    params = SamplingParams(max_tokens=len(stream.token_ids))
    request = Request.from_text(scheduler.loaded, stream.prompt, params, chat=stream.chat)
    again = streaming.stream_of(scheduler.submit(request).result(120))
    assert again.token_ids == stream.token_ids
    assert [e.data for e in again.emissions] == [e.data for e in stream.emissions]
    assert (again.n_prompt, again.model) == (stream.n_prompt, stream.model)
