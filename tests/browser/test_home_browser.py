"""Home in a real browser: the recorded run at once, then a learner's own run, stopped, stepped, shared and refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from core.trace import Trace
from tests.browser.helpers import Server, wait_for_app, wait_for_model, wait_for_run
from tests.browser.test_frame_browser import OTHERS, go_home, go_to

STAGE = ".run-stage"


def chips(page: Page) -> list[str]:
    """What the stage shows as tokens, those still to come left out."""
    return [text for text in page.locator(f"{STAGE} .chip:not(.pending)").all_inner_texts() if text]


def ask(page: Page, prompt: str, box: str = "Prompt") -> None:
    page.get_by_role("textbox", name=box).fill(prompt)
    page.get_by_role("textbox", name=box).press("Enter")


def ready(open_page: Callable[..., Page], **query: object) -> Page:
    page = open_page("", reduced_motion=True, **query)
    wait_for_model(page)
    wait_for_app(page)
    return page


def wait_for_end(page: Page) -> None:
    wait_for_the_end_of_the_show(page)
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    wait_for_app(page)


def wait_for_the_end_of_the_show(page: Page) -> None:
    """The stage plays a live run in its own rhythm, a little behind: wait for the run, then go to its last pass."""
    wait_for_run(page)
    expect(page.locator(STAGE)).to_have_count(1)
    page.locator(f"{STAGE} input[type=range]").press("End")
    page.wait_for_function("() => !location.search.includes('step=')")


def query(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


# ---- the recorded run ------------------------------------------------------------------------------------------------


def test_it_opens_on_the_recorded_run_before_the_model_is_there(
    open_page: Callable[..., Page], fresh_server: Server, recorded: Trace
) -> None:
    page = open_page("", server=fresh_server, wait=False)
    page.wait_for_selector(f"{STAGE}[data-state=recorded] .chip")
    assert page.locator(".otat-status.ready").count() == 0
    assert len(chips(page)) == len(recorded.tokens)
    assert "gravity" in "".join(chips(page))


def test_the_stage_and_the_surprise_are_above_the_fold(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("", width=1280, height=800)
    for part in (f"{STAGE} .chip >> nth=0", f"{STAGE} canvas", f"{STAGE} .player"):
        expect(page.locator(part).first).to_be_in_viewport()
    sentence = page.get_by_text(f"Reading {recorded.n_prompt} tokens took as long as writing")
    expect(sentence).to_be_in_viewport()
    prefill = sum(step.duration_s for step in recorded.steps if step.phase == "prefill")
    gaps = sorted(b.ended_s - a.ended_s for a, b in zip(recorded.steps, recorded.steps[1:], strict=False))
    shown = float(re.findall(r"writing ([\d.]+)", sentence.inner_text())[0].rstrip("."))
    assert shown == pytest.approx(prefill / gaps[len(gaps) // 2], rel=0.06)


def test_the_figures_are_the_traces(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("")
    figures = "\n".join(page.locator(".otat-fig").all_inner_texts())
    assert f"{recorded.first_token_s * 1e3:.0f} ms" in figures
    gaps = [b.ended_s - a.ended_s for a, b in zip(recorded.steps, recorded.steps[1:], strict=False)]
    assert f"{sum(gaps) / len(gaps) * 1e3:.0f} ms" in figures
    assert f"{recorded.n_generated / recorded.steps[-1].ended_s:.1f}" in figures
    assert figures.count("measured") == 3


def test_stepping_back_is_kept_in_the_address(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("", reduced_motion=True)
    n = len(recorded.steps)
    page.get_by_role("button", name="Step back").click()
    expect(page.locator(STAGE)).to_contain_text(f"pass {n - 1} of {n}")
    page.wait_for_function(f"() => location.search.includes('step={n - 1}')")
    before = chips(page)
    assert len(before) == len(recorded.tokens) - 1
    page.reload()
    wait_for_app(page)
    expect(page.locator(STAGE)).to_contain_text(f"pass {n - 1} of {n}")
    page.get_by_role("button", name="Step forward").click()
    expect(page.locator(STAGE)).to_contain_text(f"pass {n} of {n}")
    page.wait_for_function("() => !location.search.includes('step=')")


# ---- a run of one's own ----------------------------------------------------------------------------------------------


def test_a_live_run_from_prompt_to_answer(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=12)
    ask(page, "Why is the sky blue?")
    page.wait_for_selector(f"{STAGE}:is([data-state=waiting], [data-state=running])")
    wait_for_end(page)
    shown = "".join(chips(page))
    assert "·sky" in shown
    assert page.locator(f"{STAGE} .chip:is(.phase-decode, .phase-new)").count() == 12
    assert query(page) == {"max_tokens": "12", "prompt": "Why is the sky blue?", "run": "1"}
    assert "Recorded on" not in page.locator("[data-testid=stMain]").inner_text()


def test_a_copied_link_replays_the_same_tokens_elsewhere(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=10, temperature=1.2, seed=8, top_k=40)
    ask(page, "Tell me a secret.")
    wait_for_end(page)
    other = open_page("", reduced_motion=True, **query(page))  # another learner: a context of its own
    wait_for_the_end_of_the_show(other)
    assert chips(other) == chips(page)


def test_another_seed_gives_another_answer(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=10, temperature=1.5, seed=1, prompt="Tell me a secret.", run=1)
    wait_for_the_end_of_the_show(page)
    other = ready(open_page, max_tokens=10, temperature=1.5, seed=2, prompt="Tell me a secret.", run=1)
    wait_for_the_end_of_the_show(other)
    assert chips(other) != chips(page)


def test_a_run_can_be_stopped_and_what_it_wrote_stays(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=256)
    ask(page, "Write a very long story about the sea.")
    page.wait_for_function("() => /[3-9] of 256|\\d\\d+ of 256/.test(document.body.innerText)")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector(f"{STAGE}[data-state=cancelled]")
    wait_for_app(page)
    page.locator(f"{STAGE} input[type=range]").press("End")
    n = page.locator(f"{STAGE} .chip:is(.phase-decode, .phase-new)").count()
    assert 2 <= n < 256
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)


def test_a_run_goes_on_while_the_learner_looks_at_another_page(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=40)
    ask(page, "Explain photosynthesis.")
    page.wait_for_selector(f"{STAGE}[data-state=running]")
    go_to(page, OTHERS[0])
    page.wait_for_selector(".otat-status.ready", timeout=60_000)
    go_home(page)
    wait_for_the_end_of_the_show(page)
    assert "·photos" in "".join(chips(page))


def test_switching_the_language_in_the_middle_of_a_run(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=60)
    ask(page, "Describe a forest.")
    page.wait_for_selector(f"{STAGE}[data-state=running]")
    page.get_by_role("radio", name="日本語").click()
    page.wait_for_function("() => location.search.includes('lang=ja')")
    wait_for_the_end_of_the_show(page)
    wait_for_app(page)
    assert "·forest" in "".join(chips(page))
    expect(page.get_by_role("textbox", name="プロンプト")).to_have_value("Describe a forest.")
    expect(page.get_by_role("button", name="再生")).to_be_visible()
    assert page.locator(f"{STAGE} .chip:is(.phase-decode, .phase-new)").count() <= 60


def test_a_reload_runs_it_again_with_the_same_answer(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=6)
    ask(page, "Say hello.")
    wait_for_end(page)
    before = chips(page)
    page.reload()
    wait_for_the_end_of_the_show(page)
    assert chips(page) == before


def test_changed_settings_ask_for_a_new_run(open_page: Callable[..., Page]) -> None:
    page = ready(open_page, max_tokens=4, run=1)
    wait_for_end(page)
    page.locator("[data-testid=stPopover] button").first.click()
    page.get_by_role("slider", name="Temperature").press("ArrowRight")
    expect(page.get_by_text("The settings have changed.")).to_be_visible()


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "     "], ids=["empty", "spaces"])
def test_an_empty_prompt_is_a_sentence(open_page: Callable[..., Page], text: str) -> None:
    page = ready(open_page)
    ask(page, text)
    expect(page.get_by_role("alert")).to_contain_text("The prompt is empty")
    assert page.locator(f"{STAGE} .chip").count() > 0, "the recorded run stays"


def test_a_hundred_thousand_characters_are_a_sentence_and_nothing_is_lost(
    open_page: Callable[..., Page],
) -> None:
    page = ready(open_page)
    text = "gravity " * 12_500
    ask(page, text)
    expect(page.get_by_role("alert")).to_contain_text("Shorten it by", timeout=30_000)
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value(text)
    assert len(page.url) < 2_000


@pytest.mark.parametrize(
    ("prompt", "piece"),
    [
        ("<script>document.title='broken'</script><img src=x onerror=alert(1)>", "script"),
        ("مرحبا \u202eabc\u202c שלום", "abc"),
        ("nul \x00 and \x07 bell", "nul"),
        ("**bold** [link](https://example.org) $x^2$ :red[x]", "bold"),
    ],
    ids=["script", "right to left", "nul", "markdown"],
)
def test_odd_text_is_only_text(open_page: Callable[..., Page], prompt: str, piece: str) -> None:
    page = ready(open_page, max_tokens=3, chat=0)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    ask(page, prompt)
    wait_for_end(page)
    assert piece in "".join(chips(page))
    assert "broken" not in page.title()
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("[data-testid=stMain] a[href^='https://example.org']").count() == 0
