"""The run stage of the home page: played, stepped back, scrubbed, and compared with the trace; live runs followed."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from core.trace import Step, Trace
from tests.browser.helpers import axe_violations, overflow_px, wait_for_model, wait_for_run

PHASES = ("phase-prefill", "phase-decode", "phase-new", "unread", "pending")


def stage(page: Page) -> Locator:
    found = page.locator(".run-stage")
    expect(found.locator(".chip").first).to_be_attached(timeout=30_000)
    return found


def visible(text: str) -> str:
    return text.replace(" ", "·").replace("\n", "⏎")


def figures(page: Page) -> list[str]:
    """Tokens, passes, bytes in the cache, time."""
    return [text.replace("\u00a0", " ") for text in stage(page).locator(".fig b").all_text_contents()]


def n_passes(page: Page) -> int:
    return int(figures(page)[1])


def phases(page: Page) -> list[str]:
    """The state of each chip, by its class."""
    look = """(chips, names) => [...chips.querySelectorAll('.chip[data-j]')]
        .map(chip => names.find(name => chip.classList.contains(name)))"""
    found: list[str] = stage(page).locator(".chips").evaluate(look, list(PHASES))
    return found


def expected_phases(trace: Trace, passes: int) -> list[str]:
    n = trace.n_prompt
    if passes == 0:
        return ["unread"] * n + ["pending"] * trace.n_generated
    cached = trace.steps[passes - 1].n_cached_after
    answer = ["phase-decode"] * (cached - n) + ["phase-new"]
    return ["phase-prefill"] * n + answer + ["pending"] * (trace.n_generated - len(answer))


def candidates(page: Page) -> list[tuple[str, float, bool]]:
    rows = (
        stage(page)
        .locator(".next .row")
        .evaluate_all(
            """rows => rows.map(r => [r.querySelector('code').title, r.querySelector(':scope > span').textContent,
                                 r.classList.contains('chosen')])"""
        )
    )
    return [(text, float(re.sub(r"[^\d.]", "", share)), chosen) for text, share, chosen in rows]


def probabilities(step: Step) -> np.ndarray:
    weights = np.exp(step.logits.astype(np.float64) - float(step.logits.max()))
    return weights / weights.sum()


def test_it_opens_on_the_recorded_answer(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("", lang="en")
    texts = stage(page).locator(".chip[data-j]").all_text_contents()
    assert texts == [visible(token.text) for token in recorded.tokens]
    assert phases(page) == expected_phases(recorded, len(recorded.steps))
    assert figures(page)[0] == str(len(recorded.tokens))


def test_stepping_back_through_all_passes_equals_the_trace(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("", lang="en")
    back = stage(page).get_by_role("button", name="Step back")
    per_token = recorded.spec.kv_bytes_per_token
    for step in reversed(recorded.steps):
        passes = step.index + 1
        assert phases(page) == expected_phases(recorded, passes)
        tokens, shown_passes, held, _ = figures(page)
        assert (tokens, shown_passes) == (str(recorded.n_prompt + passes), str(passes))
        assert held == f"{step.n_cached_after * per_token / 2**20:.2f} MiB"
        p = probabilities(step)
        listed = candidates(page)
        chosen = [row for row in listed if row[2]]
        assert len(chosen) == 1
        assert chosen[0][1] == pytest.approx(100 * p[step.token_id], abs=0.06)
        likeliest = np.sort(p)[::-1][:5]
        assert [row[1] for row in listed[:5]] == pytest.approx(100 * likeliest, abs=0.11)
        assert sum(row[1] for row in listed) == pytest.approx(100, abs=0.5)
        back.click()
    assert phases(page) == expected_phases(recorded, 0)
    assert figures(page)[1:3] == ["0", "0 B"]


def test_it_plays_to_the_end_in_the_time_of_the_run(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("", lang="en")
    stage(page)
    took = stage(page).evaluate(
        """async root => {
            const button = root.querySelector('.play'), over = () => button.textContent.includes('▶');
            const start = performance.now();
            button.click();
            while (!over()) await new Promise(requestAnimationFrame);
            return (performance.now() - start) / 1000; }"""
    )
    assert n_passes(page) == len(recorded.steps)
    # Not faster than the run was; slower only where this machine drops frames.
    assert took >= 0.97 * recorded.steps[-1].ended_s
    assert took <= 3 * recorded.steps[-1].ended_s + 1


def test_the_prompt_arrives_together_and_answers_one_by_one(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("", lang="en", step=0)
    stage(page).locator("select.speed").select_option("0.25")
    stage(page).get_by_role("button", name="Play").click()
    seen = set()
    for _ in range(600):
        states = phases(page)
        seen.add((states[: recorded.n_prompt].count("phase-prefill"), states.count("phase-new")))
        if n_passes(page) >= 4:
            break
        page.wait_for_timeout(20)
    stage(page).get_by_role("button", name="Pause").click()
    assert {n for n, _ in seen} <= {0, recorded.n_prompt}
    assert {new for n, new in seen if n} <= {0, 1}


def test_keyboard_scrubbing_and_chips(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("", lang="en")
    scrub = stage(page).get_by_role("slider")
    scrub.focus()
    page.keyboard.press("Home")
    assert n_passes(page) == 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert n_passes(page) == 2
    page.keyboard.press("End")
    assert n_passes(page) == len(recorded.steps)
    stage(page).locator(f".chip[data-j='{recorded.n_prompt + 6}']").click()
    assert n_passes(page) == 7
    page.wait_for_url("**step=7**")
    stage(page).locator(".chip[data-j='0']").click()
    assert n_passes(page) == 1
    page.keyboard.press("ArrowRight")
    assert n_passes(page) == 2
    page.keyboard.press("End")
    page.wait_for_url(lambda url: "step=" not in url)
    page.get_by_role("link", name="Home", exact=True).first.focus()
    page.keyboard.press("ArrowLeft")  # outside of the stage: none of its business
    assert n_passes(page) == len(recorded.steps)
    stage(page).get_by_role("button", name="Step back").focus()
    page.keyboard.press("ArrowLeft")
    assert n_passes(page) == len(recorded.steps) - 1


def test_the_time_line_is_a_ruler(open_page: Callable[..., Page], recorded: Trace) -> None:
    """A click in the middle of a pass's block goes to that pass."""
    page = open_page("", lang="en")
    canvas = stage(page).locator(".time canvas")
    box = canvas.bounding_box()
    assert box
    end = recorded.steps[-1].ended_s
    for index in (0, 5, len(recorded.steps) - 2):
        step = recorded.steps[index]
        middle = (step.started_s + step.ended_s) / 2 / end
        canvas.click(position={"x": middle * (box["width"] - 1), "y": box["height"] / 2})
        assert n_passes(page) == index + 1


