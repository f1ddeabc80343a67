"""Measure a server of your own: stream one answer from it and write down when each message arrived.

Most LLM servers (vLLM, SGLang, llama.cpp, Ollama, TGI, LM Studio, the hosted ones) speak one dialect: POST a
JSON to `<base URL>/chat/completions` with `"stream": true`, and the answer comes back as *server-sent
events*: lines that begin with `data:`, each with a small JSON that holds the next piece of text, and `data:
[DONE]` at the end. What arrives is a **message**, not a token: servers bundle tokens, and only some say how
many (`usage`, `logprobs`, `token_ids`). Where the server does not say, this module says that it does not
know; it never guesses that one message is one token.

The server is somebody else's, so nothing about it is taken on trust: only http and https, no redirects (the
address to use is named instead), limits on time, size and number of messages, and text is only text. The key
is sent to the server and to nobody else: it is kept out of reprs, errors and addresses, and whatever the
server says is shown without it. `OTAT_ALLOW_ENDPOINT=0` turns the whole thing off; an app that serves a room
has it off unless its owner sets 1.

Standard library only; times are seconds since the request was started, on this machine's monotonic clock.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

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
from core.latency import Arrival, Events, Request, check_times

SWITCH = "OTAT_ALLOW_ENDPOINT"
PATH = "/chat/completions"
MAX_BYTES = 4_000_000  # of one answer
MAX_MESSAGES = 20_000
MAX_REQUESTS = 8  # of one measurement
# Streams of all sessions together: a room full of learners must not become a load generator.
_OPEN = threading.BoundedSemaphore(16)

# Why an address, a connection or an answer is of no use, by the key of its translation (`reason.<key>`).
REASONS = {
    "no_url": "it is not a web address",
    "scheme": "it does not begin with http:// or https://",
    "parts": "its host, port or path is not valid",
    "secrets": "keys and parameters do not belong into the address",
    "local_network": "it belongs to the machine's own network",
    "redirect": "the server points to another address, {target}; type that one if you trust it",
    "tls": "its certificate or its TLS is not accepted",
    "no_name": "no machine has this name",
    "refused": "nothing listens there",
    "no_way": "the network gives no way there",
    "connect": "to accept the connection",
    "answer": "to send the next message",
    "complete": "to complete the answer",
    "stopped": "the measurement was stopped",
    "broken": "the connection ended in the middle, or it is not HTTP",
    "not_object": "a message is not a JSON object",
    "too_large": "it is larger than this page reads",
    "empty": "it holds no text",
    "web_page": "it is a web page",
    "not_json": "it is not JSON",
    "fault": "of a fault here ({target})",
}


def _why(name: str, target: str = "") -> dict[str, str]:
    """The values of an error's reason: in English, and as the key of its translation."""
    return {"why": name, "target": target, "reason": REASONS[name].format(target=target)}


def is_allowed(*, served_to_others: bool = False) -> bool:
    """May this instance talk to other servers?

    Its owner says so with OTAT_ALLOW_ENDPOINT=1 or 0. Unset: yes on a machine of one's own, no where others reach the
    app, since they could make this machine ask addresses of its own network.
    """
    chosen = os.environ.get(SWITCH, "").strip().lower()
    return not served_to_others if chosen == "" else chosen not in {"0", "false", "no", "off"}


