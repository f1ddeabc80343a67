"""The frame in a real browser: settings and the URL, languages, projector, themes, the status of the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from pages.views.settings import LATE_S
from tests.browser.helpers import Server, wait_for_app, wait_for_model
from tests.conftest import ROOT

OTHERS = sorted(path.stem.partition("_")[2] for path in (ROOT / "pages").glob("[0-9]*_*.py"))


def query(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def set_temperature(page: Page, value: str) -> None:
    """With the keyboard, in the settings of the home page; each step is 0.05. The browser sends it when keys rest."""
    open_settings(page)
    handle = slider(page, "Temperature")
    for _ in range(round(float(value) / 0.05)):
        handle.press("ArrowRight")
    page.wait_for_function(
        "(value) => new URLSearchParams(location.search).get('temperature') === value", arg=value
    )
    page.keyboard.press("Escape")
    wait_for_app(page)


def open_settings(page: Page) -> None:
    page.locator("[data-testid=stPopover] button").first.click()
    page.wait_for_selector("[data-testid=stPopoverBody]")


def slider(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name)


def go_to(page: Page, name: str) -> None:
    page.locator(f".st-key-otat_nav a[href^='{name}']").first.click()
    page.wait_for_url(f"**/{name}*")
    wait_for_app(page)


def go_home(page: Page) -> None:
    page.locator(".st-key-otat_nav a").first.click()
    page.wait_for_function("() => location.pathname === '/'")
    wait_for_app(page)


# ---- settings and the URL -----------------------------------------------------------------------------------------


def test_a_value_survives_page_switch_reload_and_back(open_page: Callable[..., Page]) -> None:
    page = open_page("")
    set_temperature(page, "0.2")
    assert query(page)["temperature"] == "0.2"
    go_to(page, OTHERS[0])
    assert query(page)["temperature"] == "0.2"
    page.reload()
    wait_for_app(page)
    assert query(page)["temperature"] == "0.2"
    page.go_back()
    page.wait_for_function("() => location.pathname === '/'")
    wait_for_app(page)
    open_settings(page)
    expect(slider(page, "Temperature")).to_have_value("0.2")


def test_a_link_to_another_page_keeps_what_was_chosen_since_it_was_drawn(open_page: Callable[..., Page]) -> None:
    page = open_page("tokens", lang="en", text="abc")
    page.locator("textarea").fill("hello world")
    page.wait_for_url("**text=hello*")
    page.wait_for_timeout(1000 * LATE_S + 100)  # until then the link's older URL would pass for a late one anyway
    go_to(page, "prefill")
    go_to(page, "tokens")
    expect(page.locator("textarea")).to_have_value("hello world")


def test_a_copied_link_opens_with_its_values_in_another_browser(open_page: Callable[..., Page]) -> None:
    page = open_page("", temperature=0.6, top_k=7, seed=11, chat=0, prompt="Once upon a time")
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("Once upon a time")
    open_settings(page)
    expect(slider(page, "Temperature")).to_have_value("0.6")
    expect(slider(page, "Top-k")).to_have_value("7")
    expect(page.get_by_role("spinbutton", name="Seed")).to_have_value("11")
    expect(page.get_by_role("switch", name="Chat template")).not_to_be_checked()
    assert query(page) == {
        "temperature": "0.6", "top_k": "7", "seed": "11", "chat": "0", "prompt": "Once upon a time",
    }  # fmt: skip


def test_a_cold_deep_link_keeps_values_of_other_pages(
    open_page: Callable[..., Page], fresh_server: Server
) -> None:
    """A page that does not know a setting passes it on to the one that does."""
    page = open_page(OTHERS[0], server=fresh_server, temperature=0.4, not_declared_here=3)
    assert query(page) == {"temperature": "0.4", "not_declared_here": "3"}
    go_home(page)
    open_settings(page)
    expect(slider(page, "Temperature")).to_have_value("0.4")


def test_a_value_back_at_its_default_leaves_the_address(open_page: Callable[..., Page]) -> None:
    page = open_page("", temperature=0.05)
    open_settings(page)
    slider(page, "Temperature").press("ArrowLeft")
    page.wait_for_function("() => !location.search.includes('temperature')")


def test_bad_values_are_told_and_taken_out_of_the_address(open_page: Callable[..., Page]) -> None:
    page = open_page("", temperature="hot", seed=-4, top_p=7, step="<script>alert(1)</script>")
    expect(page.get_by_role("alert")).to_have_count(1)
    expect(page.get_by_role("alert")).to_contain_text("Temperature")
    assert query(page) == {}


# ---- language -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("locale", "lang"), [("ja-JP", "ja"), ("en-GB", "en"), ("fr-FR", "en")])
def test_the_browsers_language_is_the_default(open_page: Callable[..., Page], locale: str, lang: str) -> None:
    page = open_page("", locale=locale)
    japanese = re.search(r"[ぁ-ん]", page.locator("h1").inner_text())
    assert bool(japanese) == (lang == "ja")
    assert "lang" not in query(page)
    page.wait_for_function("(lang) => document.documentElement.lang === lang", arg=lang)


def test_switching_the_language_keeps_every_value_and_stays(open_page: Callable[..., Page]) -> None:
    page = open_page("", temperature=0.3, prompt="Hello there")
    page.get_by_role("radio", name="日本語").click()
    page.wait_for_function("() => new URLSearchParams(location.search).get('lang') === 'ja'")
    wait_for_app(page)
    assert re.search(r"[ぁ-ん]", page.locator("h1").inner_text())
    expect(page.get_by_role("textbox", name="プロンプト")).to_have_value("Hello there")
    assert query(page) == {"temperature": "0.3", "prompt": "Hello there", "lang": "ja"}
    page.wait_for_function("() => document.documentElement.lang === 'ja'")  # what a screen reader's voice goes by
    go_to(page, OTHERS[0])
    assert re.search(r"[ぁ-ん]", page.locator("h1").inner_text())


# ---- looks --------------------------------------------------------------------------------------------------------

LUMINANCE = """selector => { const seen = getComputedStyle(document.querySelector(selector)).backgroundColor;
    const [r, g, b] = seen.match(/[\\d.]+/g).map(Number); return (r + g + b) / 3; }"""


COMPONENT_INK = """() => {
    const stage = [...document.querySelectorAll('*')].find(e => e.shadowRoot?.querySelector('.chip'));
    const ink = getComputedStyle(stage.shadowRoot.querySelector('.root')).color;
    return ink.match(/[\\d.]+/g).map(Number)[0]; }"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_projector_mode_is_larger_and_light(open_page: Callable[..., Page], theme: str) -> None:
    page = open_page("", theme=theme)
    size = "() => parseFloat(getComputedStyle(document.querySelector('h1')).fontSize)"
    before = page.evaluate(size)
    page.locator("[data-testid=stCheckbox] label").first.click()
    page.wait_for_function("() => location.search.includes('projector=1')")
    wait_for_app(page)
    assert page.evaluate(size) >= 1.2 * before
    for part in (".stApp", "[data-testid=stTextInputRootElement]", "[data-testid=stPopover] button"):
        assert page.evaluate(LUMINANCE, part) > 220, part
    ink = page.evaluate(COMPONENT_INK)
    assert ink < 60, "components follow"


