"""The KV cache page: what it sends to the browser equals the trace, and it stands up in both languages."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from core.spec import ModelSpec
from core.trace import Trace
from pages.views import kv_cache_data as data
from tests.conftest import ROOT

VIEW: dict[str, Any] = {"step": None, "kv": "k", "head": 0, "cell": [0, 0]}

pytestmark = pytest.mark.usefixtures("no_model")  # the page needs no model, and must not load one here


def decoded(trace: Trace) -> np.ndarray:
    """What the browser makes of the codes: `(2, n_kv_heads, n_layers, n_traced)`."""
    sent = data.grid(trace, "r", VIEW)
    spec, n = trace.spec, sent["meta"]["n_traced"]
    codes = sent["norms"].reshape(2, spec.n_kv_heads, spec.n_layers, n).astype(np.float64)
    return codes * np.array(sent["meta"]["scale"])[:, None, None, None]


def size_bytes(sent: dict[str, Any]) -> int:
    return len(json.dumps(sent["meta"])) + sent["norms"].nbytes + sent["layer_ms"].nbytes


def one_token(recorded: Trace) -> Trace:
    """The shortest run there is: a prompt of one token, one pass, one choice."""
    first = recorded.steps[0]
    step = replace(first, input_ids=first.input_ids[:1], token_id=recorded.tokens[1].id)
    parts = {name: getattr(recorded, name)[:, :, :1] for name in ("queries", "keys", "values")}
    return replace(
        recorded,
        tokens=recorded.tokens[:2],
        from_template=(False,),
        n_prompt=1,
        steps=(step,),
        chat=False,
        **parts,
    )


def partly_traced(recorded: Trace, n: int) -> Trace:
    parts = {name: getattr(recorded, name)[:, :, :n] for name in ("queries", "keys", "values")}
    return replace(recorded, **parts)


def test_the_lengths_are_those_of_the_recorded_vectors(recorded: Trace) -> None:
    shown = decoded(recorded)
    for i, vectors in enumerate((recorded.keys, recorded.values)):
        real = np.linalg.norm(vectors.astype(np.float64), axis=-1).transpose(1, 0, 2)
        assert shown[i] == pytest.approx(real, abs=real.max() / 65535)


def test_a_cell_holds_exactly_its_recorded_numbers(recorded: Trace) -> None:
    cell = data.vectors(recorded, (7, 20))
    assert np.array_equal(cell["k"], recorded.keys[7, :, 20].astype(np.float32).ravel())
    assert np.array_equal(cell["v"], recorded.values[7, :, 20].astype(np.float32).ravel())
    assert len(cell["k"]) == recorded.spec.n_kv_heads * recorded.spec.head_dim


def test_the_steps_say_what_was_cached_before_and_after(recorded: Trace) -> None:
    """P1 P2 P3, then A: after prefill the cache holds the prompt, and the chosen token is not in it."""
    steps = data.grid(recorded, "r", VIEW)["meta"]["steps"]
    assert steps[0][:4] == ["prefill", 0, recorded.n_prompt, recorded.n_prompt]
    for (_, before, n, chosen, *_), (_, next_before, next_n, *_) in itertools.pairwise(steps):
        assert next_before == before + n == chosen
        assert next_n == 1
    assert steps[-1][1] + steps[-1][2] == recorded.n_cached == len(recorded.tokens) - 1


def test_layer_times_begin_with_the_pass(recorded: Trace) -> None:
    times = data.grid(recorded, "r", VIEW)["layer_ms"].reshape(len(recorded.steps), -1)
    assert times.shape[1] == recorded.spec.n_layers + 1
    assert (np.diff(times, axis=1) > 0).all()
    durations = np.array([step.duration_s for step in recorded.steps]) * 1e3
    assert (times[:, 0] >= 0).all()
    assert (times[:, -1] <= durations + 0.01).all()


def test_a_run_of_one_token(recorded: Trace) -> None:
    short = one_token(recorded)
    sent = data.grid(short, "r", VIEW)
    assert sent["meta"]["n_traced"] == 1
    assert data.sink_ratios(short) is None
    assert data.default_cell(short) == (short.spec.n_layers // 2, 0)
    assert data.cell_facts(short, (3, 1))["state"] == "unwritten"
    assert len(data.vectors(short, (3, 1))["k"]) == 0


def test_positions_beyond_the_recorded_ones_are_said_to_be_so(recorded: Trace) -> None:
    part = partly_traced(recorded, 10)
    assert data.grid(part, "r", VIEW)["meta"]["n_traced"] == 10
    assert data.cell_facts(part, (0, 9))["state"] == "recorded"
    assert data.cell_facts(part, (0, 10))["state"] == "untraced"
    assert len(data.vectors(part, (0, 10))["v"]) == 0
    assert data.weighed(part, None) is None
    nothing = partly_traced(recorded, 0)
    assert len(data.grid(nothing, "r", VIEW)["norms"]) == 0


def long_run(recorded: Trace, n_prompt: int, n_steps: int, n_traced: int) -> Trace:
    """A run of this shape, made of pieces of the recorded one: only its size matters here."""
    prefill, decode = recorded.steps[0], recorded.steps[1]
    tokens = tuple(replace(recorded.tokens[i % 34], position=i) for i in range(n_prompt + n_steps))
    first = replace(prefill, input_ids=tuple(token.id for token in tokens[:n_prompt]))
    steps = (first, *(replace(decode, index=i, n_cached_before=n_prompt + i - 1) for i in range(1, n_steps)))
    parts = {
        name: np.resize(getattr(recorded, name), (*getattr(recorded, name).shape[:2], n_traced, 64))
        for name in ("queries", "keys", "values")
    }
    return replace(
        recorded, tokens=tokens, from_template=(False,) * n_prompt, n_prompt=n_prompt, steps=steps, **parts
    )


@pytest.mark.parametrize(("n_prompt", "n_steps", "n_traced"), [(256, 256, 511), (1024, 256, 512)])
def test_the_longest_runs_fit_the_budget(recorded: Trace, n_prompt: int, n_steps: int, n_traced: int) -> None:
    sent = data.grid(long_run(recorded, n_prompt, n_steps, n_traced), "r", VIEW)
    assert size_bytes(sent) < 500_000
    assert sent["meta"]["n_traced"] == n_traced


def test_a_model_with_many_heads_is_cut_to_the_budget(recorded: Trace) -> None:
    wide = ModelSpec(**{**recorded.spec.to_dict(), "n_kv_heads": 9})
    vectors = np.resize(recorded.keys, (30, 9, 500, 64))
    shown = data.shown_positions(replace(recorded, spec=wide, keys=vectors, values=vectors))
    assert 0 < shown < 500
    assert shown * 2 * 2 * 9 * 30 <= data.BUDGET_BYTES


def test_the_formula_equals_the_live_tensors(live_trace: Trace, loaded: Any) -> None:
    """B4: the bytes of the running model's cache tensors are those of the formula, exactly."""
    from core.forward import Span, packed_forward
    from core.kv_cache import KVCache

    cache = KVCache(loaded.spec, device=loaded.device)
    ids = tuple(token.id for token in live_trace.tokens[: live_trace.n_cached])
    packed_forward(loaded, [Span(cache, ids)])
    held = data.weighed(live_trace, cache)
    assert held is not None
    assert held["kind"] == "measured"
    assert held["bytes"] == live_trace.kv_bytes == live_trace.keys.nbytes + live_trace.values.nbytes


