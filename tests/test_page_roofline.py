"""The roofline page: measured once per machine, its figures the model's own, its sources named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from core import roofline
from core.model import LoadedModel
from core.prefill import pass_cost
from core.roofline import MachineLimits, PassPoint
from core.trace import Trace
from pages.views import roofline_data, roofline_parts
from pages.views.text import Text
from tests.conftest import ROOT


def measurement(factor: float = 1.0) -> list[MachineLimits | PassPoint]:
    limits = MachineLimits("here", "cpu", "float32", 10e9, 100e9)
    prefill = [PassPoint("prefill", 1, n, 0, 0.1 * factor, 10, 20) for n in roofline.PREFILL_LENGTHS]
    decode = [PassPoint("decode", n, 1, 64, 0.1 * factor, 10, 20) for n in roofline.DECODE_BATCHES]
    return [limits, *prefill, *decode]


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_it_opens_on_a_recorded_machine(lang: str) -> None:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["lang"] = lang
    app = app.switch_page("pages/10_roofline.py").run()
    assert not app.exception
    assert not app.error
    assert [h.value for h in app.header]


def test_a_machine_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel
) -> None:
    """Stored in the user's cache folder, complete or not at all; a damaged file gives way to the recording."""
    monkeypatch.setenv("OTAT_CACHE", str(tmp_path))
    assert roofline_data.shown(loaded)[1] is False
    assert roofline_data.store(loaded, tuple(measurement()[:-1])) is False  # stopped half-way
    assert roofline_data.shown(loaded)[1] is False
    assert roofline_data.store(loaded, tuple(measurement())) is True
    assert roofline_data.store(loaded, tuple(measurement())) is False
    (limits, points), own = roofline_data.shown(loaded)
    assert own
    assert [limits, *points] == measurement()
    roofline_data.file_of(loaded).write_text("{")
    assert roofline_data.shown(loaded)[1] is False
    assert roofline_data.store(loaded, tuple(measurement(2.0))) is True
    assert roofline_data.shown(loaded)[0][1][0].seconds == 0.2


def test_the_lab_s_facts_give_the_cost_of_a_pass(loaded: LoadedModel) -> None:
    """What the browser multiplies out equals core.prefill.pass_cost."""
    facts, spec = roofline_data.model_facts(loaded.spec), loaded.spec
    for n, cached in ((1, 0), (1, 64), (34, 0), (128, 512)):
        cost = pass_cost(spec, n, cached)
        pairs = n * (n + 1) // 2 + n * cached
        assert facts["linear"] * n + facts["pair"] * pairs + facts["vocabulary"] == cost.flops
        assert facts["weights"] * 4 + (cached + n) * facts["values"] * 4 == cost.bytes


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_every_accelerator_has_a_source_and_its_figures_are_in_it(lang: str) -> None:
    for card in roofline_data.accelerators():
        digits = Text(lang, "roofline")(f"source.{card['id']}").replace(",", "")
        bandwidth = {f"{card['read_gb_s']}", f"{card['read_gb_s'] / 1000:g}"}
        rate = {f"{card['tflops']:g}", f"{round(card['tflops'] * 2):g}"}  # or twice as much, with sparsity
        assert any(f"{b} " in digits for b in bandwidth), card
        assert any(r in digits for r in rate), card


def test_a_request_of_100_and_500_tokens(recorded: Trace) -> None:
    """LESSONS A5: one prefill pass and 499 decode passes."""
    assert (roofline_parts.PROMPT_TOKENS, roofline_parts.ANSWER_TOKENS) == (100, 500)
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app = app.switch_page("pages/10_roofline.py").run()
    tables = "\n".join(str(part.proto.body) for part in app.get("html"))
    assert ">499<" in tables
    total = sum(pass_cost(recorded.spec, 1, 100 + i).bytes for i in range(499))
    assert f"{total / 1024**3:,.2f} GiB" in tables


def test_the_recorded_machine_is_complete() -> None:
    data = json.loads(roofline_data.RECORDED.read_text(encoding="utf-8"))
    limits, points = roofline.from_json(data)
    assert limits.machine
    assert len(points) == len(roofline.PREFILL_LENGTHS) + len(roofline.DECODE_BATCHES)
