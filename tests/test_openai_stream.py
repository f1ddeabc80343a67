"""Measuring a server: its messages and their moments, on honest and on misbehaving servers, and where the key
never goes."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import openai_stream
from core.errors import (
    BusyError,
    EndpointAnswerError,
    EndpointOffError,
    EndpointStatusError,
    EndpointTimeoutError,
    EndpointUnreachableError,
    EndpointUrlError,
    ExplainerError,
    InvalidSettingError,
)
from core.latency import summarize
from core.openai_stream import Ask, Cancel, Endpoint, EventParser, Measurement, Observation, observe
from tests.openai_server import (
    DONE,
    Piece,
    QuietHandler,
    event,
    model_handler,
    raw_handler,
    serve,
    text_event,
)

KEY = "sk-secret-0123456789"
FAST = Ask("Hi", connect_timeout_s=2, read_timeout_s=2, total_timeout_s=10)


def ask_raw(pieces: list[Piece], *, ask: Ask = FAST, key: str = KEY, **options: Any) -> Observation:
    with serve(raw_handler(pieces, **options)) as url:
        return observe(Endpoint(url, "m", key), ask)


def stream_of(*texts: str) -> list[Piece]:
    return [text_event(text) for text in texts] + [DONE]


# ---- the dialect ----


def test_messages_carry_text_and_the_moment_they_arrived() -> None:
    seen = ask_raw([text_event("Hel"), 0.10, text_event("lo"), 0.15, text_event("!"), DONE])
    assert [m.text for m in seen.messages] == ["Hel", "lo", "!"]
    first, second, third = (m.time_s for m in seen.messages)
    assert 0.05 <= second - first < 2
    assert 0.08 <= third - second < 2
    assert seen.streamed
    assert 0 <= seen.connected_s < first <= seen.ended_s


def test_what_is_asked() -> None:
    asked: list[dict[str, Any]] = []
    with serve(raw_handler(stream_of("a"), seen=asked)) as url:
        observe(Endpoint(url + "/", "my-model", KEY), Ask("Hello", max_tokens=7))
    assert asked[0]["path"] == "/v1/chat/completions"
    assert asked[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    body = asked[0]["body"]
    assert body["model"] == "my-model"
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert (body["max_tokens"], body["stream"], body["stream_options"]) == (7, True, {"include_usage": True})


def test_no_key_no_header_and_a_full_path_is_taken_as_it_is() -> None:
    asked: list[dict[str, Any]] = []
    with serve(raw_handler(stream_of("a"), seen=asked)) as url:
        observe(Endpoint(url + "/chat/completions", "m"), FAST)
    assert "Authorization" not in asked[0]["headers"]
    assert asked[0]["path"] == "/v1/chat/completions"


def test_comments_other_fields_and_all_line_ends_are_understood() -> None:
    pieces: list[Piece] = [
        b": keep-alive\n\n",
        b"event: message\r\nid: 7\r\nretry: 10\r\n" + text_event("a").replace(b"\n", b"\r\n"),
        text_event("b").replace(b"\n", b"\r"),
        b"\xef\xbb\xbf" * 0 + text_event("c"),
        DONE,
    ]
    assert [m.text for m in ask_raw(pieces).messages] == ["a", "b", "c"]


@given(
    st.lists(st.text(max_size=8), min_size=1, max_size=5), st.lists(st.integers(1, 9), min_size=1, max_size=5)
)
def test_a_stream_cut_anywhere_gives_the_same_events(texts: list[str], cuts: list[int]) -> None:
    raw = b"".join(event({"t": text}) for text in texts).replace(b"\n\n", b"\r\n\r\n")
    raw = raw.replace(b"data: ", b": ping\r\n\r\ndata: ")
    parser, events, place, index = EventParser(), [], 0, 0
    while place < len(raw):
        size = cuts[index % len(cuts)]
        events += parser.feed(raw[place : place + size])
        place, index = place + size, index + 1
    events += parser.feed(b"", final=True)
    assert [json.loads(e)["t"] for e in events] == texts


def test_an_event_without_its_last_empty_line_still_counts() -> None:
    assert [m.text for m in ask_raw([text_event("a"), text_event("b")[:-2]]).messages] == ["a", "b"]


def test_a_message_cut_in_the_middle_of_a_character_arrives_when_it_is_complete() -> None:
    raw = event(json.dumps({"choices": [{"delta": {"content": "雨"}}]}, ensure_ascii=False).encode())
    cut = raw.index("雨".encode()) + 1
    seen = ask_raw([raw[:cut], 0.1, raw[cut:], DONE])
    assert [m.text for m in seen.messages] == ["雨"]
    assert seen.messages[0].time_s >= 0.1  # nothing was shown of the half


# ---- how many tokens ----


def test_without_a_word_from_the_server_tokens_stay_unknown() -> None:
    seen = ask_raw(stream_of("Hello", " world"))
    assert seen.n_tokens is None
    assert not seen.counted
    assert [m.n_tokens for m in seen.messages] == [None, None]


def test_a_total_at_the_end_is_a_total_and_nothing_more() -> None:
    last = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})
    seen = ask_raw([text_event("Hello"), text_event(" world"), last, DONE])
    assert (seen.n_tokens, seen.prompt_tokens, seen.counted) == (5, 9, False)


def test_a_total_in_the_last_text_message_does_not_make_it_a_message_of_many_tokens() -> None:
    last = text_event("!", usage={"completion_tokens": 5})
    seen = ask_raw([text_event("Hello"), text_event(" world"), last, DONE])
    assert (seen.n_tokens, seen.counted) == (5, False)
    assert [m.n_tokens for m in seen.messages] == [None] * 3


def test_running_totals_say_what_each_message_held() -> None:
    pieces: list[Piece] = [
        text_event("a", usage={"completion_tokens": 1}),
        text_event("bcd", usage={"completion_tokens": 4}),
        text_event("", usage={"completion_tokens": 5}),  # half a character: a token without text
        event({"choices": [], "usage": {"completion_tokens": 5}}),
        DONE,
    ]
    seen = ask_raw(pieces)
    assert seen.counted
    assert [m.n_tokens for m in seen.carrying] == [1, 3, 1]
    assert [a.n_tokens for a in seen.request().arrivals] == [1, 3, 1]
    assert seen.n_tokens == 5


def test_logprobs_and_token_ids_count_too() -> None:
    def choice(text: str, **more: object) -> bytes:
        return event({"choices": [{"delta": {"content": text}, **more}]})

    by_logprobs = ask_raw(
        [choice("ab", logprobs={"content": [{}, {}]}), choice("c", logprobs={"content": [{}]}), DONE]
    )
    by_ids = ask_raw([choice("ab", token_ids=[1, 2]), choice("c", token_ids=[3]), DONE])
    for seen in (by_logprobs, by_ids):
        assert [m.n_tokens for m in seen.messages] == [2, 1]
        assert seen.n_tokens == 3


def test_thinking_counts_as_text() -> None:
    thought = event({"choices": [{"delta": {"reasoning_content": "hmm"}}]})
    assert [m.text for m in ask_raw([thought, text_event("ok"), DONE]).messages] == ["hmm", "ok"]


@pytest.mark.parametrize("count", [True, -1, 1.5, "3", 10**12, None, [1]])
def test_absurd_counts_are_not_believed(count: object) -> None:
    seen = ask_raw([text_event("a", usage={"completion_tokens": count}), DONE])
    assert seen.n_tokens is None


def test_figures_of_the_observation() -> None:
    seen = ask_raw([0.05, text_event("a"), 0.1, text_event("b"), DONE])
    figures = summarize(seen.request().events)
    assert figures.ttft_s == seen.messages[0].time_s
    assert 0.05 <= figures.gaps_s[0] < 2


def test_a_server_that_does_not_stream_is_one_message() -> None:
    whole = {"model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 12},
             "choices": [{"message": {"content": "All at once."}, "finish_reason": "stop"}]}  # fmt: skip
    seen = ask_raw([0.1, json.dumps(whole).encode()], content_type="application/json; charset=utf-8")
    assert not seen.streamed
    assert [(m.text, m.n_tokens) for m in seen.messages] == [("All at once.", 12)]
    assert (seen.n_tokens, seen.finish_reason) == (12, "stop")
    mislabelled = ask_raw([json.dumps(whole).encode()], content_type="text/plain")
    assert mislabelled.messages[0].text == "All at once."


# ---- servers that know only one of the younger fields ----


class Picky(QuietHandler):
    """Complains once about each field it does not know."""

    unknown = ("stream_options", "temperature")

    def do_POST(self) -> None:
        body, complaint = self.body(), ""
        if "max_tokens" in body:
            complaint = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        for name in self.unknown:
            if name in body:
                complaint = complaint or f"{name}: extra fields not permitted"
        raw = json.dumps({"error": {"message": complaint}}).encode() if complaint else text_event("ok") + DONE
        self.send_response(400 if complaint else 200)
        self.send_header("Content-Type", "application/json" if complaint else "text/event-stream")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def test_a_picky_server_is_asked_again_its_way() -> None:
    with serve(Picky) as url:
        assert observe(Endpoint(url, "m"), FAST).messages[0].text == "ok"


# ---- errors in words ----


def failing(**options: Any) -> ExplainerError:
    pieces = options.pop("pieces", [])
    with pytest.raises(ExplainerError) as caught:
        ask_raw(pieces, **options)
    return caught.value


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"status": 401, "pieces": [b'{"error": {"message": "Bad key"}}']}, EndpointStatusError, "401.*Bad key"),
        ({"status": 404, "pieces": [b'{"detail": "Not Found"}']}, EndpointStatusError, "404.*Not Found"),
        ({"status": 500, "pieces": [b"<html><h1>Oops"]}, EndpointStatusError, "500.*Internal Server Error"),
        ({"status": 429, "pieces": [b"slow down"]}, EndpointStatusError, "429.*slow down"),
        ({"status": 400, "pieces": [b'{"error": "no such model"}']}, EndpointStatusError, "no such model"),
        ({"pieces": [b"<!doctype html><html><body>Hi"]}, EndpointAnswerError, "web page"),
        ({"pieces": [b"hello"]}, EndpointAnswerError, "not JSON"),
        ({"pieces": [b"data: {oops\n\n"]}, EndpointAnswerError, "not JSON"),
        ({"pieces": [b"data: [1]\n\n"]}, EndpointAnswerError, "not a JSON object"),
        ({"pieces": [DONE]}, EndpointAnswerError, "not JSON"),
        ({"pieces": [text_event(""), DONE]}, EndpointAnswerError, "no text"),
        ({"pieces": [event({"choices": []}), DONE]}, EndpointAnswerError, "no text"),
        ({"pieces": [event({"choices": [None]}), event({"choices": {}}), DONE]}, EndpointAnswerError, "no text"),
        ({"pieces": [b"data: " + b"[" * 100_000 + b"\n\n"]}, EndpointAnswerError, "not JSON"),
        ({"pieces": [event({"error": {"message": "out of memory"}})]}, EndpointStatusError, "out of memory"),
        ({"pieces": [text_event("x" * 60_000)] * 80}, EndpointAnswerError, "larger"),
        ({"pieces": [text_event("x") * 21_000]}, EndpointAnswerError, "larger"),
        ({"status": 307, "headers": {"Location": "https://evil.example/v1/chat/completions?t=1"}},
         EndpointUrlError, "another address, https://evil.example/v1;"),
        ({"status": 302}, EndpointUrlError, "another address"),
    ],
)  # fmt: skip
def test_every_fault_of_a_server_is_a_sentence(options: dict[str, Any], kind: type, words: str) -> None:
    error = failing(**options)
    assert isinstance(error, kind)
    assert words.split(".*")[-1] in str(error)
    assert error.values.get("why", "") in {"", *openai_stream.REASONS}


@contextmanager
def bare_server(reply: bytes | None) -> Iterator[str]:
    """Not HTTP at all: answers every connection with `reply`, or never (None)."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def work() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            if reply is not None:
                connection.recv(65536)
                connection.sendall(reply)
                connection.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.close()
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "reply", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
def test_what_is_not_http_is_said_to_be_so(reply: bytes) -> None:
    with bare_server(reply) as url, pytest.raises(EndpointAnswerError, match="not HTTP"):
        observe(Endpoint(url, "m"), FAST)