# ---- what to ask -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Endpoint:
    """A server, a model on it, and the key to it. The key is never shown by repr or str."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        parse_url(self.base_url)
        if not self.model.strip() or len(self.model) > 300:
            raise InvalidSettingError(
                name="model", value=self.model[:40], allowed="the model's name on the server"
            )
        # http.client would quote a bad header, key included, in its error.
        if not all(33 <= ord(c) <= 126 for c in self.api_key) or len(self.api_key) > 4000:
            raise InvalidSettingError(
                name="key", value="these characters", allowed="the key alone, without spaces"
            )


@dataclass(frozen=True)
class Ask:
    """The question and the limits of one request. Times in seconds."""

    prompt: str
    max_tokens: int = 64
    temperature: float = 0.0
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    total_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if not self.prompt.strip() or len(self.prompt) > 100_000:
            raise InvalidSettingError(name="prompt", value="this text", allowed="1 to 100,000 characters")
        if not 1 <= self.max_tokens <= 4096:
            raise InvalidSettingError(name="max_tokens", value=self.max_tokens, allowed="1 to 4096")
        for name in ("connect_timeout_s", "read_timeout_s", "total_timeout_s"):
            check_times(name, (getattr(self, name) - 0.001,), "a time above 0 s")


def parse_url(base_url: str) -> SplitResult:
    """The parts of an OpenAI-compatible base URL such as http://127.0.0.1:8000/v1. Raises
    EndpointUrlError."""
    url = base_url.strip()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise EndpointUrlError(url=url[:100], **_why("no_url")) from None
    shown = f"{parts.scheme}://{parts.hostname}" if parts.hostname else url[:100]
    if parts.scheme not in {"http", "https"}:
        raise EndpointUrlError(url=shown, **_why("scheme"))
    if not parts.hostname or port == 0 or any(ord(c) <= 32 or ord(c) > 126 for c in url):
        raise EndpointUrlError(url=shown, **_why("parts"))
    if parts.username is not None or parts.query or parts.fragment:
        raise EndpointUrlError(url=shown, **_why("secrets"))
    return parts


# ---- what came back ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamMessage:
    """One message: when it arrived, its text, and how many tokens it held where the server says so (else
    None)."""

    time_s: float
    text: str
    n_tokens: int | None


@dataclass(frozen=True)
class Observation:
    """One answer as its client saw it. `connected_s`: until the connection stood (about one way there and
    back)."""

    connected_s: float
    messages: tuple[StreamMessage, ...]
    ended_s: float
    streamed: bool
    finish_reason: str | None
    completion_tokens: int | None
    prompt_tokens: int | None
    model: str

    @property
    def carrying(self) -> tuple[StreamMessage, ...]:
        """The messages that hold text or tokens; the first (“role”) and last (“usage”) ones usually hold
        neither."""
        return tuple(m for m in self.messages if m.text or m.n_tokens)

    @property
    def n_tokens(self) -> int | None:
        """Answer tokens, where the server said so."""
        counts = [m.n_tokens for m in self.carrying]
        known = sum(n for n in counts if n is not None)
        return self.completion_tokens or (known if counts and None not in counts else None)

    @property
    def counted(self) -> bool:
        """Did the server say for each message how many tokens it held?"""
        return bool(self.carrying) and all(m.n_tokens is not None for m in self.carrying)

    def request(self) -> Request:
        """For the figures of `core.latency`. Where tokens are not counted each message stands for one: the
        gaps are then gaps between messages, and have to be called so."""
        arrivals = tuple(Arrival(m.time_s, max(1, m.n_tokens or 1)) for m in self.carrying)
        return Request(Events(0.0, 0.0, tuple(m.time_s for m in self.carrying)), arrivals)


# ---- server-sent events ------------------------------------------------------------------------------------


class EventParser:
    """Server-sent events from bytes that may be cut anywhere, also inside a character or between \\r and \\n.

    `feed(data)` returns the data of every event that `data` completes. Comments (`: keep-alive`) and fields
    other than `data` are skipped, several data lines of one event are joined by a line end, as the
    specification says."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[str] = []

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        raw = self._rest + data
        # A \r at the very end may be the first half of \r\n.
        self._rest = b"\r" if raw.endswith(b"\r") and not final else b""
        raw = raw[: len(raw) - len(self._rest)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, tail = raw.split(b"\n")
        if final:
            lines, tail = [*lines, tail, b""], b""
        self._rest = tail + self._rest
        events = [self._line(line.decode("utf-8", errors="replace")) for line in lines]
        return [event for event in events if event is not None]

    def _line(self, line: str) -> str | None:
        if not line:
            event = "\n".join(self._lines) if self._lines else None
            self._lines.clear()
            return event
        name, _, value = line.removeprefix("\ufeff").partition(":")
        if name == "data":
            self._lines.append(value.removeprefix(" "))
        return None


@dataclass
class _Reader:
    """Turns the JSON of each message into a StreamMessage, and remembers what only some messages say."""

    known_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    model: str = ""

    def read(self, payload: Any, time_s: float) -> StreamMessage:
        if not isinstance(payload, dict):
            raise EndpointAnswerError(**_why("not_object"))
        if payload.get("error"):
            raise EndpointStatusError(status=200, said=_message_of(payload))
        if isinstance(payload.get("model"), str):
            self.model = payload["model"][:200]
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"][:40]
        return StreamMessage(time_s, _text_of(choice), self._tokens(payload, choice))

    def _tokens(self, payload: dict[str, Any], choice: dict[str, Any]) -> int | None:
        """Tokens that this message brought, where it says so: a running total in `usage`, its token ids, or
        its logprobs."""
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
            total = _count(usage.get("completion_tokens"), None)
            if total is not None:
                self.completion_tokens = total
                if choice:  # a running total; the one without a choice closes the whole answer
                    new, self.known_tokens = max(0, total - self.known_tokens), total
                    return new
        logprobs = choice.get("logprobs")
        for counted in (
            choice.get("token_ids"),
            logprobs.get("content") if isinstance(logprobs, dict) else None,
        ):
            if isinstance(counted, list):
                return len(counted)
        return None


def _count(value: Any, otherwise: int | None) -> int | None:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10_000_000
    return value if usable else otherwise


def _text_of(choice: dict[str, Any]) -> str:
    """The text of a message; of a reasoning model also the thinking, which takes tokens and time like any
    text."""
    part = choice.get("delta") or choice.get("message") or choice
    if not isinstance(part, dict):
        return ""
    keys = ("reasoning_content", "reasoning", "content", "text")
    return "".join(part[key] for key in keys if isinstance(part.get(key), str))


def _message_of(payload: Any) -> str:
    """The sentence in a server's error JSON, in the shapes that servers use."""
    for key in ("error", "detail", "message"):
        value = payload.get(key) if isinstance(payload, dict) else None
        if isinstance(value, dict):
            value = value.get("message") or value.get("type")
        if isinstance(value, str) and value.strip():
            return value
    return ""


# ---- the connection ----------------------------------------------------------------------------------------


class _Line:
    """One connection that another thread may cut: for the overall time limit, and when a learner cancels."""

    def __init__(self, parts: SplitResult, timeout_s: float) -> None:
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connection = make(str(parts.hostname), parts.port, timeout=timeout_s)
        self.sock: socket.socket | None = None
        self.response: http.client.HTTPResponse | None = None
        self.cut_for = ""

    def connect(self, read_timeout_s: float) -> None:
        self.connection.connect()
        # Kept here: http.client forgets its socket as soon as a server says “Connection: close”.
        self.sock = self.connection.sock
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(read_timeout_s)
        # Checked on the address really reached and before anything is sent: cloud machines keep secrets there.
        if _is_secret_place(self.sock.getpeername()[0]):
            raise EndpointUrlError(url=self.connection.host, **_why("local_network"))

    def close(self) -> None:
        self.connection.close()
        for part in (self.response, self.sock):
            if part is not None:
                part.close()

    def cut(self, reason: str) -> None:
        self.cut_for = self.cut_for or reason
        if self.sock is not None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has already ended


def _is_secret_place(peer: str) -> bool:
    """Is this a link-local, multicast or cloud metadata address, where no LLM server is?"""
    address = ipaddress.ip_address(peer.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return (
        address.is_link_local or address.is_multicast or str(address) in {"fd00:ec2::254", "100.100.100.200"}
    )


class Cancel:
    """Handed to `observe`, so that another thread can end it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self.is_set = False

    def watch(self, line: _Line) -> None:
        with self._lock:
            self._line = line
            if self.is_set:
                line.cut("cancelled")

    def set(self) -> None:
        with self._lock:
            self.is_set = True
            if self._line is not None:
                self._line.cut("cancelled")


OnMessage = Callable[[StreamMessage], None]


def observe(
    endpoint: Endpoint, ask: Ask, *, on_message: OnMessage | None = None, cancel: Cancel | None = None
) -> Observation:
    """Stream one answer and return when each message came. Blocks until the answer is complete or a limit is
    reached.

    Raises the Endpoint… errors of core.errors (off, address, unreachable, time, refused, not an answer), or
    BusyError when too many streams of this instance are open."""
    if not is_allowed():
        raise EndpointOffError()
    if not _OPEN.acquire(blocking=False):
        raise BusyError()
    try:
        return _attempts(endpoint, ask, on_message, cancel or Cancel())
    finally:
        _OPEN.release()


def _attempts(endpoint: Endpoint, ask: Ask, on_message: OnMessage | None, cancel: Cancel) -> Observation:
    """Ask; where a server does not know one of the two younger fields, say it the older (or newer) way."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": ask.prompt}],
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for _ in range(3):
        try:
            return _exchange(endpoint, ask, body, on_message, cancel)
        except EndpointStatusError as error:
            if not _adapt(body, error):
                raise
    return _exchange(endpoint, ask, body, on_message, cancel)


