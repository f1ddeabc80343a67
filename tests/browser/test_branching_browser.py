"""The branching page in a real browser: the recorded fork, a branch grown by the model, and a fork of that branch."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from core.trace import Trace
from pages.views.branch_tree import EXAMPLE
from tests.browser.helpers import axe_violations, overflow_px, wait_for_app, wait_for_model


def said(raw: dict) -> str:
    parts = [bytes.fromhex(data) for _, data, special in raw["tokens"] if not special]
    return b"".join(parts).decode("utf-8", "replace").strip()


def lanes(page: Page) -> list[str]:
    return [text.strip() for text in page.locator(".lane .words").all_inner_texts()]


@pytest.fixture
def opened(open_page: Callable[..., Page]) -> Callable[..., Page]:
    def open_tree(**query: object) -> Page:
        page = open_page("branching", **query)
        page.wait_for_selector(".lane .word")
        return page

    return open_tree


def test_it_opens_on_the_recorded_fork_and_shows_every_word_of_it(opened: Callable[..., Page]) -> None:
    branches = json.loads(EXAMPLE.read_text(encoding="utf-8"))["branches"]
    page = opened()
    assert lanes(page) == [said(raw) for raw in branches]
    assert page.locator(".cards .way").count() == len(branches)
    texts = page.locator(".cards .said").all_inner_texts()
    assert [text.strip() for text in texts] == [said(raw) for raw in branches]
    shares = page.locator(".cards .share").all_inner_texts()
    assert shares == [f"{100 * raw['places'][0][1]:.1f}\u00a0%" for raw in branches]


def test_the_places_are_chosen_by_arrow_keys_and_every_candidate_is_the_recorded_one(
    opened: Callable[..., Page],
) -> None:
    trunk = json.loads(EXAMPLE.read_text(encoding="utf-8"))["branches"][0]
    page = opened(reduced_motion=True)
    page.locator(".strip [aria-checked=true]").focus()
    for place in trunk["places"][:6]:
        rows = page.locator(".ask .row > span:nth-child(3)").all_inner_texts()
        assert rows[:5] == [f"{100 * p:.1f}\u00a0%" if p >= 0.0005 else "< 0.1\u00a0%" for _, p in place[3]]
        page.keyboard.press("ArrowRight")
        wait_for_app(page)
    page.keyboard.press("Home")
    assert page.locator(".strip .chip").first.get_attribute("aria-checked") == "true"


def test_all_candidates_grow_at_once_and_a_branch_can_be_forked_again(
    opened: Callable[..., Page], recorded: Trace
) -> None:
    page = opened(fork_of="run", step=12)
    wait_for_model(page)
    wait_for_app(page)
    assert page.locator(".lane").count() == 1
    page.get_by_role("button", name="Take all of them at once").click()
    expect(page.locator(".lane")).to_have_count(5, timeout=60_000)
    expect(page.locator(".lane.growing")).to_have_count(0, timeout=180_000)
    wait_for_app(page)
    note = page.locator(".cards .way").nth(1).locator(".note").last.inner_text()
    assert f"positions copied: {recorded.n_prompt + 11}" in note
    assert "passes saved: 12" in note
    # A word of the first branch is a place like any other.
    page.locator(".cards .way").nth(1).locator(".word").nth(3).click()
    page.get_by_role("button", name="Take it").first.click()
    expect(page.locator(".lane")).to_have_count(6, timeout=60_000)
    expect(page.locator(".lane.growing")).to_have_count(0, timeout=180_000)
    wait_for_app(page)
    page.wait_for_timeout(500)
    assert axe_violations(page) == []
    assert overflow_px(page) == 0
    page.get_by_role("button", name="Remove all branches").click()
    expect(page.locator(".lane")).to_have_count(1, timeout=60_000)


def test_the_address_carries_what_is_forked_and_where(opened: Callable[..., Page]) -> None:
    page = opened(lang="ja", fork_of="run")
    page.locator(".strip .chip").nth(4).click()
    page.wait_for_url("**step=5*")
    page.reload()
    page.wait_for_selector(".lane .word")
    assert page.locator(".strip .chip").nth(4).get_attribute("aria-checked") == "true"
    page.get_by_text("答えが 2 つある質問").click()
    page.wait_for_url("**fork_of=example*")


def test_on_a_phone_the_parting_can_be_seen(opened: Callable[..., Page]) -> None:
    page = opened(width=390, theme="dark", fork_of="run", step=12)
    box = page.locator(".lane .word.here").bounding_box()
    assert box
    assert box["x"] + box["width"] < 390
    assert overflow_px(page) == 0