def test_a_connection_that_ends_in_the_middle_keeps_nothing() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    half = text_event("a")
    reply = head + f"{len(half):x}\r\n".encode() + half + b"\r\n"
    with bare_server(reply) as url, pytest.raises(EndpointAnswerError, match="ended in the middle"):
        observe(Endpoint(url, "m"), FAST)


def test_nothing_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EndpointUnreachableError, match=f"127.0.0.1:{port}.*nothing listens"):
        observe(Endpoint(f"http://127.0.0.1:{port}/v1", "m"), FAST)


def test_a_name_without_a_machine() -> None:
    for host in ("no-such-host.invalid", "a" * 70 + ".invalid"):
        with pytest.raises(EndpointUnreachableError):
            observe(Endpoint(f"http://{host}/v1", "m"), FAST)


def test_plain_http_where_https_is_asked_for() -> None:
    with serve(raw_handler(stream_of("a"))) as url, pytest.raises(EndpointUnreachableError, match="TLS"):
        observe(Endpoint(url.replace("http:", "https:"), "m"), FAST)


# ---- limits ----


def test_a_silent_server_is_given_up_after_the_read_limit() -> None:
    ask, start = Ask("Hi", read_timeout_s=0.3), time.monotonic()
    with bare_server(None) as url, pytest.raises(EndpointTimeoutError, match=r"0\.3 s"):
        observe(Endpoint(url, "m"), ask)
    assert time.monotonic() - start < 4