def _adapt(body: dict[str, Any], error: EndpointStatusError) -> bool:
    """Change the one field that a 400 or 422 complains about. False when there is nothing to change."""
    said = str(error.values["said"])
    if error.values["status"] not in {400, 422}:
        return False
    if "max_completion_tokens" in said and "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")
        return True
    return any(
        name in said and body.pop(name, None) is not None for name in ("stream_options", "temperature")
    )


def _exchange(
    endpoint: Endpoint, ask: Ask, body: dict[str, Any], on_message: OnMessage | None, cancel: Cancel
) -> Observation:
    """One request with all its limits. Network errors become sentences here, and nowhere carry the key."""
    parts = parse_url(endpoint.base_url)
    line = _Line(parts, ask.connect_timeout_s)
    timer = threading.Timer(ask.total_timeout_s, line.cut, ("time",))
    timer.daemon = True
    where, start = f"{parts.scheme}://{parts.netloc}", time.monotonic()
    try:
        timer.start()
        cancel.watch(line)
        line.connect(ask.read_timeout_s)
        connected_s = time.monotonic() - start
        response = _send(line, parts, endpoint, body)
        observation = _listen(line, response, start, connected_s, on_message)
        _check_cut(line, ask)
        return observation
    except Exception as error:
        _check_cut(line, ask)
        if isinstance(error, ExplainerError):
            raise _without(endpoint.api_key, error) from None
        if isinstance(error, OSError | http.client.HTTPException | UnicodeError):
            raise _in_words(error, where, ask, connected=line.sock is not None) from None
        raise
    finally:
        timer.cancel()
        line.close()


