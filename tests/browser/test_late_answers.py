"""A server that is far away or busy: its answer to one change of a control comes after the learner's next one.

Nothing may jump back then. While it stood back, the next key would count from there, and the one before it be lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from pages.views.settings import LATE_S
from tests.browser.helpers import wait_for_app, wait_for_model
from tests.conftest import ROOT

PAGES = ["", *sorted(path.stem.partition("_")[2] for path in (ROOT / "pages").glob("[0-9]*_*.py"))]
LATE_MS = 400
LATE_ANSWERS = """
    globalThis.WebSocket = class extends WebSocket {
        set onmessage(hear) { super.onmessage = (event) => setTimeout(hear, LATE_MS, event); }
        addEventListener(type, hear, ...more) {
            const late = (event) => setTimeout(hear, LATE_MS, event);
            super.addEventListener(type, type === "message" ? late : hear, ...more);
        }
    };""".replace("LATE_MS", str(LATE_MS))
WATCH = """slider => {
    clearInterval(globalThis.watching);
    const seen = globalThis.seen = [+slider.value];
    globalThis.watching = setInterval(() => {
        const now = slider.isConnected ? +slider.value : null;
        if (now !== seen.at(-1)) seen.push(now);
    }, 4);
}"""


@pytest.fixture
def far_page(open_page: Callable[..., Page]) -> Callable[..., Page]:
    """Opens a page with everything on it unfolded, in a browser that hears each answer late."""

    def far(name: str, **query: object) -> Page:
        page = open_page(name, wait=False, lang="en", **query)
        page.add_init_script(LATE_ANSWERS)
        page.reload()
        wait_for_app(page)
        wait_for_model(page)
        wait_for_app(page)
        page.wait_for_timeout(2 * LATE_MS)
        return page

    return far


def unfold(page: Page) -> None:
    folded = page.locator("details:not([open]) > summary:visible")
    while folded.count():
        folded.first.click()
    popover = page.locator("[data-testid=stPopover] button")
    if popover.count():
        popover.first.click()
    wait_for_app(page)
    page.wait_for_timeout(2 * LATE_MS)


def can_be_moved(slider: Locator) -> bool:
    return slider.is_enabled() and slider.evaluate("e => e.checkVisibility({ contentVisibilityAuto: true })")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES, ids=lambda name: name or "home")
def test_a_slider_never_jumps_back(far_page: Callable[..., Page], name: str) -> None:
    page = far_page(name)
    unfold(page)
    sliders = [slider for slider in page.locator("input[type=range]").all() if can_be_moved(slider)]
    assert sliders or name == "branching"
    for slider in sliders:
        now, last, step = (float(slider.get_attribute(a) or 1) for a in ("value", "max", "step"))
        now = float(slider.input_value())
        way = 1 if now + 3 * step <= last else -1
        slider.evaluate(WATCH)
        for _ in range(3):
            slider.press("ArrowRight" if way > 0 else "ArrowLeft")
            page.wait_for_timeout(LATE_MS / 2)  # so the first answer comes about when the third key is pressed
        page.wait_for_timeout(3 * LATE_MS)
        wait_for_app(page)
        expected = [pytest.approx(now + way * step * n) for n in range(4)]
        assert page.evaluate("seen") == expected, slider.evaluate("e => e.outerHTML")


def test_the_last_of_many_quick_changes_stays(far_page: Callable[..., Page]) -> None:
    """The same choice again and again: no answer may be taken for one to another change."""
    page = far_page("kv_memory")
    precision = page.locator("#kv-k")
    precision.evaluate(WATCH.replace("+slider.value", "slider.value"))
    for choice in ("q8_0", "f32", "q8_0", "q4_0"):
        precision.select_option(choice)
        page.wait_for_timeout(LATE_MS / 4)
    page.wait_for_url("**mem_k=q4_0*")
    page.wait_for_timeout(2 * LATE_MS)
    assert page.evaluate("seen") == ["f16", "q8_0", "f32", "q8_0", "q4_0"]


def test_a_click_before_the_answer_does_not_undo_a_change(far_page: Callable[..., Page]) -> None:
    """Each message carries the browser's URL, which is that from before the change."""
    page = far_page("latency", bundle=2)
    slider = page.get_by_role("slider", name="Tokens in each message")
    slider.press("ArrowRight")
    page.wait_for_timeout(LATE_MS / 2)
    page.locator("[data-testid=stRadio] label").first.click()
    page.wait_for_url("**bundle=3*")
    page.wait_for_timeout(3 * LATE_MS)
    wait_for_app(page)
    expect(slider).to_have_value("3")
    assert "bundle=3" in page.url


@pytest.mark.parametrize(
    ("name", "control", "setting", "choices"),
    [
        ("kv_memory", "#kv-k", "mem_k", ("q8_0", "f32", "q8_0")),
        ("roofline", ".roofline-lab .weights", "rf_weights", ("int8", "bfloat16", "int8")),
    ],
)
def test_back_in_the_browser_takes_a_choice_back(
    open_page: Callable[..., Page], name: str, control: str, setting: str, choices: tuple[str, ...]
) -> None:
    """Also to one that was made here: not all that Python says of it is an answer."""
    page = open_page(name)
    for choice in choices:
        page.locator(control).select_option(choice)
        page.wait_for_url(f"**{setting}={choice}*")
        wait_for_app(page)
    page.wait_for_timeout(1000 * LATE_S + 100)  # until then Python takes the earlier URL for a late one
    for choice in choices[-2::-1]:
        page.go_back()
        page.wait_for_url(f"**{setting}={choice}*")
        expect(page.locator(control)).to_have_value(choice)