@pytest.mark.parametrize("raw", ["", "1-1", "30-61"])
def test_a_cell_in_a_link(raw: str, recorded: Trace) -> None:
    assert data.parse_cell(raw) == raw
    layer, position = data.cell_of(raw, recorded)
    assert 0 <= layer < 30
    assert 0 <= position < len(recorded.tokens)


@pytest.mark.parametrize("raw", ["x", "0-1", "1-", "1-2-3", "-1-1", "1.5-2"])
def test_a_bad_cell_in_a_link_is_refused(raw: str) -> None:
    with pytest.raises(ValueError):
        data.parse_cell(raw)


def test_a_cell_that_this_run_does_not_have_becomes_the_usual_one(recorded: Trace) -> None:
    assert data.cell_of("31-1", recorded) == data.cell_of("1-99999", recorded) == data.default_cell(recorded)


# ---- the page --------------------------------------------------------------------------------------------------------


def open_page(**query: str) -> AppTest:
    app = AppTest.from_file(ROOT / "app.py", default_timeout=60)
    app.switch_page("pages/3_kv_cache.py")
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


@pytest.fixture(params=["en", "ja"])
def page(request: pytest.FixtureRequest) -> AppTest:
    return open_page(lang=request.param)


def test_the_page_runs_in_both_languages(page: AppTest, recorded: Trace) -> None:
    assert not page.exception
    assert not page.error
    spoken = " ".join(block.value for block in page.markdown)
    text_bytes = sum(len(token.bytes) for token in recorded.tokens[: recorded.n_cached])
    assert f"{recorded.kv_bytes / text_bytes:,.0f}" in spoken
    assert "{" not in spoken


def test_the_prediction_is_answered_from_the_run(page: AppTest, recorded: Trace) -> None:
    choice = page.radio(key="otat_radio_kv_cache_after_prefill")
    assert [int(option) for option in choice.options] == [
        recorded.n_prompt - 1,
        recorded.n_prompt,
        recorded.n_prompt + 1,
    ]
    choice.set_value(1).run()
    assert not page.exception
    assert any(str(recorded.n_prompt) in block.value and "**" in block.value for block in page.markdown)


def test_a_bad_link_still_shows_the_page() -> None:
    app = open_page(lang="en", kv="q", kv_head="-4", kv_cell="<script>")
    assert not app.exception
    assert len(app.warning) == 1
