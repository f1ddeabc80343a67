"""What must hold on every page, found by glob: a page that is added tomorrow is tested tomorrow.

In both themes, both languages, on a wide screen, a phone and a projector: no exception, no console error (see
`conftest.py`), nothing for axe to complain about, no scrolling sideways. Cold deep links show what warm ones show. Runs
of one token and of the longest prompt can be looked at on every page.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from core.scheduler import Scheduler
from tests.browser.helpers import (
    Server,
    axe_violations,
    overflow_px,
    wait_for_app,
    wait_for_model,
    wait_for_run,
)
from tests.conftest import ROOT

PAGES = [
    "",
    *(
        path.stem.partition("_")[2]
        for path in sorted((ROOT / "pages").glob("[0-9]*_*.py"), key=lambda path: int(path.stem.partition("_")[0]))
    ),
]
every_page = pytest.mark.parametrize("name", PAGES, ids=lambda name: name or "home")

# Every pair of language, theme and width occurs once; the last is for the back of the room.
LOOKS = {
    "en-light-1280": {"lang": "en", "theme": "light", "width": 1280},
    "en-dark-390": {"lang": "en", "theme": "dark", "width": 390},
    "ja-light-390": {"lang": "ja", "theme": "light", "width": 390},
    "ja-dark-1280": {"lang": "ja", "theme": "dark", "width": 1280},
    "ja-projector": {"lang": "ja", "theme": "dark", "width": 1280, "projector": 1},
}


@every_page
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_every_page_is_quiet_accessible_and_fits(open_page: Callable[..., Page], name: str, look: dict) -> None:
    page = open_page(name, reduced_motion=True, **look)
    wait_for_model(page)
    wait_for_app(page)
    page.wait_for_timeout(700)  # components draw after the script has ended
    assert page.locator("h1").count() == 1
    assert overflow_px(page) == 0
    found = axe_violations(page)
    assert not found, "\n".join(found)


@every_page
def test_a_cold_deep_link_shows_what_a_warm_one_shows(
    open_page: Callable[..., Page], fresh_server: Server, server: Server, name: str
) -> None:
    """A fresh process has run no other page before, and the model is still loading."""
    query = {"lang": "ja", "temperature": 0.7, "seed": 5}
    cold = open_page(name, server=fresh_server, **query)
    warm = open_page(name, server=server, **query)
    assert heading(cold) == heading(warm)
    assert links(cold) == links(warm)
    assert cold.title() == warm.title()
    for page in (cold, warm):
        assert "temperature=0.7" in page.url
        assert "seed=5" in page.url


def heading(page: Page) -> str:
    return page.locator("h1").inner_text()


def links(page: Page) -> list[str]:
    return page.locator(".st-key-otat_nav a").all_inner_texts()


RUNS = {
    "one token": {"prompt": "a", "chat": 0, "max_tokens": 1},
    "strange text": {"prompt": "<script>alert(1)</script> שלום 👩‍👩‍👧 \u0301\u200b", "chat": 1, "max_tokens": 4},
    "longest prompt": {"prompt": "a b c d e f g h " * 140, "chat": 0, "max_tokens": 4},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("query", RUNS.values(), ids=RUNS.keys())
def test_extreme_runs_can_be_looked_at_on_every_page(open_page: Callable[..., Page], query: dict) -> None:
    if len(query["prompt"]) > 1000:
        limit = Scheduler.__init__.__kwdefaults__["max_prompt_tokens"]
        query = query | {"prompt": " a" * (limit - query["max_tokens"])}
    page = open_page("", reduced_motion=True, lang="en", run=1, **query)
    wait_for_model(page)
    wait_for_run(page)
    for name in PAGES[1:]:
        page.locator(f".st-key-otat_nav a[href^='{name}']").first.click()
        page.wait_for_url(f"**/{name}*")
        wait_for_app(page)
        page.wait_for_timeout(700)
        assert page.locator("[data-testid=stAlertContentError]").count() == 0, name
        assert overflow_px(page) == 0, name
