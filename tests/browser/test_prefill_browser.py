"""The prefill page in a real browser: the wave is played to its end and stepped back, attention is read off the screen,
measurements are made. What is on screen is compared with the trace."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from core.attention import attention_map
from core.head_profile import head_profile
from core.trace import Trace
from tests.browser.helpers import axe_violations, overflow_px, wait_for_app, wait_for_model

N_LAYERS = 30
STAGES = N_LAYERS + 2


def wave(page: Page) -> Locator:
    found = page.locator(".wave")
    expect(found.locator("canvas.grid[aria-label]")).to_be_attached(timeout=30_000)
    return found


def viewer(page: Page) -> Locator:
    found = page.locator(".attention")
    expect(found.locator(".token.on")).to_be_attached(timeout=30_000)
    return found


def place(page: Page) -> tuple[int, int]:
    """(pass, finished stages of it)."""
    data = wave(page).evaluate("node => [+node.dataset.pass, +node.dataset.done]")
    return int(data[0]), int(data[1])


def figure(page: Page, name: str) -> str:
    return wave(page).locator(f"[data-fig={name}]").inner_text()


def visible(text: str) -> str:
    return text.replace(" ", "·").replace("\n", "⏎")


def percents(texts: list[str]) -> list[float]:
    return [float(re.sub(r"[^\d.]", "", text)) / 100 for text in texts]


# ---- the wave --------------------------------------------------------------------------------------------------------


def test_it_opens_on_the_finished_prefill_with_the_runs_figures(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("prefill", lang="en")
    first = recorded.steps[0]
    assert place(page) == (0, STAGES)
    assert figure(page, "time") == f"{first.duration_s * 1000:.0f}\u00a0ms"
    assert figure(page, "positions") == str(recorded.n_prompt)
    assert figure(page, "pairs") == f"{recorded.n_prompt * (recorded.n_prompt + 1) // 2 * N_LAYERS:,}"
    assert wave(page).locator(".phase-new").inner_text() == visible(recorded.tokens[recorded.n_prompt].text)


def test_the_wave_plays_from_the_first_stage_to_the_last(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    """All positions of a layer at once, layers in order: no other order is ever on screen."""
    page = open_page("prefill", lang="en")
    stage = wave(page)
    stage.locator("select.speed").select_option("0.1")
    page.evaluate(
        """() => { const node = (function find(root) {
            for (const each of root.querySelectorAll('*')) {
              if (each.matches('.wave')) return each;
              const inner = each.shadowRoot && find(each.shadowRoot);
              if (inner) return inner;
            } })(document);
            window.seen = [];
            const reading = () => node.querySelectorAll('.reading').length;
            const look = () => seen.push([+node.dataset.pass, +node.dataset.done, reading()]);
            new MutationObserver(look)
              .observe(node, {attributes: true, attributeFilter: ['data-pass', 'data-done']}); }"""
    )
    stage.get_by_role("button", name="Play").click()
    page.wait_for_function(
        f"() => window.seen.length && window.seen.at(-1)[0] === 3 && window.seen.at(-1)[1] === {STAGES}",
        timeout=60_000,
    )
    seen = page.evaluate("() => window.seen")
    order = [pass_ * STAGES + done for pass_, done, _ in seen]
    assert order == sorted(order)
    assert {pass_ for pass_, _, _ in seen} == {0, 1, 2, 3}
    # While the prompt is read, every one of its tokens is being read; later exactly one token at a time.
    for pass_, done, reading in seen:
        if 0 < done < STAGES:
            assert reading == (recorded.n_prompt if pass_ == 0 else 1)
    assert figure(page, "time") == f"{recorded.steps[3].duration_s * 1000:.0f}\u00a0ms"
    assert stage.locator(".phase-prefill").count() == recorded.n_prompt
    assert stage.locator(".phase-decode").count() == 3


def test_stepping_back_and_jumping_show_each_layers_own_time(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("prefill", lang="en", reduced_motion=True)
    stage, starts = wave(page), recorded.steps[0].layer_starts_s
    back = stage.get_by_role("button", name="Step back")
    for done in range(STAGES, STAGES - 4, -1):
        assert place(page) == (0, done)
        since = (recorded.steps[0].ended_s if done == STAGES else starts[done - 1]) - recorded.steps[
            0
        ].started_s
        assert figure(page, "time") == f"{since * 1000:.0f}\u00a0ms"
        back.click()
    stage.locator("input.scrub").focus()
    page.keyboard.press("Home")
    assert figure(page, "layers") == f"0 / {N_LAYERS}"
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert place(page) == (0, 8)
    took = (starts[7] - starts[6]) * 1000
    head = stage.locator(".what").inner_text()
    assert head.startswith(f"layer 7 of {N_LAYERS} · {recorded.n_prompt} at once")
    assert float(re.findall(r"([\d.]+)\u00a0ms", head)[0]) == pytest.approx(took, abs=0.06)


def test_the_mask_is_said_in_words_for_a_token(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("prefill", lang="en")
    chips = wave(page).locator(".chip")
    chips.nth(5).hover()
    hidden = wave(page).locator(".hidden-from")
    assert hidden.count() == chips.count() - 6
    page.mouse.move(2, 2)
    chips.nth(0).focus()
    page.keyboard.press("End")
    expect(chips.last).to_be_focused()
    assert hidden.count() == 0


# ---- attention -------------------------------------------------------------------------------------------------------


def test_what_a_token_looks_at_is_what_the_trace_says(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("prefill", lang="en", layer=17, head=1)
    view, weights = viewer(page), attention_map(recorded, 16, 0)
    for position in (0, 7, 33, 60):
        view.locator(".token").nth(position).click()
        shares = percents(view.locator(".reading .row:not(.rest) span").all_inner_texts())
        expected = sorted(weights[position, : position + 1], reverse=True)[: len(shares)]
        assert shares == pytest.approx([float(x) for x in expected], abs=6e-4)
        assert view.locator(".token.later").count() == recorded.n_traced - 1 - position
    view.locator(".token").nth(60).click()  # lets go
    assert view.locator(".token[aria-pressed=true]").count() == 0


def test_every_head_says_its_share_of_the_sink(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("prefill", lang="en", layer=12)
    profile = head_profile(recorded)
    shown = percents(viewer(page).locator(".head small").all_inner_texts())
    assert shown == pytest.approx([float(x) for x in profile.first[11]], abs=6e-4)
    heights = (
        viewer(page)
        .locator("svg.sinks rect")
        .evaluate_all("bars => bars.map(bar => +bar.getAttribute('height'))")
    )
    assert heights == pytest.approx(np.maximum(0.03, profile.first.mean(axis=1)).tolist(), abs=1e-6)


def test_layer_and_head_are_chosen_and_travel_in_the_link(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("prefill", lang="en")
    view = viewer(page)
    view.locator("input.layer").focus()
    page.keyboard.press("Home")
    expect(view.locator(".map-title")).to_contain_text("Layer 1, head")
    page.wait_for_url("**layer=1*")
    view.locator(".head").nth(4).click()
    expect(view.locator(".map-title")).to_contain_text("Layer 1, head 5")
    page.wait_for_url("**head=5*")
    again = open_page("prefill", lang="ja", layer=1, head=5)
    expect(viewer(again).locator(".map-title")).to_contain_text("層 1・ヘッド 5")
    view.locator(".token").nth(10).focus()
    page.keyboard.press("ArrowRight")
    weights = attention_map(recorded, 0, 4)[11, :12]
    shown = percents([view.locator(".reading .row span").first.inner_text()])[0]
    assert shown == pytest.approx(float(weights.max()), abs=6e-4)


def test_the_last_of_two_quick_choices_of_a_layer_counts(open_page: Callable[..., Page]) -> None:
    page = open_page("prefill", lang="en")
    slider = viewer(page).get_by_role("slider")
    start = slider.input_value()
    slider.press("ArrowRight")
    slider.press("ArrowLeft")
    wait_for_app(page)
    page.wait_for_timeout(1500)
    expect(slider).to_have_value(start)
    assert f"Layer {start}," in viewer(page).locator(".map-title").inner_text()


def test_try_this_has_the_outcome_it_promises(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("prefill", lang="en")
    viewer(page)
    profile = head_profile(recorded)
    layer, head = profile.strongest(profile.previous)
    page.get_by_role("button", name=f"Show layer {layer + 1}, head {head + 1}").click()
    expect(viewer(page).locator(".map-title")).to_contain_text(f"Layer {layer + 1}, head {head + 1}")
    page.wait_for_url(f"**layer={layer + 1}*")
    viewer(page).locator(".head").nth(3).click()
    page.wait_for_url("**head=4*")
    assert f"layer={layer + 1}" in page.url  # the layer that Python set is not undone by choosing a head
    viewer(page).locator(".head").nth(head).click()
    weights = attention_map(recorded, layer, head)
    found = 0
    for position in (5, 12, 20, 40, 55):
        viewer(page).locator(".token").nth(position).click()
        first = viewer(page).locator(".reading .row code").first.inner_text()
        assert first == visible(recorded.tokens[int(weights[position, : position + 1].argmax())].text)
        found += first == visible(recorded.tokens[position - 1].text)
    assert found >= 3


# ---- measurements ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_one_by_one_is_measured_now_and_gives_the_same(
    open_page: Callable[..., Page], recorded: Trace
) -> None:
    page = open_page("prefill", lang="en")
    wait_for_model(page)
    wait_for_app(page)
    page.get_by_role("button", name="Feed it one by one").click()
    row = page.locator(".otat-fig", has_text="largest difference")
    expect(row).to_be_visible(timeout=300_000)
    assert re.fullmatch(r"0|[\d.]+×10⁻[⁴⁵⁶⁷⁸⁹]", row.locator("b").inner_text()), "it is not below 0.001"
    longer = page.locator(".otat-fig", has_text="longer, one by one").locator("b")
    ratio = float(longer.inner_text().removesuffix("×"))
    assert ratio > 1.5
    expect(page.locator(".pf-bar")).to_have_count(2)


@pytest.mark.timeout(600)
def test_a_measurement_can_be_stopped(open_page: Callable[..., Page]) -> None:
    page = open_page("prefill", lang="en", longest=512)
    wait_for_model(page)
    wait_for_app(page)
    page.get_by_role("button", name="Measure several lengths").click()
    page.locator(".st-key-otat_job_cost_stop button").click(timeout=60_000)
    expect(page.get_by_text(re.compile(r"Stopped after \d+ of 21"))).to_be_visible(timeout=120_000)
    assert "longest" not in page.url  # the default stays out of the link


@pytest.mark.timeout(600)
def test_the_layers_are_asked(open_page: Callable[..., Page], recorded: Trace) -> None:
    page = open_page("prefill", lang="en", step=12)
    wait_for_model(page)
    wait_for_app(page)
    page.get_by_role("button", name="Ask every layer").click()
    table = page.locator(".pf-lens")
    expect(table).to_be_visible(timeout=120_000)
    rows = table.locator("tbody tr")
    assert rows.count() == N_LAYERS + 1
    chosen = visible(recorded.tokens[recorded.n_prompt + 11].text)
    assert rows.last.locator("code").first.inner_text() == chosen  # the recorded run was greedy
    logits = recorded.steps[11].logits.astype(np.float64)
    share = 1 / np.exp(logits - logits.max()).sum()
    assert percents([rows.last.locator("td").nth(1).inner_text()])[0] == pytest.approx(share, abs=2e-3)


# ---- on every screen -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_prompt_in_chunks_and_a_prompt_of_one_token(open_page: Callable[..., Page]) -> None:
    page = open_page(
        "prefill", lang="en", reduced_motion=True, run=1, chat=0, max_tokens=2, prompt=" a" * 300
    )
    expect(wave(page).locator(".what")).to_contain_text("part 2 of 2", timeout=240_000)
    wave(page).get_by_role("button", name="Step back").click()
    pairs = int(figure(page, "pairs").replace(",", ""))
    assert pairs == N_LAYERS * (300 * 301 // 2 - 256 * 257 // 2)
    assert viewer(page).locator(".token").count() == 300
    one = open_page("prefill", lang="en", reduced_motion=True, run=1, chat=0, max_tokens=1, prompt="a")
    expect(viewer(one).locator(".token")).to_have_count(1, timeout=240_000)
    assert percents([viewer(one).locator(".reading .row span").inner_text()]) == [1.0]
    assert figure(one, "positions") == "1"


@pytest.mark.parametrize(("lang", "theme"), [("en", "dark"), ("ja", "light")])
def test_it_fits_a_phone_and_axe_finds_nothing(open_page: Callable[..., Page], lang: str, theme: str) -> None:
    page = open_page("prefill", lang=lang, theme=theme, width=390, reduced_motion=True)
    wave(page)
    viewer(page)
    assert overflow_px(page) == 0
    assert axe_violations(page) == []
