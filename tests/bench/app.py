"""Rows about the running app, seen from a real Chromium: start-up, a busy neighbour, dragging, bytes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from playwright.sync_api import Browser, Page, WebSocket, sync_playwright

from tests.bench.table import Measured, Target, at_most, row
from tests.browser.helpers import (
    LAUNCH_ARGS,
    Server,
    page_url,
    running_server,
    wait_for_app,
    wait_for_model,
    wait_for_run,
)
from tests.conftest import ROOT
from tools.browser import HELP, find_browser

FIRST_PAINT = ".run-stage .chip"
# Notes when the element was first there for a whole frame. Asked from outside, the answer would come up to 0.5 s late.
# Components live in shadow trees, which querySelector does not enter.
WATCH_FOR = """(() => {
  const find = (root) => root.querySelector(SELECTOR)
    ?? [...root.querySelectorAll("*")].map((el) => el.shadowRoot && find(el.shadowRoot)).find(Boolean);
  const note = () => { window.seenAt = performance.timeOrigin + performance.now(); };
  const look = () => requestAnimationFrame(find(document) ? note : look);
  requestAnimationFrame(look);
})()"""
FRAME_MS = 1000 / 60
EMPTY_APP = "import streamlit as st\nst.title('hello')\n"
LONG_PROMPT = "The quick brown fox jumps over the lazy dog near the river bank. " * 16  # about 256 tokens
PAGE_NAMES = tuple(
    path.stem.partition("_")[2]
    for path in sorted((ROOT / "pages").glob("[0-9]*.py"), key=lambda path: int(path.stem.partition("_")[0]))
)


class App:
    """A browser for all rows; servers are started where a row needs one."""

    def __enter__(self) -> App:
        path = find_browser()
        if path is None:
            raise SystemExit(HELP)
        self._playwright = sync_playwright().start()
        self.browser: Browser = self._playwright.chromium.launch(executable_path=path, args=LAUNCH_ARGS)
        self._folder = TemporaryDirectory()
        self.folder = Path(self._folder.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.browser.close()
        self._playwright.stop()
        self._folder.cleanup()

    @contextmanager
    def page(self, server: Server, path: str = "", **query: object) -> Iterator[Page]:
        """A new learner's page, settled, with the model ready."""
        context = self.browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        try:
            page = context.new_page()
            page.goto(page_url(server.url, path, **query))
            wait_for_app(page)
            wait_for_model(page)
            page.wait_for_timeout(1_500)  # the page looks again once the model is ready
            wait_for_app(page)
            yield page
        finally:
            context.close()

    @contextmanager
    def server(self, **environment: str) -> Iterator[Server]:
        with running_server(self.folder / "log.txt", **environment) as server:
            yield server

    def start(self, *, app: Path | None = None, **environment: str) -> tuple[float, float]:
        """Seconds from launching `streamlit run` to the first meaningful paint, and to the model being ready."""
        wanted = FIRST_PAINT if app is None else "h1"
        context = self.browser.new_context(viewport={"width": 1280, "height": 900})
        with running_server(self.folder / "log.txt", app=app, **environment) as server:
            clock = time.time() - time.perf_counter()  # from the clock of this process to that of the browser
            page = context.new_page()
            page.add_init_script(WATCH_FOR.replace("SELECTOR", json.dumps(wanted)))
            page.goto(server.url)
            painted_at = page.wait_for_function("() => window.seenAt", timeout=60_000).json_value() / 1000
            painted = painted_at - clock - server.started
            if app is None:
                wait_for_model(page, timeout_s=300)
            ready = time.perf_counter() - server.started
            context.close()
        return painted, ready


@row("start", needs="app")
def start(app: App) -> list[tuple[str, Measured, Target | None]]:
    """Warm: the model was converted before. Cold: an empty cache folder, so it is converted now."""
    empty = app.folder / "hello.py"
    empty.write_text(EMPTY_APP, encoding="utf-8")
    pairs = [(app.start(), app.start(app=empty)[0]) for _ in range(3)]
    paint, ready = (statistics.median(warm[i] for warm, _ in pairs) for i in (0, 1))
    baseline = statistics.median(other for _, other in pairs)
    cold_paint, cold_ready = app.start(OTAT_CACHE=str(app.folder / "cache"))
    return [
        (
            "start → first meaningful paint, warm, against an empty Streamlit app",
            Measured(paint / baseline, f"{paint:.2f} s against {baseline:.2f} s; median of 3", judged=paint),
            at_most(2.5, "s"),
        ),
        (
            "start → model ready, warm, against first paint",
            Measured(ready / paint, f"{ready:.2f} s; median of 3", judged=ready),
            at_most(8, "s"),
        ),
        (
            "start → first meaningful paint, empty cache, against warm",
            Measured(cold_paint / paint, f"{cold_paint:.2f} s"),
            None,
        ),
        (
            "start → model ready, empty cache (the model is converted), against warm",
            Measured(cold_ready / ready, f"{cold_ready:.1f} s"),
            None,
        ),
    ]


# The switch is in the URL, so the URL changes while the script runs. The running state alone is not enough to watch:
# where a script's messages arrive together, the browser never shows it.
RERUN = """() => new Promise((done, fail) => {
    const started = performance.now(), before = location.search;
    const watch = setInterval(() => {
        const passed = performance.now() - started;
        const state = document.querySelector('[data-testid=stApp]').dataset.testScriptState;
        if (location.search !== before && state === 'notRunning') { clearInterval(watch); done(passed); }
        if (passed > 30000) { clearInterval(watch); fail(new Error('the script did not run')); }
    }, 2);
    document.querySelector('[data-testid=stCheckbox] input').click();
})"""


