"""The tools of the browser tests; see `conftest.py` beside this file for how they are used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route

ROOT = Path(__file__).resolve().parents[2]
LAUNCH_ARGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SETTLED = "[data-testid=stApp][data-test-script-state=notRunning][data-test-connection-state=CONNECTED]"

_errors: WeakKeyDictionary[Page, list[str]] = WeakKeyDictionary()
_ignored: WeakKeyDictionary[Page, bool] = WeakKeyDictionary()


@dataclass(frozen=True)
class Server:
    """A running `streamlit run app.py`. `started` is the time.perf_counter() of its launch."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float

    def output(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def running_server(
    log: Path, *, app: Path | None = None, start_timeout_s: float = 90, **environment: str
) -> Iterator[Server]:
    """Start the app on a free port of 127.0.0.1, wait until it answers, and end that process afterwards."""
    port = free_port()
    command = [
        sys.executable, "-m", "streamlit", "run", str(app or ROOT / "app.py"),
        "--server.address=127.0.0.1", f"--server.port={port}", "--server.headless=true",
        "--server.fileWatcherType=none",
    ]  # fmt: skip
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "OTAT_MEASUREMENTS": str(log.parent), **environment},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    server = Server(f"http://127.0.0.1:{port}", process, log, started)
    try:
        _wait_for_health(server, start_timeout_s)
        yield server
    finally:
        _end(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_health(server: Server, timeout_s: float) -> None:
    while time.perf_counter() - server.started < timeout_s:
        if server.process.poll() is not None:
            raise AssertionError(f"The server ended by itself:\n{server.output()}")
        try:
            with urllib.request.urlopen(server.url + "/_stcore/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise AssertionError(f"The server did not answer within {timeout_s:.0f} s:\n{server.output()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Pages:
    """Opens pages for one test, and checks at its end that they were quiet."""

    def __init__(self, browser: Browser, default_server: Callable[[], Server]) -> None:
        self._browser = browser
        self._default_server = default_server
        self._contexts: list[BrowserContext] = []
        self._pages: list[Page] = []

    def open(
        self,
        path: str = "",
        *,
        theme: str = "light",
        width: int = 1280,
        height: int = 900,
        locale: str = "en-US",
        reduced_motion: bool = False,
        context: BrowserContext | None = None,
        server: Server | None = None,
        wait: bool = True,
        **query: object,
    ) -> Page:
        if context is None:
            context = self._browser.new_context(
                color_scheme=theme, viewport={"width": width, "height": height}, locale=locale,
                reduced_motion="reduce" if reduced_motion else "no-preference",
                accept_downloads=True,
            )  # fmt: skip
            self._contexts.append(context)
        page = context.new_page()
        self._pages.append(page)
        server = server or self._default_server()
        watch(page, server.url)
        page.goto(page_url(server.url, path, **query))
        if wait:
            wait_for_app(page)
        return page

    def close_and_check(self) -> None:
        heard = {page.url: console_errors(page) for page in self._pages if not _ignored.get(page)}
        for context in self._contexts:
            context.close()
        assert not any(heard.values()), f"Errors in the browser: {heard}"


def page_url(base: str, path: str = "", **query: object) -> str:
    text = urllib.parse.urlencode(
        {key: str(value) for key, value in query.items()}, quote_via=urllib.parse.quote
    )
    return f"{base}/{path}" + (f"?{text}" if text else "")


def watch(page: Page, server_url: str) -> None:
    """Collect what goes wrong in a page, and keep it from reaching anything but its server."""
    errors = _errors.setdefault(page, [])

    def on_console(message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        # Below a page's path, Streamlit's client first looks for the server in the wrong folder; that is its habit.
        if message.type == "error" and "/_stcore/" not in where:
            errors.append(f"console: {message.text[:300]} ({where[:200]})")

    def on_request(route: Route, request: Request) -> None:
        if request.url.startswith((server_url, "data:", "blob:")):
            route.continue_()
        else:
            errors.append(f"asked the network for {request.url[:200]}")
            route.abort()

    page.on("console", on_console)
    page.on("pageerror", lambda error: errors.append(f"script: {error}"))
    page.route(lambda url: not url.startswith(server_url), on_request)


def console_errors(page: Page) -> list[str]:
    return _errors.get(page, [])


def ignore_errors(page: Page) -> None:
    _ignored[page] = True


def wait_for_app(page: Page, timeout_s: float = 60) -> None:
    """Until the script has run and the browser has drawn it; an exception on the page fails the test with its text."""
    page.wait_for_selector(SETTLED, timeout=timeout_s * 1000, state="attached")
    page.wait_for_function(
        "() => !document.querySelector('[data-testid=stSkeleton]')", timeout=timeout_s * 1000
    )
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    shown = page.locator("[data-testid=stException]")
    if shown.count():
        raise AssertionError(f"{page.url} shows an exception:\n{shown.first.inner_text()}")


def wait_for_model(page: Page, timeout_s: float = 120) -> None:
    """Until the status in the bar says that the model is ready."""
    page.wait_for_selector(".otat-status.ready", timeout=timeout_s * 1000, state="attached")


def wait_for_run(page: Page, timeout_s: float = 120) -> None:
    """Until the run stage shows the learner's own run, finished."""
    page.wait_for_selector(".run-stage[data-state=finished]", timeout=timeout_s * 1000, state="attached")


def axe_violations(page: Page, context: str | None = None) -> list[str]:
    """What axe finds, one line each: rule, where, and the element. Streamlit's own tool bar is not ours to mend."""
    found: dict[str, Any] = (
        Axe().run(page, context=context or {"exclude": [["[data-testid=stToolbar]"]]}).response
    )
    return [
        f"{violation['id']}: {node['target']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


def overflow_px(page: Page) -> int:
    """How far the page can be scrolled sideways. Streamlit scrolls a section inside the page, so look at both."""
    return int(
        page.evaluate(
            """() => Math.max(...[document.documentElement, ...document.querySelectorAll('[data-testid=stMain]')]
                .map(e => e.scrollWidth - e.clientWidth))"""
        )
    )


def screenshot(page: Page, name: str) -> Path:
    """A picture for people to look at, in the ignored folder `screenshots/`."""
    folder = ROOT / "screenshots"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    return path


def input_to_paint_ms(page: Page, slider: str, moves: int) -> list[float]:
    """Drag a slider to and fro; milliseconds from each input event to the frame that shows it, sorted."""
    page.locator(slider).evaluate(
        """(slider) => {
            globalThis.times = [];
            slider.addEventListener("input", (event) => requestAnimationFrame(() => {
                const channel = new MessageChannel();  // its message comes after the frame was painted
                channel.port1.onmessage = () => times.push(performance.now() - event.timeStamp);
                channel.port2.postMessage(0);
            }), true);
        }"""
    )
    box = page.locator(slider).bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, y)
    page.mouse.down()
    for i in range(moves):
        page.mouse.move(box["x"] + box["width"] * (0.1 + 0.8 * abs((i % 60) / 30 - 1)), y)
    page.mouse.up()
    times: list[float] = sorted(page.evaluate("times"))
    middle, late = times[len(times) // 2], times[int(len(times) * 0.95)]
    print(f"\nslider: p50 {middle:.1f} ms, p95 {late:.1f} ms, {len(times)} moves")
    return times