def test_a_server_that_drips_for_ever_is_given_up_after_the_whole_limit() -> None:
    ask, start = Ask("Hi", read_timeout_s=5, total_timeout_s=0.5), time.monotonic()
    with pytest.raises(EndpointTimeoutError, match=r"0\.5 s to complete"):
        ask_raw([text_event("a"), *([b": ping\n\n", 0.05] * 100)], ask=ask)
    assert time.monotonic() - start < 4


def test_dripping_headers_are_no_way_round_the_limit() -> None:
    class Drip(BaseHTTPRequestHandler):
        def handle(self) -> None:
            try:
                for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 90:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
            except OSError:
                pass

    start = time.monotonic()
    with serve(Drip) as url, pytest.raises(EndpointTimeoutError):
        observe(Endpoint(url, "m"), Ask("Hi", read_timeout_s=5, total_timeout_s=0.4))
    assert time.monotonic() - start < 4


def test_another_thread_can_stop_it_at_once() -> None:
    cancel, start = Cancel(), time.monotonic()
    threading.Timer(0.2, cancel.set).start()
    with serve(raw_handler([text_event("a"), 5.0, DONE])) as url:
        with pytest.raises(EndpointAnswerError, match="stopped"):
            observe(Endpoint(url, "m"), FAST, cancel=cancel)
        assert time.monotonic() - start < 4
        with pytest.raises(EndpointAnswerError, match="stopped"):
            observe(Endpoint(url, "m"), FAST, cancel=cancel)  # stopped before it began