@pytest.mark.parametrize(("theme", "bright"), [("light", True), ("dark", False)])
def test_light_and_dark_follow_the_browser(open_page: Callable[..., Page], theme: str, bright: bool) -> None:
    page = open_page("", theme=theme)
    assert (page.evaluate(LUMINANCE, ".stApp") > 128) == bright


def test_on_a_phone_the_links_scroll_and_the_page_does_not(open_page: Callable[..., Page]) -> None:
    page = open_page("", width=390, height=844)
    last = page.locator(".st-key-otat_nav a").last
    last.scroll_into_view_if_needed()
    expect(last).to_be_in_viewport()
    assert page.evaluate("() => document.scrollingElement.scrollLeft") == 0


# ---- the model ----------------------------------------------------------------------------------------------------


def test_the_status_shows_progress_and_then_is_quiet(
    open_page: Callable[..., Page], fresh_server: Server
) -> None:
    page = open_page("", server=fresh_server)
    page.wait_for_selector(".otat-status.loading")
    wait_for_model(page)
    wait_for_app(page)
    frames: list[object] = []
    client = page.context.new_cdp_session(page)
    client.send("Network.enable")
    client.on("Network.webSocketFrameSent", lambda frame: frames.append(frame))
    page.wait_for_timeout(3000)
    assert len(frames) <= 1, "nothing polls once the model is ready"


def test_visited_pages_are_marked(open_page: Callable[..., Page]) -> None:
    page = open_page("")
    path = page.locator(f".st-key-otat_path_{OTHERS[0]}")
    expect(path).not_to_contain_text("seen")
    go_to(page, OTHERS[0])
    go_home(page)
    expect(path).to_contain_text("seen")
