"""The latency page in a real browser: formulas equal core/latency.py, moments move by mouse, keys and typing,
a server is measured from the form to the figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from core import latency
from core.latency import Events, Summary
from core.trace import Trace
from tests.browser.helpers import axe_violations, overflow_px, wait_for_model
from tests.conftest import recorded_run_path
from tests.openai_server import DONE, event, raw_handler, serve, text_event

KEY = "sk-browser-secret-7"


@pytest.fixture(scope="module")
def events() -> Events:
    return latency.events_of(Trace.load(recorded_run_path()))


def line(page: Page, index: int = 0) -> Any:
    found = page.locator(".latency-line").nth(index)
    expect(found.locator(".formula").first).to_be_visible()
    return found


def value(root: Any, name: str) -> float | None:
    raw = root.locator(f".formula[data-name={name}]").get_attribute("data-value")
    return float(raw) if raw else None


def matches(root: Any, figures: Summary) -> None:
    """Every row of the formulas equals the summary of core."""
    expected = {
        "ttft": figures.ttft_s, "e2e": figures.e2e_s, "itl": figures.mean_itl_s, "median": figures.median_itl_s,
        "p95": figures.p95_itl_s, "tpot": figures.tpot_s, "speed": figures.tokens_per_s,
        "speed_after": figures.decode_tokens_per_s,
        "queue": figures.split.queue_s if figures.split else None,
        "prefill": figures.split.prefill_s if figures.split else None,
        "with_first": figures.e2e_s / figures.n_tokens if figures.e2e_s else None,
    }  # fmt: skip
    for name, number in expected.items():
        found = value(root, name)
        assert (found is None) == (number is None), name
        if number is not None:
            assert found == pytest.approx(number, rel=1e-9, abs=1e-12), name


def moments(root: Any) -> list[float]:
    return [
        float(v)
        for v in root.locator(".handle").evaluate_all("all => all.map(e => e.getAttribute('aria-valuenow'))")
    ]


# ---- the run ----


def test_the_formulas_are_those_of_core(open_page: Callable[..., Page], events: Events) -> None:
    root = line(open_page("latency", lang="en"))
    matches(root, latency.summarize(events))
    filled = root.locator(".formula[data-name=tpot] .filled").inner_text()
    assert f"({events.n_tokens} − 1)" in filled


def test_it_plays_to_the_end_and_steps_back(open_page: Callable[..., Page], events: Events) -> None:
    page = open_page("latency", lang="en")
    root = line(page)
    root.locator(".speed").select_option("0.25")
    root.locator(".play").click()
    page.wait_for_timeout(150)
    assert int(root.locator(".scrub").input_value()) < events.n_tokens
    root.locator(".speed").select_option("4")
    expect(root.locator(".play")).to_contain_text("Play", timeout=20_000)
    matches(root, latency.summarize(events))
    for back in range(1, 4):
        root.locator(".back").click()
        matches(root, latency.summarize(latency.first_tokens(events, events.n_tokens - back)))
    root.locator(".scrub").press("Home")
    assert value(root, "ttft") is None
    root.locator(".scrub").press("ArrowRight")
    matches(root, latency.summarize(latency.first_tokens(events, 1)))


def test_a_network_is_simulated_and_says_so(open_page: Callable[..., Page], events: Events) -> None:
    page = open_page("latency", lang="en")
    root = line(page)
    slider = root.locator("input.network")
    slider.focus()
    for _ in range(12):
        slider.press("ArrowRight")
    figures = latency.summarize(events, network_s=0.12)
    assert value(root, "ttft") == pytest.approx(figures.ttft_s)
    assert value(root, "e2e") == pytest.approx(figures.e2e_s)
    assert value(root, "itl") == pytest.approx(figures.mean_itl_s)
    expect(root.locator(".formula[data-name=ttft] .kind")).to_have_text("simulated")
    expect(root.locator(".formula[data-name=itl] .kind")).to_have_text("measured")
    page.wait_for_url(re.compile("net=120"))


# ---- the card ----


def test_the_card_opens_on_the_worked_example(open_page: Callable[..., Page]) -> None:
    root = line(open_page("latency", lang="en"), 1)
    assert moments(root) == [0, 0.5, 0.6, 0.72, 0.81]
    matches(root, latency.summarize(latency.events_from_times((0.5, 0.6, 0.72, 0.81))))
    assert root.locator(".formula[data-name=itl] .result").inner_text().startswith("0.1033")
    assert "(0.10 + 0.12 + 0.09) / 3" in root.locator(".formula[data-name=itl] .filled").inner_text()


def test_moments_move_by_keys_and_stop_at_their_neighbours(open_page: Callable[..., Page]) -> None:
    page = open_page("latency", lang="en")
    root = line(page, 1)
    handle = root.get_by_role("slider", name="token 2")
    handle.focus()
    page.keyboard.press("ArrowRight")
    assert moments(root)[2] == 0.61
    page.keyboard.press("PageUp")
    assert moments(root)[2] == 0.71
    page.keyboard.press("PageUp")
    assert moments(root)[2] == 0.72  # the next token's moment
    page.keyboard.press("Home")
    assert moments(root)[2] == 0.5
    matches(root, latency.summarize(latency.events_from_times((0.5, 0.5, 0.72, 0.81))))
    page.wait_for_url(re.compile(r"moments=0%2C0\.5%2C0\.5%2C0\.72%2C0\.81"))


def test_moments_move_by_mouse(open_page: Callable[..., Page]) -> None:
    page = open_page("latency", lang="en")
    root = line(page, 1)
    handle = root.get_by_role("slider", name="token 4")
    handle.scroll_into_view_if_needed()
    box, width = handle.bounding_box(), root.locator("canvas").bounding_box()["width"]
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 0.1 * width, box["y"] + 10, steps=6)
    page.mouse.up()
    assert moments(root)[4] == pytest.approx(0.91, abs=0.011)
    matches(root, latency.summarize(latency.events_from_times(moments(root)[1:])))
    page.wait_for_url(re.compile("moments="))


def test_moments_can_be_typed_added_and_taken_away(open_page: Callable[..., Page]) -> None:
    page = open_page("latency", lang="en")
    root = line(page, 1)
    field = root.get_by_label("prefill starts (s)").and_(root.locator("input"))
    field.fill("0.2")
    field.press("Enter")
    field.blur()
    matches(root, latency.summarize(Events(0.0, 0.2, (0.5, 0.6, 0.72, 0.81))))
    root.get_by_role("button", name="+ token").click()
    assert len(moments(root)) == 6
    for _ in range(4):
        root.get_by_role("button", name="− token").click()
    matches(root, latency.summarize(Events(0.0, 0.2, (0.5,))))
    root.get_by_role("button", name="− token").click()
    matches(root, latency.summarize(Events(0.0, 0.2, ())))
    expect(root.get_by_role("button", name="− token")).to_be_disabled()
    root.get_by_role("button", name="Reset").click()
    assert moments(root) == [0, 0.5, 0.6, 0.72, 0.81]


def test_a_link_brings_the_card_along(open_page: Callable[..., Page]) -> None:
    root = line(open_page("latency", lang="ja", moments="0.1,0.4,0.9"), 1)
    assert moments(root) == [0.1, 0.4, 0.9]
    matches(root, latency.summarize(Events(0.0, 0.1, (0.4, 0.9))))


# ---- a server of one's own ----


def test_a_server_is_measured_from_the_form_to_the_figures(open_page: Callable[..., Page]) -> None:
    usage = event({"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 9}})
    pieces = [
        0.1,
        text_event("one"),
        0.2,
        text_event(" <img src=x onerror=alert(1)>"),
        0.1,
        text_event("!"),
        usage,
        DONE,
    ]
    with serve(raw_handler(pieces)) as url:
        page = open_page("latency", lang="en")
        page.get_by_label("Address (base URL)").fill(url)
        page.get_by_label("Model", exact=True).fill("m")
        page.get_by_label("Key", exact=True).fill(KEY)
        page.get_by_role("button", name="Measure", exact=True).click()
        expect(page.locator(".latency-line")).to_have_count(3, timeout=20_000)
    root = line(page, 2)
    assert 0.1 <= value(root, "ttft") < 5
    assert 0.1 <= value(root, "itl") < 2
    assert root.locator("[data-name=queue]").count() == 0  # a client cannot see the server's queue
    expect(page.get_by_text("only the number of tokens of the whole answer")).to_be_visible()
    assert KEY not in page.url
    assert "8000" not in page.url
    assert url.split("/")[2] not in page.url
    assert KEY not in page.evaluate('document.documentElement.outerHTML.replaceAll(/value="[^"]*"/g, \'\')')
    assert axe_violations(page) == []


def test_a_dead_server_is_a_sentence(open_page: Callable[..., Page]) -> None:
    page = open_page("latency", lang="ja", width=390)
    page.get_by_label("アドレス（ベース URL）").fill("http://127.0.0.1:9/v1")
    page.get_by_label("モデル", exact=True).fill("m")
    page.get_by_role("button", name="測る", exact=True).last.click()
    expect(page.get_by_text("そこでは何も動いていません")).to_be_visible(timeout=20_000)
    assert overflow_px(page) == 0


# ---- the long prompt ----


@pytest.mark.slow
def test_the_long_prompt_can_be_started_watched_and_stopped(open_page: Callable[..., Page]) -> None:
    page = open_page("latency", lang="en")
    wait_for_model(page)
    page.get_by_role("button", name="Measure it").click()
    expect(page.get_by_text(re.compile(r"pass \d+ of \d+"))).to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Measure again")).to_be_visible(timeout=30_000)
