"""The prefill page: what it sends equals the trace and stays small, its figures are the run's own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from core.attention import layer_maps
from core.errors import BusyError
from core.model import LoadedModel
from core.prefill import LengthTime, Race, attention_pairs
from core.scheduler import Job, Scheduler
from core.trace import Step, Trace
from pages.views import (
    cache,
    jobs,
    live,
    prefill_attention,
    prefill_lens,
    prefill_measure,
    prefill_table,
    prefill_wave,
)
from pages.views.settings import Settings
from pages.views.text import Text
from tests.conftest import ROOT


class FakeFrame:
    """What the views need of a frame."""

    page, dark, loaded = "prefill", False, None

    def __init__(self, lang: str = "en", **values: Any) -> None:
        prefill_attention.declare()
        prefill_measure.declare()
        self.lang, self.settings, self.t = lang, Settings(values), Text(lang, "prefill")
        self.md = self.t.md


def stretched(recorded: Trace, n_prompt: int, n_steps: int = 1, n_traced: int | None = None) -> Trace:
    """A run with a longer prompt, read in chunks of at most 256: the recorded tokens and vectors, repeated."""
    traced = n_prompt if n_traced is None else n_traced
    repeats = 1 + max(n_prompt + n_steps, traced) // recorded.n_traced
    parts = {
        k: np.tile(getattr(recorded, k), (1, 1, repeats, 1))[:, :, :traced]
        for k in ("queries", "keys", "values")
    }
    tokens = (recorded.tokens * repeats)[: n_prompt + n_steps]
    steps: list[Step] = []
    for start in range(0, n_prompt, 256):
        ids = tuple(t.id for t in tokens[start : min(start + 256, n_prompt)])
        last = start + len(ids) == n_prompt
        step = replace(recorded.steps[0], index=len(steps), input_ids=ids, n_cached_before=start)
        steps.append(step if last else replace(step, token_id=None))
    return replace(
        recorded,
        tokens=tokens,
        n_prompt=n_prompt,
        from_template=(False,) * n_prompt,
        steps=tuple(steps),
        **parts,
    )


def sent_bytes(data: dict[str, Any]) -> int:
    """Bytes on the wire, but for the envelope: arrays as they are, the rest as JSON."""
    arrays = sum(value.nbytes for value in data.values() if isinstance(value, np.ndarray))
    return arrays + len(json.dumps({k: v for k, v in data.items() if not isinstance(v, np.ndarray)}).encode())


def maps_in_the_browser(data: dict[str, Any]) -> np.ndarray:
    """What the component computes from what it is sent, in numpy."""
    meta = data["meta"]
    n, d = meta["n"], meta["head_dim"]
    q = data["q"].view(np.float16).reshape(meta["n_heads"], n, d).astype(np.float32)
    k = data["k"].view(np.float16).reshape(meta["n_kv_heads"], n, d).astype(np.float32)
    scores = (
        q @ np.repeat(k, meta["n_heads"] // meta["n_kv_heads"], axis=0).transpose(0, 2, 1) * meta["scale"]
    )
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_the_wave_is_the_run(recorded: Trace) -> None:
    data = prefill_wave.payload(recorded)
    json.dumps(data)
    assert [s["phase"] for s in data["steps"]] == ["prefill", "decode", "decode", "decode"]
    for sent, step in zip(data["steps"], recorded.steps, strict=False):
        assert (sent["t0"], sent["t1"]) == (step.started_s, step.ended_s)
        assert sent["layers"] == list(step.layer_starts_s)
        assert sent["pairs"] == [attention_pairs(step.n_input, step.n_cached_before)] * recorded.spec.n_layers
    assert len(data["tokens"]) == recorded.n_prompt + 3
    assert [t["hex"] for t in data["tokens"]] == [
        t.bytes.hex() for t in recorded.tokens[: recorded.n_prompt + 3]
    ]


@pytest.mark.parametrize("layer", [0, 18, 29])
def test_the_browser_gets_the_attention_of_the_recorded_run_exactly(recorded: Trace, layer: int) -> None:
    """A recorded run's vectors are 16-bit already, so nothing is lost on the way."""
    data = prefill_attention.payload(recorded, layer, 0)
    assert np.abs(maps_in_the_browser(data) - layer_maps(recorded, layer)).max() < 1e-6