def test_a_link_opens_on_its_step_and_language_keeps_it(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("", lang="en", step=5)
    stage(page)
    assert n_passes(page) == 5
    page.get_by_role("radio", name="日本語").or_(page.get_by_role("button", name="日本語")).first.click()
    expect(stage(page).get_by_role("button", name="再生")).to_be_visible()
    assert n_passes(page) == 5


def test_nothing_below_the_stage_moves(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("", lang="en", width=390)
    heights = set()
    stage(page).get_by_role("slider").focus()
    page.keyboard.press("Home")
    for _ in range(len(recorded.steps)):
        heights.add(stage(page).evaluate("root => root.offsetHeight"))
        page.keyboard.press("ArrowRight")
    assert len(heights) == 1


def test_reduced_motion_shows_whole_passes_only(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("", lang="en", step=0, reduced_motion=True)
    stage(page).get_by_role("button", name="Play").click()
    for _ in range(40):
        assert stage(page).locator(".chip.reading").count() == 0
        page.wait_for_timeout(20)


@pytest.mark.parametrize(("lang", "theme", "width"), [("en", "light", 1280), ("ja", "dark", 390)])
def test_it_is_accessible_and_fits(open_page: Callable[..., Page], lang: str, theme: str, width: int) -> None:
    page = open_page("", lang=lang, theme=theme, width=width, step=9)
    stage(page)
    page.wait_for_timeout(500)
    assert axe_violations(page) == []
    assert overflow_px(page) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_live_run_is_followed_and_leaves_who_stepped_back_alone(open_page: Callable[..., Page]) -> None:
    page = open_page("", lang="en", prompt="What is gravity?", max_tokens=60)
    wait_for_model(page)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".run-stage[data-state=running]")).to_be_attached(timeout=30_000)
    expect(stage(page).locator(".chip.phase-decode").nth(2)).to_be_attached(timeout=60_000)
    stage(page).get_by_role("button", name="Step back").click()
    held = n_passes(page)
    page.wait_for_timeout(1500)
    assert n_passes(page) == held
    follow = stage(page).get_by_role("button", name="Follow the run")
    if follow.is_visible():  # the run may be over on a fast machine
        follow.click()
    wait_for_run(page)
    stage(page).get_by_role("slider").focus()
    page.keyboard.press("End")
    assert n_passes(page) == 60
    assert figures(page)[0] == str(len(stage(page).locator(".chip[data-j]").all()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_characters_spread_over_tokens_stay_together(open_page: Callable[..., Page]) -> None:
    page = open_page("", lang="en", run=1, prompt="今日は<b>x</b>", chat=0, max_tokens=2, reduced_motion=True)
    wait_for_model(page)
    wait_for_run(page)
    wholes = stage(page).locator(".chip-group .whole").all_text_contents()
    assert wholes[:3] == ["今", "日", "は"]
    parts = stage(page).locator(".chip-group").first.locator(".chip[data-j]").all_text_contents()
    assert bytes.fromhex("".join(parts).replace(" ", "")).decode() == "今"
    assert stage(page).locator("b:text-is('x')").count() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_link_to_a_step_of_a_run_that_is_still_to_be_made(open_page: Callable[..., Page]) -> None:
    page = open_page("", lang="en", run=1, step=2, prompt="What is gravity?", max_tokens=5)
    wait_for_model(page)
    wait_for_run(page)
    expect(stage(page).locator(".fig b").nth(1)).to_have_text("2")
    assert "step=2" in page.url


def test_stepping_does_not_send_the_run_again(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("", lang="en", wait=False)
    received: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
    page.reload()
    stage(page)
    page.wait_for_timeout(1500)
    first, before = sum(received), len(received)
    assert first < 500_000
    for _ in range(5):
        stage(page).get_by_role("button", name="Step back").click()
        page.wait_for_timeout(600)
    page.wait_for_url(f"**step={len(recorded.steps) - 5}**")
    assert sum(received[before:]) < 60_000