def _check_cut(line: _Line, ask: Ask) -> None:
    """Was it our own doing that the stream ended?"""
    if line.cut_for == "time":
        raise EndpointTimeoutError(seconds=f"{ask.total_timeout_s:g}", **_why("complete")) from None
    if line.cut_for == "cancelled":
        raise EndpointAnswerError(**_why("stopped")) from None


def _in_words(error: Exception, where: str, ask: Ask, *, connected: bool) -> ExplainerError:
    if isinstance(error, TimeoutError):
        limit = ask.read_timeout_s if connected else ask.connect_timeout_s
        return EndpointTimeoutError(seconds=f"{limit:g}", **_why("answer" if connected else "connect"))
    if isinstance(error, ssl.SSLError):
        return EndpointUnreachableError(url=where, **_why("tls"))
    if isinstance(error, socket.gaierror | UnicodeError):
        return EndpointUnreachableError(url=where, **_why("no_name"))
    if isinstance(error, ConnectionRefusedError):
        return EndpointUnreachableError(url=where, **_why("refused"))
    if isinstance(error, http.client.HTTPException | ConnectionError) and connected:
        return EndpointAnswerError(**_why("broken"))
    return EndpointUnreachableError(url=where, **_why("no_way"))


def _send(
    line: _Line, parts: SplitResult, endpoint: Endpoint, body: dict[str, Any]
) -> http.client.HTTPResponse:
    path = parts.path.rstrip("/")
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
    }
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    data = json.dumps(body).encode()
    line.connection.request("POST", path if path.endswith(PATH) else path + PATH, body=data, headers=headers)
    line.response = response = line.connection.getresponse()
    if 300 <= response.status < 400:
        raise EndpointUrlError(
            url=parts.netloc, **_why("redirect", _target(response.getheader("Location") or ""))
        )
    if response.status != 200:
        raise EndpointStatusError(status=response.status, said=_said(response))
    return response


def _target(location: str) -> str:
    """Where a redirect points, as something that can be typed: no parameters, which may hold secrets."""
    return "".join(c for c in location.split("?")[0] if 32 < ord(c) < 127)[:200].removesuffix(PATH) or "?"


def _said(response: http.client.HTTPResponse) -> str:
    """What the server says in its error: the sentence in its JSON, or the beginning of other text. HTML says
    nothing."""
    raw = response.read(20_000).decode("utf-8", errors="replace")
    try:
        return _message_of(json.loads(raw)) or response.reason
    except ValueError:
        return response.reason if "<" in raw else raw.strip() or response.reason