def test_a_live_run_loses_less_than_is_shown(live_trace: Trace) -> None:
    """Percentages are shown with one decimal; 16-bit queries and keys move them by less than a tenth of a percent."""
    for layer in (0, 15, 29):
        data = prefill_attention.payload(live_trace, layer, 0)
        assert np.abs(maps_in_the_browser(data) - layer_maps(live_trace, layer)).max() < 2e-3


@pytest.mark.parametrize("n_prompt", [1, 34, 128, 256])
def test_the_page_sends_less_than_500_kb(recorded: Trace, n_prompt: int) -> None:
    trace = stretched(recorded, n_prompt)
    total = sent_bytes(prefill_wave.payload(trace)) + sent_bytes(prefill_attention.payload(trace, 5, 0))
    assert total < 500_000
    assert total < 30_000 + n_prompt * 1_700  # linear in the length, not quadratic


def test_what_is_sent_of_a_long_run_is_bounded(recorded: Trace) -> None:
    longest = stretched(recorded, 1020, n_traced=512)
    assert prefill_attention.n_shown(longest) == 512
    assert sent_bytes(prefill_attention.payload(longest, 5, 0)) < 900_000
    assert prefill_attention.n_shown(stretched(recorded, 40, n_traced=296)) == prefill_attention.MAX_POSITIONS


def test_a_prompt_in_chunks_is_several_prefill_passes(recorded: Trace) -> None:
    trace = stretched(recorded, 600)
    assert [step.n_input for step in prefill_wave.prefill_steps(trace)] == [256, 256, 88]
    pairs = [sent["pairs"][0] for sent in prefill_wave.payload(trace)["steps"]]
    assert sum(pairs) == 600 * 601 // 2


def test_a_window_reaches_the_browser(recorded: Trace) -> None:
    trace = replace(recorded, spec=replace(recorded.spec, sliding_window=4))
    data = prefill_wave.payload(trace)
    assert data["windows"] == [4] * 30
    assert data["steps"][0]["pairs"][0] == attention_pairs(34, window=4)
    assert prefill_attention.payload(trace, 3, 0)["meta"]["window"] == 4


# ---- where it opens --------------------------------------------------------------------------------------------------


def test_layer_and_head_come_from_the_link_or_from_the_run(recorded: Trace) -> None:
    assert prefill_attention.place(FakeFrame(layer=3, head=2), recorded) == (2, 1)  # type: ignore[arg-type]
    layer, head = prefill_attention.place(FakeFrame(), recorded)  # type: ignore[arg-type]
    profile = prefill_attention.profile_of(recorded)
    assert layer == profile.strongest(profile.first)[0]
    assert abs(profile.first[layer, head] - profile.first.mean()) < 0.05
    assert prefill_attention.place(FakeFrame(layer=31, head=10), recorded) == (layer, head)  # type: ignore[arg-type]


def test_the_step_is_a_pass_that_chose(recorded: Trace) -> None:
    assert prefill_lens.chosen_step(FakeFrame(), recorded).index == 0  # type: ignore[arg-type]
    assert prefill_lens.chosen_step(FakeFrame(step=5), recorded).index == 4  # type: ignore[arg-type]
    assert prefill_lens.chosen_step(FakeFrame(step=200), recorded).index == 0  # type: ignore[arg-type]
    chunks = stretched(recorded, 600)
    assert prefill_lens.chosen_step(FakeFrame(step=1), chunks).index == 2  # type: ignore[arg-type]


