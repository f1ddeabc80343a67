"""The calculator page: what it sends to the browser, what it accepts back, and that every bad input gets a sentence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from core.errors import ExplainerError, UnsupportedConfigError
from core.kv_codes import layout_from_code
from core.kv_memory import KVLayout, kv_bytes, weight_bytes
from core.trace import Trace
from pages.views import kv_memory_data as data
from pages.views import kv_memory_words as words
from pages.views.settings import Settings
from pages.views.text import Text
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("no_model")  # the page needs no model, and must not load one here

CONFIGS = json.loads((ROOT / "tests" / "data" / "kv" / "configs.json").read_text(encoding="utf-8"))
LOG = "llama_kv_cache: size = 512.00 MiB (  4096 cells,  32 layers,  1/1 seqs), K (f16): 256.00 MiB, V (f16): 256 MiB"


def open_page(**query: str) -> AppTest:
    app = AppTest.from_file(ROOT / "app.py", default_timeout=60)
    app.switch_page("pages/6_kv_memory.py")
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def spoken(app: AppTest) -> str:
    parts = [*app.markdown, *app.get("html"), *app.error, *app.info, *app.success, *app.warning]
    return " ".join(str(getattr(part, "value", None) or part.proto.body) for part in parts)


# --- the data ---------------------------------------------------------------------------------------------------------


def test_every_preset_is_a_published_configuration_with_the_layers_of_the_whole_file() -> None:
    """The presets keep the shape keys only; what they leave out must not matter."""
    names = {entry["name"] for entry in data.presets()}
    assert len(data.presets()) == len(names) == len(CONFIGS) - 1  # one of them is refused
    layouts = [KVLayout.from_config(config) for name, config in CONFIGS.items() if "V4" not in name]
    plain = [[replace(layer, index_elements=0) for layer in layout.layers] for layout in layouts]
    assert {data.preset_layout(entry["id"]).layers for entry in data.presets()} == set(map(tuple, plain))
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", entry["source"]) for entry in data.presets())


def test_the_devices_have_memory_and_a_source() -> None:
    for device in data.devices():
        assert 4_000 < device["memory_mib"] < 400_000
        for lang in ("en", "ja"):
            assert "{mib}" in Text(lang, "kv_memory").group("calc")[f"card_source_{device['source']}"]
        assert device["kind"] in ("gpu", "laptop")


def test_the_model_reaches_the_browser_whole(recorded: Trace) -> None:
    data.declare()
    sent = data.component(Settings(), recorded.spec)
    assert len(json.dumps(sent)) < 60_000
    for entry in sent["models"]:
        layers = [data._back(entry["layers"][i]) for i in entry["order"]]
        total = kv_bytes(KVLayout(tuple(layers)), 1000, n_cross_tokens=5).total
        if entry["id"] == "running":
            assert (
                total
                == 1000 * recorded.spec.n_layers * 2 * recorded.spec.n_kv_heads * recorded.spec.head_dim * 2
            )
        else:
            assert total == kv_bytes(data.preset_layout(entry["id"]), 1000, n_cross_tokens=5).total


def test_what_the_browser_sends_is_checked(recorded: Trace) -> None:
    data.declare()
    chosen = Settings()
    data.take_view(chosen, {"tokens": 8192, "users": 3, "k": "q8_0", "model": "gemma-3-12b", "params": 7})
    assert (chosen.get("mem_tokens"), chosen.get("mem_k"), chosen.get("mem_params")) == (8192, "q8_0", 7.0)
    before = data.view(chosen)
    for bad in (
        {"tokens": -1},
        {"tokens": 10**12},
        {"tokens": "8192"},
        {"tokens": True},
        {"k": "f99"},
        {"model": "nobody"},
        {"layers": "x"},
        {"shape": "0-1-1-1"},
        {"shape": "4-3-2-8"},
        {"mla": "1"},
        {"over": float("nan")},
        {"gib": -1},
        None,
        [],
        "x",
    ):
        data.take_view(chosen, bad)
        assert data.view(chosen) == before


def test_the_sliders_make_the_layout_of_core() -> None:
    data.declare()
    values = data.view(Settings()) | {"shape": "4-8-2-64"}
    assert data.manual(values) == KVLayout.uniform(4, 2, 64)
    assert data.manual(values | {"window": 128}) == KVLayout.uniform(4, 2, 64, window=128)
    assert data.manual(values | {"window": 128, "pattern": 2}) == KVLayout.uniform(4, 2, 64, 128, 2)
    assert data.manual(values | {"mla": "512-64"}) == KVLayout.latent(4, 512, 64)


def test_a_file_becomes_the_pages_model() -> None:
    data.declare()
    chosen = Settings()
    data.take_file(chosen, {"name": "my  model\n.json", "text": json.dumps(CONFIGS["Jamba-v0.1"])})
    assert chosen.get("mem_model") == "custom"
    assert chosen.get("mem_name") == "my model .json"
    assert layout_from_code(chosen.get("mem_layers")).layers == data.preset_layout("jamba-v0.1").layers
    table = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64}
    data.take_file(chosen, {"table": table | {"llama.attention.head_count": 4}})
    assert layout_from_code(chosen.get("mem_layers")).layers == KVLayout.uniform(2, 4, 16).layers
    query = chosen.query()
    opened = Settings()
    opened.pull(query)
    assert data.view(opened) == data.view(chosen)
    assert not opened.rejected


@pytest.mark.parametrize(
    "sent",
    [
        {"text": ""},
        {"text": "[" * 100_000},
        {"text": '{"model_type": "llama", "num_hidden_layers": Infinity}'},
        {"text": '{"model_type": "llama", "num_hidden_layers": 1e12}'},
        {"text": '{"model_type": null}'},
        {"text": "x" * 2_000_000},
        {"table": {}},
        {"table": {"general.architecture": "llama", "llama.block_count": "many"}},
    ],
)
def test_bad_files_are_refused_and_change_nothing(sent: dict[str, Any]) -> None:
    data.declare()
    chosen = Settings()
    with pytest.raises(UnsupportedConfigError):
        data.take_file(chosen, sent)
    assert chosen.query() == {}


@pytest.mark.parametrize("sent", [None, 3, "x", {}, {"text": 5}, {"table": 5}, {"name": ["x"]}])
def test_things_that_are_no_file_do_nothing(sent: object) -> None:
    data.declare()
    chosen = Settings()
    data.take_file(chosen, sent)
    assert chosen.query() == {}


# --- figures in sentences ---------------------------------------------------------------------------------------------


def test_the_worked_example_is_computed() -> None:
    """LESSONS B1, recomputed: 128 KiB a token, 16 GiB for 32 users, 16.06 GB of weights, a quarter of 32 KV heads."""
    facts = words.example()
    assert facts["per_token"] == "128.0 KiB"
    assert facts["cache"] == "16.00 GiB"
    assert facts["weights"] == "14.96 GiB = 16.06 GB"
    assert facts["times"] == "4"
    assert weight_bytes(8_030_000_000) == 16_060_000_000
    grows = words.window_example()
    layout = data.preset_layout("gemma-3-12b")
    assert grows["text_times"] == 128
    ratio = kv_bytes(layout, 131_072).total / kv_bytes(layout, 1024).total
    assert grows["cache_times"] == f"{ratio:.0f}"
    assert (grows["n_window"], grows["n_layers"]) == (40, 48)


def test_the_tensors_of_the_recorded_run_equal_the_formula(recorded: Trace) -> None:
    rows, live = words.tensors(recorded, None)
    assert not live
    assert len(rows) == 2 * recorded.spec.n_layers
    assert sum(row[2] for row in rows) == recorded.kv_bytes


def test_the_live_tensors_equal_the_formula(live_trace: Trace, loaded: Any) -> None:
    """B4: every tensor of a real cache, and their sum."""
    from core.forward import Span, packed_forward
    from core.kv_cache import KVCache

    held = KVCache(loaded.spec, device=loaded.device)
    ids = tuple(token.id for token in live_trace.tokens[: live_trace.n_cached])
    packed_forward(loaded, [Span(held, ids)])
    rows, live = words.tensors(live_trace, held)
    assert live
    spec = loaded.spec
    assert {row[2] for row in rows} == {spec.n_kv_heads * live_trace.n_cached * spec.head_dim * 4}
    layout = KVLayout.uniform(spec.n_layers, spec.n_kv_heads, spec.head_dim)
    assert (
        sum(row[2] for row in rows)
        == kv_bytes(layout, live_trace.n_cached, k_dtype="f32").total
        == held.nbytes
    )


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_the_page_runs_in_both_languages(lang: str, recorded: Trace) -> None:
    app = open_page(lang=lang)
    assert not app.exception
    assert not app.error
    text = spoken(app)
    assert f"{recorded.kv_bytes:,} B" in text
    assert re.sub(r"\\", "", text).replace("\u00a0", " ").count("128.0 KiB") >= 1
    assert not re.search(r"\{[a-z_]+\}", text)


def test_the_answer_is_revealed_only_after_the_guess() -> None:
    app = open_page(lang="en")
    assert "16.06 GB" not in spoken(app).replace("\\", "")
    app.radio[0].set_value(2).run()
    assert "16.06 GB" in spoken(app).replace("\\", "")


def test_a_link_opens_on_its_model_and_figures() -> None:
    app = open_page(lang="en", mem_model="gemma-3-12b", mem_tokens="131072", mem_users="2")
    assert not app.exception
    settings = app.session_state["otat_settings"]
    assert data.view(settings)["model"] == "gemma-3-12b"
    assert data.view(settings)["tokens"] == 131_072


@pytest.mark.parametrize(
    "query",
    [
        {"mem_tokens": "-1"},
        {"mem_tokens": "1e12"},
        {"mem_users": "99999999999"},
        {"mem_model": "<script>"},
        {"mem_layers": "F1.1.1-a99999"},
        {"mem_shape": "0-0-0-0"},
        {"mem_mla": "x"},
        {"mem_over": "Infinity"},
        {"mem_card": "abacus"},
    ],
)
def test_bad_links_get_one_sentence(query: dict[str, str]) -> None:
    app = open_page(lang="en", **query)
    assert not app.exception
    assert len(app.warning) == 1


def test_a_link_that_says_custom_without_layers_shows_a_model_all_the_same() -> None:
    app = open_page(lang="en", mem_model="custom")
    assert not app.exception
    assert not app.error


def test_pasting_a_configuration() -> None:
    app = open_page(lang="en")
    app.text_area(key="mem_paste").set_value(json.dumps(CONFIGS["DeepSeek-V3"])).run()
    app.button(key="mem_paste_button").click().run()
    assert not app.exception
    assert "deepseek" in spoken(app)
    assert app.query_params["mem_model"] == "custom"
    assert app.query_params["mem_layers"] == "F576.0.0-a61"


@pytest.mark.parametrize("lang", ["en", "ja"])
@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "[" * 50_000,
        '{"model_type": "brand_new"}',
        '{"model_type": "llama", "num_hidden_layers": -5}',
        json.dumps({**CONFIGS["Meta-Llama-3.1-8B"], "kv_lora_rank": 512}),
        json.dumps(CONFIGS["DeepSeek-V4-Flash"]),
        "[]",
        "",
    ],
)
def test_pasting_something_else_gets_a_sentence(lang: str, text: str) -> None:
    app = open_page(lang=lang)
    app.text_area(key="mem_paste").set_value(text).run()
    app.button(key="mem_paste_button").click().run()
    assert not app.exception
    assert len(app.error) == 1
    assert not re.search(r"\{[a-z_]+\}", app.error[0].value)
    assert "mem_layers" not in app.query_params


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_a_log_line_is_recognized_and_equal(lang: str) -> None:
    app = open_page(lang=lang)
    app.text_area(key="mem_log").set_value(LOG).run()
    assert not app.exception
    text = spoken(app)
    assert text.count("512.00 MiB = 536.87 MB") == 2
    assert ("equal, within the digits printed" if lang == "en" else "表示された桁まで一致") in text


def test_the_memory_that_an_engine_found_is_told_in_tokens() -> None:
    app = open_page(lang="en")
    app.text_area(key="mem_log").set_value("Available KV cache memory: 2.89 GiB").run()
    assert not app.exception
    n = int(2.89 * 1024**3) // (16 * 131_072) * 16
    assert f"{n:,} tokens" in spoken(app)


def test_an_unknown_family_is_refused_by_its_name() -> None:
    app = open_page(lang="ja")
    app.text_area(key="mem_paste").set_value('{"model_type": "brand_new"}').run()
    app.button(key="mem_paste_button").click().run()
    assert "brand" in app.error[0].value


@pytest.mark.parametrize("text", ["hello", "<script>alert(1)</script>", "\x00", "9" * 10_000])
def test_unknown_log_lines_get_a_sentence(text: str) -> None:
    app = open_page(lang="en")
    app.text_area(key="mem_log").set_value(text).run()
    assert not app.exception
    assert len(app.info) == 1


def test_a_log_with_markup_is_shown_as_text() -> None:
    app = open_page(lang="en")
    app.text_area(key="mem_log").set_value("<img src=x onerror=alert(1)> " + LOG).run()
    assert not app.exception
    assert "<img src=x" not in spoken(app)


def test_every_refusal_has_a_sentence_in_both_languages() -> None:
    from pages.views.text import Text

    class Spoken:
        def __init__(self, lang: str) -> None:
            self.t = Text(lang, "kv_memory")
            self.md = self.t.md

    for lang in ("en", "ja"):
        for why in ("missing", "not_whole", "unknown_key", "unknown_family", "not_json", "too_deep", "new"):
            error = UnsupportedConfigError(
                key="some_key", reason="is odd", remedy="Do this.", why=why, family="f"
            )
            sentence = words.refusal(Spoken(lang), error)  # type: ignore[arg-type]
            assert sentence
            assert "{" not in sentence
    assert isinstance(error, ExplainerError)