@row("this session's page while another session runs, script run after a click", at_most(2), needs="app")
def neighbour(app: App) -> Measured:
    with app.server() as server, app.page(server) as mine:
        mine.evaluate(RERUN)
        alone = statistics.median(mine.evaluate(RERUN) for _ in range(12))
        with app.page(server, run=1, max_tokens=256, prompt="Tell me a long story.") as theirs:
            theirs.wait_for_selector(".run-stage .phase-decode", timeout=60_000)
            beside = statistics.median(mine.evaluate(RERUN) for _ in range(12))
    return Measured(
        beside / alone, f"{beside:.0f} ms against {alone:.0f} ms, the whole script of the page; median of 12"
    )


@row(
    "this session's page while another session runs the cache race, script run after a click",
    at_most(2),
    needs="app",
)
def neighbour_race(app: App) -> Measured:
    with app.server() as server, app.page(server) as mine:
        mine.evaluate(RERUN)
        alone = statistics.median(mine.evaluate(RERUN) for _ in range(12))
        with app.page(server, "cache_race", lang="en", race_n=256) as theirs:
            theirs.get_by_role("button", name="Start the race").click()
            theirs.get_by_role("button", name="Stop").wait_for(timeout=60_000)
            beside = statistics.median(mine.evaluate(RERUN) for _ in range(12))
            theirs.get_by_role("button", name="Stop").click()  # still there: the race went on all the while
    return Measured(
        beside / alone, f"{beside:.0f} ms against {alone:.0f} ms, the whole script of the page; median of 12"
    )


WATCH_INPUT = """() => {
    window.paints = [];
    const channel = new MessageChannel(), waiting = [];
    channel.port1.onmessage = () => {
        const now = performance.now();
        window.paints.push(...waiting.splice(0).map(t => now - t));
    };
    // A message posted while the frame that shows the input is being made arrives right after it was painted.
    window.addEventListener('input', e => {
        if (!waiting.length) requestAnimationFrame(() => channel.port2.postMessage(0));
        waiting.push(e.timeStamp);
    }, true);
}"""


@row("dragging", needs="app")
def dragging(app: App) -> list[tuple[str, Measured, Target | None]]:
    """From an input event of a drag to the paint that shows its result, in the components that compute in JS."""
    lines: list[tuple[str, Measured, Target | None]] = []
    with app.server() as server:
        for name in ("sampling", "kv_memory"):
            with app.page(server, name) as page:
                delays = sorted(drag_all(page))
            if not delays:
                raise AssertionError(f"no live slider was found on the page “{name}”")
            half, most = (delays[int(len(delays) * part)] for part in (0.5, 0.95))
            details = (
                f"p50 {half:.1f} ms, p95 {most:.1f} ms of {len(delays)} inputs; a frame is {FRAME_MS:.1f} ms"
            )
            lines.append(
                (
                    f"dragging on the page “{name}”, input → paint, p95 against one frame",
                    Measured(most / FRAME_MS, details, judged=most),
                    at_most(16.7, "ms"),
                )
            )
    return lines


def drag_all(page: Page, moves: int = 60) -> list[float]:
    """Drag each live slider of the page from end to end with the mouse."""
    page.evaluate(WATCH_INPUT)
    for slider in page.locator("input[type=range]:visible").all():
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        if box is None or not slider.is_enabled():
            continue
        y = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 4, y)
        page.mouse.down()
        for i in range(moves):
            page.mouse.move(box["x"] + 4 + (box["width"] - 8) * i / moves, y)
            page.wait_for_timeout(12)
        page.mouse.up()
        page.wait_for_timeout(300)
    return [float(delay) for delay in page.evaluate("() => window.paints")]


@row("bytes per page", needs="app")
def bytes_sent(app: App) -> list[tuple[str, Measured, Target | None]]:
    """What the server sends over the session's WebSocket for each page, after a short and after a long run."""
    with app.server() as server:
        short = bytes_of_pages(app, server, "What is gravity?")
        long = bytes_of_pages(app, server, LONG_PROMPT)
    largest = max(long, key=lambda name: long[name])
    listed = ", ".join(f"{name} {size / 1e3:.0f}" for name, size in long.items())
    return [
        (
            "bytes sent for the largest page, after a prompt of about 256 tokens against one of 34",
            Measured(
                long[largest] / short[largest],
                f"{largest}: {long[largest] / 1e3:.0f} kB against {short[largest] / 1e3:.0f} kB. All, in kB: {listed}",
                judged=long[largest] / 1e3,
            ),
            at_most(750, "kB"),
        )
    ]


def bytes_of_pages(app: App, server: Server, prompt: str) -> dict[str, int]:
    """One learner runs a prompt, then opens page after page by its link."""
    received = [0]

    def count(socket: WebSocket) -> None:
        def on_frame(payload: str | bytes) -> None:
            received[0] += len(payload)

        socket.on("framereceived", on_frame)

    context = app.browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.on("websocket", count)
    sizes: dict[str, int] = {}
    try:
        page.goto(page_url(server.url, "", run=1, prompt=prompt, max_tokens=40))
        wait_for_app(page)
        wait_for_model(page)
        wait_for_run(page)
        for name in PAGE_NAMES:
            received[0] = 0
            page.locator(f".st-key-otat_nav a[href^='{name}']").first.click()
            page.wait_for_url(f"**/{name}*")
            wait_for_app(page)
            page.wait_for_timeout(1_500)
            sizes[name] = received[0]
    finally:
        context.close()
    return sizes