def test_one_instance_opens_only_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_stream, "_OPEN", threading.BoundedSemaphore(1))
    with serve(raw_handler([text_event("a"), 0.5, DONE])) as url:
        measurement = Measurement(Endpoint(url, "m"), FAST, 2)
        assert measurement.wait(5)
        assert len(measurement.observations) == 1
        assert isinstance(measurement.errors[0], BusyError)


# ---- addresses ----


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1", "file:///etc/passwd", "//host/v1", "host:8000/v1", "", "   ", "http://", "http:///v1",
        "javascript:alert(1)", "http://host:99999/v1", "http://host:0/v1", "http://user:pw@host/v1", "http://@host/v1",
        "http://host/v1?api_key=1", "http://host/v1#x", "http://host/v1\r\nX: y", "http://ho st/v1", "http://host/vé",
        "http://[::1/v1", "http://host:port/v1", "http://host/\x00",
    ],
)  # fmt: skip
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(EndpointUrlError) as caught:
        Endpoint(url, "m")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", " https://api.example.com ", "http://[::1]:9/v1/"]
)
def test_addresses_that_are_some(url: str) -> None:
    assert Endpoint(url, "m").base_url == url


@pytest.mark.parametrize(
    ("address", "is_secret"),
    [
        ("169.254.169.254", True), ("::ffff:169.254.169.254", True), ("fe80::1%eth0", True), ("fd00:ec2::254", True),
        ("224.0.0.1", True), ("127.0.0.1", False), ("::1", False), ("192.168.1.7", False), ("10.0.0.5", False),
    ],
)  # fmt: skip
def test_machines_do_not_give_away_their_metadata(address: str, is_secret: bool) -> None:
    assert openai_stream._is_secret_place(address) is is_secret


def test_the_address_is_checked_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(openai_stream, "_is_secret_place", lambda peer: True)
    with serve(raw_handler(stream_of("a"), seen=asked)) as url, pytest.raises(EndpointUrlError):
        observe(Endpoint(url, "m", KEY), FAST)
    assert asked == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: Endpoint("http://h/v1", " "),
        lambda: Endpoint("http://h/v1", "m" * 301),
        lambda: Endpoint("http://h/v1", "m", "sk-a\r\nX-Evil: 1"),
        lambda: Endpoint("http://h/v1", "m", "鍵"),
        lambda: Endpoint("http://h/v1", "m", "k" * 4001),
        lambda: Ask(" "),
        lambda: Ask("x" * 100_001),
        lambda: Ask("x", max_tokens=0),
        lambda: Ask("x", total_timeout_s=0),
        lambda: Ask("x", read_timeout_s=float("nan")),
        lambda: Measurement(Endpoint("http://h/v1", "m"), FAST, 9),
        lambda: Measurement(Endpoint("http://h/v1", "m"), FAST, 0),
    ],
)
def test_impossible_settings_are_refused_without_quoting_secrets(make: Any) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        make()
    assert "sk-a" not in str(caught.value)
    assert "鍵" not in str(caught.value)


