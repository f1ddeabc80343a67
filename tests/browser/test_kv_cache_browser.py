"""The KV cache page in a real browser: played to its end, stepped back, and compared with the trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from core.trace import Trace
from pages.views.settings import LATE_S
from tests.browser.helpers import axe_violations, overflow_px, wait_for_app, wait_for_model, wait_for_run


def stage(page: Page) -> Locator:
    found = page.locator(".kv-stage")
    expect(found.locator("tbody tr").first).to_be_attached(timeout=30_000)
    return found


def visible(text: str) -> str:
    return text.replace(" ", "·").replace("\n", "⏎")


def name_of(trace: Trace, position: int) -> str:
    if position < trace.n_prompt:
        return f"P{position + 1}"
    number = position - trace.n_prompt
    letters = chr(65 + number % 26)
    return letters if number < 26 else chr(64 + number // 26) + letters


def positions_in_cache(page: Page) -> int:
    label = stage(page).locator("canvas").get_attribute("aria-label") or ""
    found = re.search(r"(\d+) positions are in the cache", label)
    assert found, label
    return int(found[1])


def cell_point(page: Page, trace: Trace, layer: int, position: int) -> tuple[float, float]:
    """Where a cell is on the canvas, by the same geometry as the page (rem = 16 px)."""
    box = stage(page).locator("canvas").bounding_box()
    assert box
    left, n = 2.25 * 16, len(trace.tokens)
    width = (box["width"] - left) / n
    top, bottom = (6.25 * 16 if width >= 10 else 8), box["height"] - 1.5 * 16
    height = (bottom - top) / trace.spec.n_layers
    return left + (position + 0.5) * min(width, 56), bottom - (layer + 0.5) * height


def test_it_opens_full_and_plays_from_empty_to_full(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en")
    assert positions_in_cache(page) == recorded.n_cached
    stage(page).locator("select.speed").select_option("1")
    stage(page).get_by_role("button", name="Play").click()
    seen: set[int] = set()
    for _ in range(400):
        seen.add(positions_in_cache(page))
        if recorded.n_cached in seen and len(seen) > 1:
            break
        page.wait_for_timeout(25)
    # The prompt comes at once: nothing between an empty cache and the whole prompt is ever shown.
    assert not seen & set(range(1, recorded.n_prompt))
    expect(stage(page).get_by_role("button", name="Play")).to_be_visible()
    assert positions_in_cache(page) == recorded.n_cached


def test_every_position_says_what_the_trace_says(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en")
    back = stage(page).get_by_role("button", name="Step back")
    per_token = recorded.spec.kv_bytes_per_token
    for step in reversed(recorded.steps):
        assert positions_in_cache(page) == step.n_cached_after
        assert f"({step.n_cached_after * per_token:,} bytes)" in stage(page).locator(".chain").inner_text()
        current = stage(page).locator("tr.now td").all_inner_texts()
        assert current[0].strip() == str(step.index + 1)
        back.click()
    assert positions_in_cache(page) == 0
    expect(stage(page).locator("tr.now")).to_have_count(0)


def test_the_table_reproduces_reading_then_choosing(open_page: Callable[..., Page], recorded: Trace) -> None:
    """P1 P2 P3 | A: what is chosen in one pass is read, and cached, in the next."""
    page = open_page("kv_cache", lang="en")
    rows = stage(page).locator("tbody tr")
    n = recorded.n_prompt
    first = rows.nth(0).locator("td")
    assert first.nth(2).inner_text() == "–"
    assert first.nth(3).inner_text() == first.nth(4).inner_text() == f"P1–P{n}"
    for i, step in enumerate(recorded.steps):
        chosen = rows.nth(i).locator("td").nth(5)
        assert chosen.locator(".chip").text_content() == visible(recorded.tokens[n + i].text)
        assert chosen.locator("small").text_content() == name_of(recorded, n + i)
        if i:
            reads = rows.nth(i).locator("td").nth(1)
            assert reads.locator("small").text_content() == name_of(recorded, step.n_cached_before)
            assert (
                reads.locator("small").text_content()
                == rows.nth(i - 1).locator("td small").last.text_content()
            )


@pytest.mark.parametrize(("layer", "position"), [(0, 0), (29, 33), (14, 40)])
def test_the_grid_shows_the_length_of_the_recorded_vectors(
    open_page: Callable[..., Page], recorded: Trace, layer: int, position: int
) -> None:
    page = open_page("kv_cache", lang="en")
    canvas, tip = stage(page).locator("canvas"), stage(page).locator(".tip")
    x, y = cell_point(page, recorded, layer, position)
    for kv, part in (("Keys (K)", recorded.keys), ("Values (V)", recorded.values)):
        stage(page).get_by_role("button", name=kv).click()
        for head in (0, 2):
            stage(page).get_by_role("button", name="head 2" if head else "all heads").click()
            page.mouse.move(0, 0)
            canvas.hover(position={"x": x, "y": y})
            vector = part[layer, head - 1 : head, position] if head else part[layer, :, position]
            length = float(np.linalg.norm(vector.astype(np.float64)))
            shown = re.search(r"([\d.]+)$", tip.inner_text().strip())
            assert shown, tip.inner_text()
            assert float(shown[1]) == pytest.approx(length, abs=0.011)


def test_a_click_shows_the_numbers_of_the_cell(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en")
    x, y = cell_point(page, recorded, 3, 35)
    stage(page).locator("canvas").click(position={"x": x, "y": y})
    vector = page.locator(".kv-vector")
    expect(vector.locator("h2")).to_contain_text("Layer 4, position 36")
    expect(vector.locator("h2")).to_contain_text(visible(recorded.tokens[35].text))
    page.wait_for_url("**kv_cell=4-36**")
    labels = [canvas.get_attribute("aria-label") or "" for canvas in vector.locator("canvas").all()]
    assert len(labels) == 2 * recorded.spec.n_kv_heads
    expected: list[Any] = [*recorded.keys[3, :, 35], *recorded.values[3, :, 35]]
    for label, numbers in zip(labels, expected, strict=True):
        listed = label.split(": ")[1].removesuffix(" …").split(", ")
        assert [float(value) for value in listed] == pytest.approx(numbers[:8].astype(float), abs=0.0051)
        assert f"length {np.linalg.norm(numbers.astype(np.float64)):.2f}" in label


def test_back_in_the_browser_goes_back_to_the_cell_before(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("kv_cache", lang="en")
    heading = page.locator(".kv-vector h2")

    def choose(layer: int, position: int) -> None:
        x, y = cell_point(page, recorded, layer, position)
        stage(page).locator("canvas").click(position={"x": x, "y": y})
        page.wait_for_url(f"**kv_cell={layer + 1}-{position + 1}*")

    choose(3, 35)
    choose(7, 20)
    wait_for_app(page)
    page.wait_for_timeout(1000 * LATE_S + 100)  # until then Python takes the earlier URL for a late one
    page.go_back()
    expect(heading).to_contain_text("Layer 4, position 36")
    choose(7, 20)  # the grid went back too: this is a new choice
    expect(heading).to_contain_text("Layer 8, position 21")


def test_the_token_just_chosen_has_nothing(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en")
    x, y = cell_point(page, recorded, 5, len(recorded.tokens) - 1)
    stage(page).locator("canvas").click(position={"x": x, "y": y})
    expect(page.locator(".kv-vector .where")).to_contain_text("no key and no value")
    expect(page.locator(".kv-vector canvas")).to_have_count(0)


def test_the_keyboard_does_it_all(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en")
    canvas = stage(page).locator("canvas")
    stage(page).get_by_role("button", name="Step forward").focus()
    page.keyboard.press("Home")
    assert positions_in_cache(page) == 0
    page.keyboard.press("ArrowRight")
    assert positions_in_cache(page) == recorded.n_prompt
    page.keyboard.press("End")
    assert positions_in_cache(page) == recorded.n_cached
    canvas.focus()
    for key in ("Home", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".kv-vector h2")).to_contain_text("position 2")
    expect(page.locator(".kv-vector h2")).to_contain_text(f"Layer {recorded.spec.n_layers // 2 + 2}")


def test_a_link_brings_back_what_was_looked_at(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en", step=3, kv="v", kv_head=2, kv_cell="7-9")
    assert positions_in_cache(page) == recorded.steps[2].n_cached_after
    pressed = stage(page).locator("button[aria-pressed=true]").all_inner_texts()
    assert pressed == ["Values (V)", "head 2"]
    expect(page.locator(".kv-vector h2")).to_contain_text("Layer 7, position 9")
    stage(page).get_by_role("button", name="Step forward").click()
    page.wait_for_url("**step=4**")
    page.reload()
    assert positions_in_cache(page) == recorded.steps[3].n_cached_after


def test_changing_the_language_keeps_the_place(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en", step=2, kv="v")
    stage(page)
    page.get_by_role("radio", name="日本語").or_(page.get_by_role("button", name="日本語")).first.click()
    expect(stage(page).get_by_role("button", name="再生")).to_be_visible()
    expect(stage(page).locator("tr.now td").first).to_have_text("2")
    expect(stage(page).locator("button[aria-pressed=true]").first).to_have_text("バリュー（V）")


def test_reduced_motion_steps_without_animation(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("kv_cache", lang="en", step=0, reduced_motion=True)
    stage(page).locator("select.speed").select_option("1")
    stage(page).get_by_role("button", name="Play").click()
    expect(stage(page).locator("tr.now td").first).to_have_text(str(len(recorded.steps)), timeout=20_000)


@pytest.mark.parametrize(("lang", "theme", "width"), [("en", "light", 1280), ("ja", "dark", 390)])
def test_it_is_accessible_and_fits(open_page: Callable[..., Page], lang: str, theme: str, width: int) -> None:
    page = open_page("kv_cache", lang=lang, theme=theme, width=width, step=5)
    stage(page)
    page.wait_for_timeout(500)
    assert axe_violations(page) == []
    assert overflow_px(page) == 0


def test_choosing_a_cell_does_not_send_the_grid_again(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("kv_cache", lang="en", wait=False)
    received: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
    page.reload()
    stage(page)
    page.wait_for_timeout(1000)
    assert sum(received) < 500_000
    before = len(received)
    x, y = cell_point(page, recorded, 20, 20)
    stage(page).locator("canvas").click(position={"x": x, "y": y})
    expect(page.locator(".kv-vector h2")).to_contain_text("Layer 21, position 21")
    # A component's message carries its script and style again (40 kB); the grid's would be twice that.
    assert sum(received[before:]) < 60_000


@pytest.mark.slow
@pytest.mark.parametrize(("chat", "prompt", "n_new"), [(0, "a", 1), (0, "a", 3), (1, "今日は", 4)])
def test_a_run_of_ones_own(open_page: Callable[..., Page], chat: int, prompt: str, n_new: int) -> None:
    """The shortest run, a raw one, and one whose characters are spread over tokens; the live tensors are weighed."""
    page = open_page("", lang="en", run=1, prompt=prompt, chat=chat, max_tokens=n_new, reduced_motion=True)
    wait_for_model(page)
    wait_for_run(page)
    page.get_by_role("link", name="KV cache", exact=True).first.click()
    rows = stage(page).locator("tbody tr")
    expect(rows).to_have_count(n_new, timeout=20_000)
    chain = stage(page).locator(".chain")
    expect(chain).to_contain_text("the live tensors of your run")
    weights = re.findall(r"\(([\d,]+) bytes\)", chain.inner_text())
    assert len(weights) == 2
    assert weights[0] == weights[1]
