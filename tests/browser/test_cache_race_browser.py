"""The race in a real browser: both lanes play to the end and back, a real race runs and can be stopped."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from core.race import RaceRecord, summarize
from tests.browser.helpers import wait_for_model
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def record() -> RaceRecord:
    return RaceRecord.load(ROOT / "assets" / "runs" / "gravity.race.json")


def numbers(page: Page, lane: str) -> tuple[int, int, int]:
    """Tokens shown, K/V computed, dot products: as the lane says now."""
    box = page.locator(f".race-lanes .lane.{lane}")
    figures = [int(re.sub(r"\D", "", text)) for text in box.locator(".fig b").all_inner_texts()[1:]]
    return box.locator(".chip").count(), figures[0], figures[1]


def test_it_plays_to_the_end_and_steps_back(open_page: Callable[..., Page], record: RaceRecord) -> None:
    page = open_page("cache_race", lang="en")
    root = page.locator(".race-lanes")
    expect(root.locator(".play")).to_be_visible()
    total, n = summarize(record.passes), len(record.tokens)
    assert numbers(page, "with") == (n, total.with_computed, total.dot_products)
    assert numbers(page, "without") == (n, total.without_computed, total.dot_products)

    root.locator(".speed").select_option("4")
    root.locator(".play").click()
    page.wait_for_timeout(400)
    assert numbers(page, "without")[0] < n
    expect(root.locator(".play")).to_contain_text("Play", timeout=60_000)
    assert numbers(page, "without") == (n, total.without_computed, total.dot_products)

    root.locator(".scrub").focus()
    for _ in range(3):  # the slow lane alone is still running at the end
        page.keyboard.press("ArrowLeft")
    cut = [p for p in record.passes if p.lane == "without"][: n - 3]
    assert numbers(page, "without") == (
        n - 3,
        sum(p.n_computed for p in cut),
        sum(p.dot_products for p in cut),
    )
    assert numbers(page, "with")[0] == n
    page.keyboard.press("Home")
    assert numbers(page, "with")[0] == numbers(page, "without")[0] == 0


@pytest.mark.timeout(400)
def test_a_real_race_takes_the_stage(open_page: Callable[..., Page]) -> None:
    page = open_page("cache_race", lang="en", race_n=16)
    wait_for_model(page)
    page.get_by_role("button", name="Start the race").click()
    expect(page.locator(".race-lanes .lane.with .chip")).to_have_count(16, timeout=180_000)
    expect(page.locator(".race-lanes .lane.without .done")).to_contain_text("done after")
    expect(page.get_by_text("Both lanes wrote the same 16 tokens")).to_be_visible()
    tokens, computed, dots = numbers(page, "with")
    assert (tokens, computed) == (16, 34 + 15)
    assert numbers(page, "without") == (16, sum(range(34, 50)), dots)


@pytest.mark.timeout(400)
def test_a_race_can_be_stopped(open_page: Callable[..., Page]) -> None:
    page = open_page("cache_race", lang="en", race_n=256)
    wait_for_model(page)
    page.get_by_role("button", name="Start the race").click()
    page.get_by_role("button", name="Stop").click(timeout=60_000)
    expect(page.get_by_text(re.compile(r"Stopped after \d+ of 512"))).to_be_visible(timeout=30_000)