# ---- the key ----


def test_the_key_is_in_no_repr_error_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint = Endpoint("http://h/v1", "m", KEY)
    assert KEY not in repr(endpoint) + str(endpoint) + f"{endpoint}"
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}. Or Bearer {KEY}?"}}).encode()
    for options in (
        {"status": 401, "pieces": [echo]},
        {"pieces": [event({"error": {"message": f"no {KEY}"}})]},
        {"status": 500, "pieces": [f"Traceback: {KEY}".encode()]},
        {"pieces": [f"{KEY}".encode()]},
        {"status": 307, "headers": {"Location": f"/?key={KEY}"}},
    ):
        error = failing(**options)
        text = "".join(traceback.format_exception(error)) + repr(error) + str(error.values)
        assert KEY not in text + pickle.dumps(error).decode("latin-1")
    assert KEY not in caplog.text


# ---- switch, and several at once ----


@pytest.mark.parametrize("value", ["0", "false", "No", " off "])
def test_an_owner_can_turn_it_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OTAT_ALLOW_ENDPOINT", value)
    assert not openai_stream.is_allowed()
    with pytest.raises(EndpointOffError):
        observe(Endpoint("http://127.0.0.1:1/v1", "m"), FAST)
    with pytest.raises(EndpointOffError):
        Measurement(Endpoint("http://127.0.0.1:1/v1", "m"), FAST)


def test_it_is_on_for_oneself_and_off_for_a_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTAT_ALLOW_ENDPOINT", raising=False)
    assert openai_stream.is_allowed()
    assert not openai_stream.is_allowed(served_to_others=True)
    monkeypatch.setenv("OTAT_ALLOW_ENDPOINT", "1")
    assert openai_stream.is_allowed(served_to_others=True)


def test_requests_of_a_measurement_run_side_by_side() -> None:
    with serve(raw_handler([0.3, text_event("a"), 0.2, text_event("b"), DONE])) as url:
        start = time.monotonic()
        measurement = Measurement(Endpoint(url, "m"), FAST, 4)
        assert not measurement.is_done
        assert measurement.wait(5)
        assert time.monotonic() - start < 1.9  # one after another would take 2 s
        assert len(measurement.observations) == 4
        assert measurement.n_messages == 8
        assert measurement.errors == ()


def test_a_measurement_can_be_cancelled() -> None:
    with serve(raw_handler([text_event("a"), 5.0, DONE])) as url:
        measurement = Measurement(Endpoint(url, "m"), FAST, 3)
        time.sleep(0.2)
        measurement.cancel()
        assert measurement.wait(2)
        assert [type(e) for e in measurement.errors] == [EndpointAnswerError] * 3


# ---- the real thing: our own model behind a real server ----


def test_our_own_model_behind_a_server(scheduler: Any) -> None:
    """What the client writes down is when the messages left the server, give or take a few milliseconds."""
    emitted: list[float] = []
    with serve(model_handler(scheduler, emitted)) as url:
        start = time.monotonic()
        seen = observe(Endpoint(url, "ours"), Ask("What is gravity?", max_tokens=8))
    assert seen.counted
    assert seen.n_tokens == 8
    assert [m.n_tokens for m in seen.carrying] == [1] * 8
    arrived = [m.time_s for m in seen.carrying]
    lags = [a - (e - start) for a, e in zip(arrived, emitted, strict=True)]
    assert all(lag >= -0.001 for lag in lags)
    assert sorted(lags)[4] < 0.1
    assert "".join(m.text for m in seen.messages).strip()


def test_bundling_widens_the_message_gap_and_leaves_the_time_per_token(scheduler: Any) -> None:
    with serve(model_handler(scheduler, per_message=4)) as url:
        seen = observe(Endpoint(url, "ours"), Ask("What is gravity?", max_tokens=12))
    assert [m.n_tokens for m in seen.carrying] == [4, 4, 4]
    assert seen.n_tokens == 12
