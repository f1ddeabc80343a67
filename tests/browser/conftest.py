"""Real pages in a real Chromium, against a real `streamlit run app.py`.

How to write a browser test:

    def test_the_page_plays(open_page):
        page = open_page("kv_cache", lang="ja", theme="dark", width=390, temperature=0.7)
        page.get_by_role("button", name="再生").click()
        ...
        assert axe_violations(page) == []

`open_page(path, *, theme="light"|"dark", width=1280, height=900, locale="en-US", reduced_motion=False, context=None,
server=None, wait=True, **query)` returns a Playwright page. `path` is "" for the home page or a page's name without
number; every other keyword becomes part of the URL. Each call is a new browser context, so a new learner, unless
`context=` is given (`page.context` of another page: the same learner's second tab). Playwright's locators see into the
components' shadow roots by themselves.

When the test ends, every page it opened must have been quiet: no console error, no exception in a page's script, no
request to anything but the server. A test that provokes such things on purpose says `ignore_errors(page)`;
`console_errors(page)` is the list so far.

Fixtures: `server` (one for the session, warm), `fresh_server` (a new process for this test: for cold deep links),
`browser`, `open_page`. Helpers to import from `tests.browser.helpers`: `wait_for_app(page)`, `axe_violations(page)`,
`console_errors(page)`, `ignore_errors(page)`, `wait_for_model(page)`,
`wait_for_run(page)`, `running_server(...)`, `screenshot(page, name)`,
`overflow_px(page)` (how far the page scrolls sideways: 0 is right).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.helpers import LAUNCH_ARGS, Pages, Server, running_server
from tools.browser import HELP, find_browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server") / "log.txt") as started:
        yield started


@pytest.fixture
def fresh_server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path / "log.txt") as started:
        yield started


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.fail(HELP)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=LAUNCH_ARGS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    if "fresh_server" in request.fixturenames:
        # Asked for first, so that it ends last: a page that loses its server while open is not quiet.
        request.getfixturevalue("fresh_server")
    pages = Pages(browser, default_server=lambda: request.getfixturevalue("server"))
    yield pages.open
    pages.close_and_check()
