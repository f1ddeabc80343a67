"""The tokens page: what it sends to the browser is the real tokenizer and the real rows, whatever the learner does."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest
from tokenizers import normalizers

from core.embedding import embedding_row, nearest_rows
from core.tokenizer import bpe_table, default_system, encode, encode_prompt, make_tokens
from core.trace import Trace
from pages.views import cache, settings, tokens_lab
from pages.views.cache import Engine, Status
from pages.views.text import Text
from tests.conftest import ROOT
from tests.test_tokenizer import LETTERS, byte_bpe, with_template, wrapped


def a_frame(recorded: Trace, **chosen: Any) -> Any:
    tokens_lab.declare()
    made = settings.Settings()
    for name, value in chosen.items():
        assert made.set(name, value)
    return SimpleNamespace(settings=made, trace=recorded, t=Text("en", "tokens"), lang="en")


def now(typed: str, chat: bool) -> tokens_lab.Chosen:
    return tokens_lab.Chosen(typed, chat, -1, 0, 0)


def loaded_with(tokenizer: Any, loaded: Any) -> Any:
    return SimpleNamespace(tokenizer=tokenizer, spec=loaded.spec)


def test_the_browser_gets_the_whole_tokenizer_once_and_little_else(loaded: Any, recorded: Trace) -> None:
    table = bpe_table(loaded.tokenizer)
    assert table is not None
    sent = tokens_lab.table_data(table)
    pairs = sent["values"].reshape(-1, sent["meta"]["width"])
    assert [list(table.merges[3 * i : 3 * i + 2]) for i in range(table.n_merges)] == pairs.tolist()
    assert list(table.merges[2::3]) == [sent["meta"]["first_id"] + rank for rank in range(table.n_merges)]
    assert sent["values"].nbytes + len(json.dumps(sent["meta"])) < 220_000
    data, _ = tokens_lab.lab_data(a_frame(recorded), loaded, now("What is gravity?", True))
    assert data["given"] is None
    assert data["table"] == sent["meta"]["key"]
    assert len(json.dumps(data)) < 20_000


def test_a_table_that_does_not_number_its_results_in_order_sends_them() -> None:
    table = bpe_table(wrapped(byte_bpe([("b", "c"), ("a", "bc"), ("b", "b")], whole=("zz",))))
    assert table is not None
    table.merges[2] += 7  # as if another token stood between
    sent = tokens_lab.table_data(table)
    assert sent["meta"]["width"] == 3
    assert sent["values"].tolist() == list(table.merges)


@pytest.mark.parametrize(("text", "chat"), [("What is gravity?", True), ("今日は", False)])
def test_the_parts_of_the_template_are_the_runs_own(
    loaded: Any, recorded: Trace, text: str, chat: bool
) -> None:
    data, prompt = tokens_lab.lab_data(a_frame(recorded), loaded, now(text, chat))
    assert prompt == encode_prompt(loaded.tokenizer, text, chat=chat, system=None)
    whole = "".join(text if part["role"] == "user" else part["text"] for part in data["parts"])
    assert whole == encode_prompt(loaded.tokenizer, text, chat=True, system=None).text
    assert default_system(loaded.tokenizer) in whole


def test_an_edited_system_prompt_is_shown_as_the_learners(loaded: Any, recorded: Trace) -> None:
    data, _ = tokens_lab.lab_data(a_frame(recorded, system="Be brief."), loaded, now("Hi", True))
    assert [part["text"] for part in data["parts"] if part["role"] == "system"] == ["Be brief."]


def test_what_the_browser_knows_better_is_not_sent_again(loaded: Any, recorded: Trace) -> None:
    first, later = now("Hi", True), tokens_lab.Chosen("Hi there", False, 1, 2, 9)
    before, _ = tokens_lab.lab_data(a_frame(recorded), loaded, first, first)
    after, prompt = tokens_lab.lab_data(a_frame(recorded), loaded, later, first)
    assert after == before
    assert prompt == encode_prompt(loaded.tokenizer, "Hi there", chat=False, system=None)


def test_before_the_model_is_loaded_the_recorded_tokens_are_shown(recorded: Trace) -> None:
    data, prompt = tokens_lab.lab_data(a_frame(recorded), None, now(recorded.prompt, recorded.chat))
    assert prompt is None
    assert [token[0] for token in data["given"]["tokens"]] == [token.id for token in recorded.prompt_tokens]
    assert data["given"]["n_yours"] == recorded.n_prompt - sum(recorded.from_template)
    assert data["given"]["words"] is None
    other, _ = tokens_lab.lab_data(a_frame(recorded), None, now("something else", recorded.chat))
    assert other["given"] is None


def test_a_tokenizer_that_is_no_table_is_run_by_python(loaded: Any, recorded: Trace) -> None:
    backend = byte_bpe(LETTERS)
    backend.normalizer = normalizers.NFC()
    model = loaded_with(wrapped(backend), loaded)
    data, prompt = tokens_lab.lab_data(a_frame(recorded), model, now("lower aaa", True))
    assert prompt is not None
    assert data["table"] is None
    assert data["parts"] is None, "this tokenizer has no chat template"
    assert data["chat"] is False
    ids = [token[0] for token in data["given"]["tokens"]]
    assert ids == [token.id for token in encode(model.tokenizer, "lower aaa")]
    assert [i for word in data["given"]["words"] for i in word["ids"]] == ids
    long, _ = tokens_lab.lab_data(a_frame(recorded), model, now("lo " * 5_000, False))
    assert len(long["given"]["tokens"]) == tokens_lab.MAX_GIVEN < long["given"]["n_tokens"]


def test_a_template_that_changes_the_text_is_run_by_python(loaded: Any, recorded: Trace) -> None:
    trims = with_template(loaded.tokenizer, "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}")
    data, prompt = tokens_lab.lab_data(a_frame(recorded), loaded_with(trims, loaded), now(" Hi ", True))
    assert prompt is not None
    assert data["given"]["n_tokens"] == len(prompt.tokens)
    refuses = with_template(
        loaded.tokenizer,
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}",
    )
    model = loaded_with(refuses, loaded)
    data, _ = tokens_lab.lab_data(a_frame(recorded, system="Be brief."), model, now("Hi", True))
    assert [part["role"] for part in data["parts"] if part["text"] or part["role"] == "user"] == ["user"]


def test_a_row_and_its_neighbours(loaded: Any) -> None:
    token = encode(loaded.tokenizer, " gravity")[0]
    sent = tokens_lab.row_data(loaded, token)
    np.testing.assert_array_equal(sent["values"], embedding_row(loaded, token.id))
    near = nearest_rows(loaded, token.id)
    assert [each[0] for each in sent["meta"]["near"]] == [each.token_id for each in near]
    tokens = make_tokens(loaded.tokenizer, [each.token_id for each in near])
    assert [bytes.fromhex(each[1]) for each in sent["meta"]["near"]] == [other.bytes for other in tokens]


def test_the_token_to_look_at_first(tokenizer: Any) -> None:
    prompt = encode_prompt(tokenizer, "What is gravity?", chat=True, system=None)
    assert prompt.tokens[tokens_lab.selected(prompt, -1)].text == " gravity"
    assert tokens_lab.selected(prompt, 3) == 3
    assert prompt.tokens[tokens_lab.selected(prompt, 10_000)].text == " gravity"
    assert tokens_lab.selected(encode_prompt(tokenizer, "", chat=True, system=None), -1) == 0


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, loaded: Any, scheduler: Any) -> Engine:
    engine = Engine()
    engine.loaded, engine.scheduler, engine.status = loaded, scheduler, Status("ready", 1.0)
    monkeypatch.setattr(cache, "engine", lambda: engine)
    return engine


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        {},
        {"typed": 5, "chat": "yes", "token": "x", "merge": None, "seq": []},
        {"typed": "a" * 100_001, "chat": True, "token": -7, "merge": -1, "seq": 3},
        {"typed": "a", "chat": 1, "token": 10**12, "merge": 10**12},
    ],
)
def test_what_a_browser_sends_is_not_trusted(
    value: object, monkeypatch: pytest.MonkeyPatch, recorded: Trace
) -> None:
    tokens_lab.declare()
    made = settings.Settings()
    monkeypatch.setattr(settings, "current", lambda: made)
    monkeypatch.setattr(settings, "write_url", lambda written: None)
    monkeypatch.setattr(st, "session_state", {tokens_lab.KEY: {"lab": value}})
    tokens_lab._commit()
    assert made.get("text") in (None, "a")
    assert made.get("token") == -1
    assert made.get("merge") == 0
    assert isinstance(made.get("chat"), bool)


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_the_questions_answers_are_the_tokenizers(lang: str, ready: Engine, tokenizer: Any) -> None:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["lang"] = lang
    app.switch_page("pages/1_tokens.py").run()
    assert not app.exception
    n = len(encode(tokenizer, "重力とは何ですか？"))
    radio = app.radio[0]
    assert str(n) in radio.options[-1]
    radio.set_value(len(radio.options) - 1)
    app.run()
    said = " ".join(text.value for text in app.markdown)
    assert Text(lang, "tokens")("predict.right") in said
    assert f"{n / 4:.1f}" in said
    assert all(str(encode(tokenizer, text)[0].id) in said for text in ("gravity", " gravity"))
    assert "{" not in said.replace("{}", "")


def test_examples_have_labels_and_surprise(tokenizer: Any) -> None:
    """Each shows something that a newcomer does not expect; if a tokenizer makes one dull, choose another."""
    texts = dict(tokens_lab.EXAMPLES)
    for lang in ("en", "ja"):
        assert set(Text(lang, "tokens").group("examples")) == set(texts)
    n = {name: len(encode(tokenizer, text)) for name, text in texts.items()}
    assert n["word"] > 1
    assert n["number"] == len(texts["number"])
    assert n["japanese"] > len(texts["japanese"])
    assert n["emoji"] > 2 * len(texts["emoji"])
    assert encode(tokenizer, texts["spaces"])[-1].text.strip() == ""
    assert encode(tokenizer, texts["special"])[-1].is_special