def test_the_most_doubtful_pass_is_found(recorded: Trace) -> None:
    from pages.views.run_stage import doubt_bits, probabilities

    step, bits = prefill_lens.most_doubtful(recorded)
    assert bits == max(doubt_bits(probabilities(s.logits)) for s in recorded.choice_steps)
    assert step.is_choice


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_is_the_runs_own(recorded: Trace) -> None:
    rows = {label: (read, write) for label, read, write in prefill_table.rows(FakeFrame(), recorded)}  # type: ignore[arg-type]
    assert rows["Tokens per pass"] == (("34", "measured"), ("1", "measured"))
    assert rows["Passes"] == (("1", "measured"), (str(len(recorded.steps) - 1), "measured"))
    read, write = (
        prefill_table.phase_of(recorded, part(recorded))
        for part in (prefill_wave.prefill_steps, prefill_wave.decode_steps)
    )
    assert read is not None
    assert write is not None
    assert read.seconds == recorded.steps[0].duration_s
    assert read.flops_per_byte > 10 * write.flops_per_byte
    assert 0.3 < write.flops_per_byte < 1  # every weight is used once: 2 FLOPs for 4 bytes
    assert prefill_table.limits(read, write) == ("limit_compute", "limit_memory")


def test_a_run_without_decode_has_a_table_too(recorded: Trace) -> None:
    short = recorded.until(1)
    rows = prefill_table.rows(FakeFrame(), short)  # type: ignore[arg-type]
    none = FakeFrame().t("table.none")
    assert [write[0] for _, _, write in rows].count(none) >= 8
    assert all(read[0] for _, read, _ in rows)


def test_a_single_token_claims_no_limit(recorded: Trace) -> None:
    one = stretched(recorded, 1)
    read = prefill_table.phase_of(one, prefill_wave.prefill_steps(one))
    assert read is not None
    assert prefill_table.limits(read, None) == ("limit_alike", "limit_alike")


def test_cells_are_escaped() -> None:
    made = prefill_table.table_html(FakeFrame(), [("<b>", ("<i>", ""), ("&", "measured"))])  # type: ignore[arg-type]
    assert "<b>" not in made
    assert "&lt;i&gt;" in made


# ---- measurements on screen ------------------------------------------------------------------------------------------


def test_the_areas_never_exceed_the_points(recorded: Trace) -> None:
    times = (LengthTime(8, 0.05), LengthTime(64, 0.1), LengthTime(512, 1.2))
    parts = prefill_measure.time_parts(recorded.spec, times)
    sums = np.array(parts["linear"]) + np.array(parts["attention"])
    assert (sums <= np.array([t.seconds for t in times]) * (1 + 1e-9)).all()
    assert parts["best"] == 64
    share = parts["attention"][2] / parts["attention"][1]
    assert share == pytest.approx((512 * 513) / (64 * 65))


def test_the_bars_are_in_proportion() -> None:
    made = prefill_measure.race_bars(FakeFrame(), Race(34, 0.1, 34, 2.0, 1e-5, True))  # type: ignore[arg-type]
    widths = [float(w) for w in re.findall(r"width:([\d.]+)%", made)]
    assert widths == [5.0, 100.0]


def test_the_lens_escapes_tokens(loaded: Any, recorded: Trace) -> None:
    from core.logit_lens import read_layers

    lens = read_layers(loaded, recorded.steps[0])
    nasty = {i: "<script>" for a in lens.answers for i in a.top_ids}
    row = prefill_lens._row(FakeFrame(), lens.answers[0], nasty, lens.answer_id)  # type: ignore[arg-type]
    assert "<script>" not in row


# ---- the page --------------------------------------------------------------------------------------------------------


