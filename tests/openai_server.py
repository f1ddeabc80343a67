"""A small real HTTP server that speaks the OpenAI dialect, for tests: once honest, once not.

`serve(handler)` starts it on a free port of 127.0.0.1 and stops it afterwards. `model_handler(scheduler)`
streams the project's own model through the scheduler, one message per token; `raw_handler(chunks)` writes
given bytes with pauses, to play servers that cut messages anywhere, fall silent, or speak nonsense.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Tests stay quiet."""

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The base URL (…/v1) of a running server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def event(payload: object) -> bytes:
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def text_event(text: str, **more: object) -> bytes:
    return event({"model": "m", "choices": [{"index": 0, "delta": {"content": text}}], **more})


DONE = event(b"[DONE]")
Piece = bytes | float  # bytes to write, or seconds to sleep


def raw_handler(
    pieces: Iterable[Piece],
    *,
    status: int = 200,
    content_type: str = "text/event-stream",
    headers: dict[str, str] | None = None,
    seen: list[dict[str, Any]] | None = None,
) -> type[QuietHandler]:
    """Writes the pieces as they are, then closes. What was asked is appended to `seen`."""
    script = list(pieces)

    class Raw(QuietHandler):
        def do_POST(self) -> None:
            asked = {"path": self.path, "headers": dict(self.headers), "body": self.body()}
            if seen is not None:
                seen.append(asked)
            self.close_connection = True
            self.send_response(status)
            for name, value in {
                "Content-Type": content_type,
                "Connection": "close",
                **(headers or {}),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            write(self, script)

    return Raw


def write(handler: BaseHTTPRequestHandler, pieces: Iterable[Piece]) -> None:
    try:
        for piece in pieces:
            if isinstance(piece, bytes):
                handler.wfile.write(piece)
                handler.wfile.flush()
            else:
                time.sleep(piece)
    except OSError:
        pass  # the client hung up, as it should


def model_handler(
    scheduler: Any, emitted: list[float] | None = None, per_message: int = 1
) -> type[QuietHandler]:
    """The project's own model behind the dialect, chunked transfer and all. `emitted` gets the time
    (time.monotonic) of each token as this side saw it."""

    class Model(QuietHandler):
        def do_POST(self) -> None:
            asked = self.body()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in stream(scheduler, asked, emitted, per_message):
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                pass

    return Model


def stream(
    scheduler: Any, asked: dict[str, Any], emitted: list[float] | None, per_message: int
) -> Iterator[bytes]:
    from core.sampling import SamplingParams
    from core.scheduler import Request

    params = SamplingParams(max_tokens=asked["max_tokens"])
    run = scheduler.submit(Request.from_text(scheduler.loaded, asked["messages"][-1]["content"], params))
    yield event({"model": "ours", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    n_prompt = len(run.request.encoded.tokens)
    sent = 0
    while not run.is_over or sent < len(run.tokens) - n_prompt:
        chosen = run.tokens[n_prompt:]
        over = run.is_over
        if len(chosen) - sent >= per_message or (over and len(chosen) > sent):
            new = chosen[sent : sent + per_message]
            if emitted is not None:
                emitted.extend([time.monotonic()] * len(new))
            sent += len(new)
            usage = {"prompt_tokens": n_prompt, "completion_tokens": sent}
            text = b"".join(token.bytes for token in new if not token.is_special).decode(errors="replace")
            yield text_event(text, usage=usage)
        time.sleep(0.001)
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": run.finish_reason}]})
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield event({"choices": [], "usage": {"prompt_tokens": n_prompt, "completion_tokens": sent}})
    yield DONE


StreamMaker = Callable[[Any], type[QuietHandler]]
