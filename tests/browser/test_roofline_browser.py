"""The roofline lab in a real browser: its arithmetic is core's, it moves while dragging, a machine can be measured."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from playwright.sync_api import Browser, Page, expect

from core.roofline import batch_cost
from core.spec import ModelSpec
from core.trace import Trace
from pages.views import roofline_data
from tests.browser.helpers import wait_for_model
from tests.conftest import ROOT, recorded_run_path

COMPONENTS = ROOT / "assets" / "components"


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return Trace.load(recorded_run_path()).spec


SCRIPT = """({source, model, cases}) => {
  const names = "{passOf, STOPS, positionOf, crossingBatch}";
  const f = new Function(source + `; return ${names};`)();
  return {
    passes: cases.map(([batch, n, cached]) => f.passOf(model, {bytes: 4, cache: 4}, batch, n, cached)),
    stops: f.STOPS,
    positions: Object.entries(f.STOPS).map(([name, stops]) => stops.map((stop) => f.positionOf(name, stop))),
    between: [f.positionOf("batch", 511), f.positionOf("context", 7999)],
    crossing: [1, 10, 1000].map((ridge) =>
      f.crossingBatch(model, {bytes: 4, cache: 4}, {flops: ridge * 1e9, read: 1e9}, 64)),
  };
}"""


def test_the_browser_computes_passes_as_core_does(browser: Browser, spec: ModelSpec) -> None:
    main = (COMPONENTS / "roofline_lab" / "main.js").read_text(encoding="utf-8")
    source = (COMPONENTS / "shared.js").read_text(encoding="utf-8")
    source += main.replace("export default function", "function last")
    dice = random.Random(1)
    cases = [(dice.randint(1, 512), dice.choice([1, 1, 34, 256]), dice.randint(0, 8192)) for _ in range(300)]
    page = browser.new_page()
    found = page.evaluate(
        SCRIPT, {"source": source, "model": roofline_data.model_facts(spec), "cases": cases}
    )
    page.close()
    for (batch, n, cached), mine in zip(cases, found["passes"], strict=True):
        flops, moved = batch_cost(spec, batch, n, cached)
        assert (mine["flops"], mine["bytes"]) == (flops, moved)
    stops = found["stops"]["batch"], found["stops"]["context"]
    for values, positions in zip(stops, found["positions"], strict=True):
        assert all(a < b for a, b in pairwise(values))  # every key press changes something
        assert positions == list(range(len(values)))
    assert [(values[0], values[-1]) for values in stops] == [(1, 512), (0, 8192)]
    for values, position, value in zip(stops, found["between"], (511, 7999), strict=True):
        assert values[position] < value < values[position + 1]
    one, ten, never = found["crossing"]
    assert one < ten
    assert never is None
    for ridge, n in ((1, one), (10, ten)):
        flops, moved = batch_cost(spec, n, 1, 64)
        assert flops / moved >= ridge
        if n > 1:
            flops, moved = batch_cost(spec, n - 1, 1, 64)
            assert flops / moved < ridge


def test_dragging_moves_the_figures_and_letting_go_the_link(
    open_page: Callable[..., Page], spec: ModelSpec
) -> None:
    page = open_page("roofline", lang="en", rf_device="h100", rf_weights="bfloat16")
    lab = page.locator(".roofline-lab")
    share = lab.locator(".fig[data-name=cache_share] b")
    expect(share).to_be_visible()
    assert "waits for memory" in lab.locator(".say").inner_text()
    before = share.inner_text()
    slider = lab.locator(".context input")
    slider.evaluate("e => { e.value = e.max; e.dispatchEvent(new Event('input')); }")
    during = share.inner_text()
    assert during != before
    assert "rf_context" not in page.url
    cache = 8193 * spec.n_layers * spec.n_kv_heads * spec.head_dim * 2 * 2
    assert float(during.split()[0]) == pytest.approx(100 * cache / (cache + spec.n_parameters * 2), abs=0.06)
    slider.evaluate("e => e.dispatchEvent(new Event('change'))")
    expect(page).to_have_url(re.compile("rf_context=8192"))
    # A batch of hundreds: on a phone's worth of context the point climbs over the ridge.
    lab.locator(".context input").evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
    lab.locator(".batch input").evaluate("e => { e.value = e.max; e.dispatchEvent(new Event('change')); }")
    lab.locator(".batch input").evaluate("e => e.dispatchEvent(new Event('input'))")
    assert "is false here" in lab.locator(".say").inner_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_machine_is_measured_and_shared(open_page: Callable[..., Page]) -> None:
    page = open_page("roofline", lang="en")
    wait_for_model(page)
    page.get_by_role("button", name=re.compile("Measure this machine|Measure again")).first.click()
    expect(page.locator(".roofline-lab .source")).to_contain_text("(this machine)", timeout=300_000)
    other = open_page("roofline", lang="en")
    wait_for_model(other)
    other.reload()
    expect(other.locator(".roofline-lab .source")).to_contain_text("(this machine)", timeout=60_000)