def open_page(**query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    return app.switch_page("pages/2_prefill.py").run()


def said(app: AppTest) -> str:
    parts = [*app.markdown, *app.caption, *app.get("html")]
    return "\n".join(str(getattr(part, "value", None) or part.proto.body) for part in parts)


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_it_opens_on_the_recorded_run_before_the_model_is_there(
    no_model: cache.Engine, recorded: Trace, lang: str
) -> None:
    app = open_page(lang=lang, layer="3", head="2", longest="128")
    assert not app.exception
    assert not app.error
    text = said(app)
    assert re.search(r"\{\w+\}", text) is None, "a placeholder was not filled"
    assert Text(lang, "prefill")("model.needed") in text
    assert f"{prefill_attention.profile_of(recorded).first.mean():.0%}".replace("%", "\u00a0%") in text
    assert not [b for b in app.button if b.key and b.key.startswith("otat_job")]


@pytest.mark.parametrize(("n_prompt", "n_traced"), [(1, None), (2, None), (600, 512), (1020, 512), (34, 0)])
def test_extreme_prompts_stand_up(
    no_model: cache.Engine,
    monkeypatch: pytest.MonkeyPatch,
    recorded: Trace,
    n_prompt: int,
    n_traced: int | None,
) -> None:
    trace = stretched(recorded, n_prompt, n_traced=n_traced)
    monkeypatch.setattr(cache, "recorded_trace", lambda name=None: trace)
    app = open_page(lang="en")
    assert not app.exception
    assert bool(app.error) == (n_traced == 0)  # said in one sentence: nothing was traced
    assert f"the whole prompt, {n_prompt} in all" in said(app)


def test_bad_values_in_the_link_do_not_hurt(no_model: cache.Engine) -> None:
    app = open_page(lang="en", layer="-4", head="x", longest="7", step="250")
    assert not app.exception
    assert not app.error
    assert app.warning


def test_a_refused_measurement_keeps_the_results_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, no_model: cache.Engine
) -> None:
    over = Job("measurement", iter([]), lambda: None)
    over.advance()
    given: list[Job] = [over]

    class Once:
        def run_job(self, name: str, make: Any, **more: Any) -> Job:
            if not given:
                raise BusyError()
            return given.pop()

    no_model.scheduler = Once()  # type: ignore[assignment]
    task = jobs.Task("race", "about", lambda loaded: iter([]), 1)
    state: dict[str, Any] = {}
    monkeypatch.setattr(jobs.st, "session_state", state)
    jobs.start(task)
    jobs.start(task)
    about, job, refused = state[task.key]
    assert (about, job) == ("about", over)
    assert isinstance(refused, BusyError)


def test_a_measurement_of_something_else_is_stopped(monkeypatch: pytest.MonkeyPatch, no_model: cache.Engine) -> None:
    """Its Stop button is gone from the page, and it would stand in the way of the next one."""
    monkeypatch.setattr(jobs.st, "session_state", {})
    monkeypatch.setattr(jobs, "_panel", lambda *about: None)
    earlier = Job("measurement", (i for i in range(3)), lambda: None)
    task = jobs.Task("race", "16 tokens", lambda loaded: iter([]), 1)
    jobs.st.session_state[task.key] = (task.about, earlier, None)
    jobs.panel(None, task, lambda results, over: None)  # type: ignore[arg-type]
    earlier.advance()
    assert earlier.state == "running"
    jobs.panel(None, replace(task, about="32 tokens"), lambda results, over: None)  # type: ignore[arg-type]
    earlier.advance()
    assert earlier.state == "cancelled"


def test_a_measurement_goes_on_while_its_session_looks_at_any_page(
    monkeypatch: pytest.MonkeyPatch, no_model: cache.Engine, scheduler: Scheduler
) -> None:
    no_model.scheduler = scheduler
    monkeypatch.setattr(live, "KEEPALIVE_S", 0.5)
    monkeypatch.setattr(live.st, "session_state", {})

    def work(loaded: LoadedModel) -> Iterator[int]:
        for i in range(10_000):
            time.sleep(0.01)
            yield i

    job = live.run_job("looked-at", work)
    for _ in range(8):
        assert live.jobs_go_on()
        time.sleep(0.2)
    assert not job.is_over
    assert job._done.wait(10)  # nobody looks any more
    assert job.state == "cancelled"
    assert not live.jobs_go_on()


def test_another_measurement_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, no_model: cache.Engine
) -> None:
    class Busy:
        def run_job(self, name: str, make: Any, **more: Any) -> None:
            raise BusyError()

    no_model.scheduler = Busy()  # type: ignore[assignment]
    app = open_page(lang="en")
    app.button(key="otat_job_race_start").click().run()
    assert [str(BusyError())] == [e.value.replace("\\", "") for e in app.error]