def _without(key: str, error: ExplainerError) -> ExplainerError:
    """The same error, short, in one line, and without the key, should the server have repeated it."""
    if isinstance(error, EndpointStatusError):
        said = " ".join(str(error.values["said"]).split())
        said = (said.replace(key, "…") if key else said)[:200]
        return EndpointStatusError(status=error.values["status"], said=said)
    return error


def _listen(
    line: _Line,
    response: http.client.HTTPResponse,
    start: float,
    connected_s: float,
    on_message: OnMessage | None,
) -> Observation:
    """Read until the end. Each message gets the moment at which its last byte was here."""
    reader, messages, done = _Reader(), list[StreamMessage](), False
    parser, size, whole = EventParser(), 0, bytearray()
    is_json = (response.getheader("Content-Type") or "").partition(";")[0].strip() == "application/json"
    while not done:
        data = response.read1(65536)
        now = time.monotonic() - start
        size += len(data)
        if size > MAX_BYTES or len(messages) > MAX_MESSAGES:
            raise EndpointAnswerError(**_why("too_large"))
        whole += data if is_json or not messages else b""
        events = [] if is_json else parser.feed(data, final=not data)
        for event in events:
            done = done or event.strip() == "[DONE]"
            if not done:
                messages.append(reader.read(_json(event), now))
                if on_message:
                    on_message(messages[-1])
        done = done or not data
    now = time.monotonic() - start
    streamed = bool(messages)
    messages = _counted_or_not(messages)
    if not streamed:
        messages.append(reader.read(_json(whole.decode("utf-8", errors="replace")), now))
        if on_message:
            on_message(messages[-1])
    if not any(m.text or m.n_tokens for m in messages):
        raise EndpointAnswerError(**_why("empty"))
    return Observation(
        connected_s, tuple(messages), now, streamed, reader.finish_reason,
        reader.completion_tokens, reader.prompt_tokens, reader.model,
    )  # fmt: skip


def _counted_or_not(messages: list[StreamMessage]) -> list[StreamMessage]:
    """A server that counts only some messages (often: the whole answer, in the last one) has counted none."""
    if all(message.n_tokens is not None for message in messages if message.text):
        return messages
    return [replace(message, n_tokens=None) for message in messages]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise EndpointAnswerError(
            **_why("web_page" if "<html" in text[:2000].lower() else "not_json")
        ) from None


# ---- several requests at once ------------------------------------------------------------------------------


class Measurement:
    """`n` requests at the same moment, each in a thread of its own. Read it from any thread; cancel it at any
    time."""

    def __init__(self, endpoint: Endpoint, ask: Ask, n_requests: int = 1) -> None:
        if not is_allowed():
            raise EndpointOffError()
        if not 1 <= n_requests <= MAX_REQUESTS:
            raise InvalidSettingError(name="requests", value=n_requests, allowed=f"1 to {MAX_REQUESTS}")
        self._lock = threading.Lock()
        self._cancel = [Cancel() for _ in range(n_requests)]
        self._seen: list[list[StreamMessage]] = [[] for _ in range(n_requests)]
        self._results: list[Observation | ExplainerError | None] = [None] * n_requests
        self._threads = [
            threading.Thread(target=self._run, args=(i, endpoint, ask), daemon=True)
            for i in range(n_requests)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, index: int, endpoint: Endpoint, ask: Ask) -> None:
        result: Observation | ExplainerError
        try:
            result = observe(endpoint, ask, on_message=self._seen[index].append, cancel=self._cancel[index])
        except ExplainerError as error:
            result = error
        except Exception as error:  # a bug must not leave the page waiting for ever
            result = EndpointAnswerError(**_why("fault", type(error).__name__))
        with self._lock:
            self._results[index] = result

    @property
    def observations(self) -> tuple[Observation, ...]:
        with self._lock:
            return tuple(r for r in self._results if isinstance(r, Observation))

    @property
    def errors(self) -> tuple[ExplainerError, ...]:
        with self._lock:
            return tuple(r for r in self._results if isinstance(r, ExplainerError))

    @property
    def is_done(self) -> bool:
        with self._lock:
            return all(r is not None for r in self._results)

    @property
    def n_messages(self) -> int:
        """Messages that have arrived so far, of all requests."""
        return sum(len(seen) for seen in self._seen)

    def cancel(self) -> None:
        for cancel in self._cancel:
            cancel.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all requests have ended; False when they have not within `timeout_s`."""
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return self.is_done
