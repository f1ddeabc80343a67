"""The latency page: figures recomputed from the run, the card in the link, the tools' table, and a server
measured."""

from __future__ import annotations

import html
import json
import re
import time
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from core import latency
from core.errors import EndpointTimeoutError, EndpointUrlError
from core.openai_stream import REASONS
from core.prompt_effect import RecordedEffect, slower_by
from core.trace import Trace
from pages.views import cache, endpoint_box, latency_data
from pages.views.cache import Engine, Status
from pages.views.text import Text, seconds
from tests.conftest import ROOT
from tests.openai_server import DONE, event, raw_handler, serve, text_event

KEY = "sk-page-secret-42"


@pytest.fixture
def with_model(monkeypatch: pytest.MonkeyPatch, loaded: Any, scheduler: Any) -> Engine:
    engine = Engine()
    engine.loaded, engine.scheduler, engine.status = loaded, scheduler, Status("ready", 1.0)
    monkeypatch.setattr(cache, "engine", lambda: engine)
    return engine


def open_page(**query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    return app.switch_page("pages/7_latency.py").run()


def tables_of(app: AppTest) -> str:
    return "\n".join(part.proto.body for part in app.get("html") if "<table>" in part.proto.body)


def said(app: AppTest) -> str:
    parts = [*app.markdown, *app.error, *app.warning]
    plain = [html.unescape(part.proto.body) for part in app.get("html") if "<table>" not in part.proto.body]
    return "\n".join([*(part.value for part in parts), *plain]).replace("\\", "").replace("\u00a0", " ")


# ---- the run and the card ----


def test_the_line_is_the_run(recorded: Trace, no_model: Engine) -> None:
    frame = FakeFrame(net=120)
    data = latency_data.run_line(frame, recorded)
    assert data["tokens"] == [step.ended_s for step in recorded.choice_steps]
    assert data["admitted"] == recorded.admitted_s
    assert [label[0] for label in data["labels"]] == [token.text for token in recorded.answer_tokens]
    assert data["network_ms"] == 120
    json.dumps(data)


class FakeFrame:
    """What the data functions need of a frame."""

    lang = "en"

    def __init__(self, **values: Any) -> None:
        from pages.views.settings import Settings

        latency_data.declare()
        self.settings = Settings(values)
        self.t = Text("en", "latency")
        self.md = self.t.md


@pytest.mark.parametrize(
    ("raw", "good"),
    [
        ("0,0.5,0.6,0.72,0.81", True), ("0", True), ("0.2,0.5", True), ("0,0.5,0.5", True),
        ("", False), ("0,0.5,0.4", False), ("0.6,0.5", False), ("-1,0.5", False), ("0,nan", False), ("0,inf", False),
        ("0,1001", False), ("a,b", False), (",".join(["0"] * 14), False), ("0;0.5", False), ("0,0x5", False),
    ],
)  # fmt: skip
def test_cards_of_a_link(raw: str, good: bool) -> None:
    assert latency_data.is_card(raw) is good


def test_a_card_survives_its_link() -> None:
    raw = latency_data.write_card(0.0, [0.5, 0.123, 1.0])
    assert raw == "0,0.5,0.123,1"
    events = latency_data.read_card(latency_data.CARD)
    assert latency_data.write_card(events.admitted_s, list(events.token_s)) == latency_data.CARD
    assert latency.summarize(events).mean_itl_s == pytest.approx(0.1033, abs=5e-5)


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_the_sentences_are_computed_from_the_run(lang: str, no_model: Engine, recorded: Trace) -> None:
    app = open_page(lang=lang)
    assert not app.exception
    figures = latency.summarize(latency.events_of(recorded))
    for value in (
        seconds(figures.ttft_s),
        f"{figures.ttft_s / figures.median_itl_s:.1f}",
        seconds(figures.e2e_s),
    ):
        assert value in said(app)
    left = re.sub(r"<style>.*?</style>", "", said(app) + tables_of(app), flags=re.DOTALL)
    assert not re.findall(r"\{[a-z_]+\}", left)


def test_the_prediction_about_the_network(no_model: Engine, recorded: Trace) -> None:
    app = open_page(lang="en")
    app.radio[0].set_value(2).run()
    figures = latency.summarize(latency.events_of(recorded), network_s=0.2)
    assert "Right." in said(app)
    assert seconds(figures.ttft_s) in said(app)


# ---- the table of tools ----


@pytest.mark.parametrize(("query", "bundle", "two"), [({}, 1, False), ({"bundle": "3", "two": "1"}, 3, True)])
def test_every_row_shows_what_core_computes(
    query: dict[str, str], bundle: int, two: bool, no_model: Engine, recorded: Trace
) -> None:
    app = open_page(**query)
    seen = latency_data.requests(latency.events_of(recorded), bundle, two, 0.0)
    found = re.findall(r"<tr><th [^>]*scope=row><a .*?</tr>", tables_of(app))
    rows = latency.definitions()
    assert len(found) == len(rows)
    for line, row in zip(found, rows, strict=True):
        assert html.escape(row.figure) in line
        assert html.escape(row.tool) in line
        assert row.source in line
        assert f"<b>{latency_data.milliseconds(row.report(seen))}</b>" in line
    low, high = latency_data.range_of(seen)
    assert latency_data.milliseconds(low) in said(app)
    assert latency_data.milliseconds(high) in said(app)


def test_a_run_of_one_token_has_rows_without_values(recorded: Trace) -> None:
    events = latency.first_tokens(latency.events_of(recorded), 1)
    seen = latency_data.requests(events, 1, True, 0.0)
    assert latency_data.range_of(seen) is not None  # E2E / n exists, a gap does not
    assert [row.report(seen) for row in latency_data.definitions() if row.function == "after_first"] == [
        None
    ] * 3


# ---- the long prompt ----


def test_the_long_prompt_is_measured_on_a_button(with_model: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    import core.prompt_effect as effect

    monkeypatch.setattr(effect, "LENGTHS", (8, 64))
    real = effect.measure_prompt_effect
    monkeypatch.setattr(effect, "measure_prompt_effect", lambda: real((8, 64), 3))
    app = open_page(lang="en")
    next(button for button in app.button if button.key == "long_start").click().run()
    assert not app.exception
    job = app.session_state["otat_prompt_effect"]
    job.wait(120)
    app.run()
    rows = effect.effects(job.results, with_model.loaded.spec.kv_bytes_per_token)
    prefill, token = effect.slower_by(rows)
    assert f"{prefill:.1f}×" in said(app)
    assert f"{token:.2f}×" in said(app)
    assert "64 tokens" in tables_of(app)


def test_before_that_a_recorded_one_is_shown_and_said_to_be_so(no_model: Engine) -> None:
    made = RecordedEffect.load(cache.RUNS / "prompt_effect.json")
    app = open_page(lang="en")
    prefill, token = slower_by(made.rows)
    assert f"{prefill:.1f}×" in said(app)
    assert f"{token:.2f}×" in said(app)
    assert made.machine in said(app)


def test_a_second_measurement_is_refused_politely(with_model: Engine) -> None:
    from core.prompt_effect import measure_prompt_effect

    job = with_model.scheduler.run_job("prompt_effect", measure_prompt_effect((400,), 40))
    app = open_page(lang="en")
    next(button for button in app.button if button.key == "long_start").click().run()
    job.cancel()
    assert [error.value for error in app.error] == [Text("en", "latency")("error.busy")]
    job.wait(60)


# ---- a server of one's own ----


def fill(app: AppTest, url: str, **more: Any) -> AppTest:
    app.text_input(key="endpoint_url").set_value(url)
    app.text_input(key="endpoint_model").set_value(more.get("model", "m"))
    app.text_input(key="endpoint_key").set_value(more.get("key", KEY))
    app.number_input(key="endpoint_n").set_value(more.get("n", 1))
    press = next(button for button in app.button if "endpoint_form" in (button.proto.form_id or ""))
    return press.click().run()


def finish(app: AppTest) -> AppTest:
    measurement = app.session_state["otat_endpoint"]
    assert measurement.wait(20)
    time.sleep(0.05)
    return app.run()


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_a_server_is_measured_and_the_key_is_nowhere(lang: str, no_model: Engine) -> None:
    asked: list[dict[str, Any]] = []
    usage = event({"choices": [], "usage": {"completion_tokens": 6, "prompt_tokens": 9}})
    pieces = [0.05, text_event("Hel"), 0.1, text_event("lo <b>"), 0.1, text_event("!"), usage, DONE]
    with serve(raw_handler(pieces, seen=asked)) as url:
        app = finish(fill(open_page(lang=lang), url, n=2))
    assert not app.exception
    assert not app.error
    assert len(asked) == 2
    assert asked[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    seen = app.session_state["otat_endpoint"].observations
    for one in seen:
        figures = latency.summarize(one.request().events)
        assert seconds(figures.ttft_s) in tables_of(app)
        assert seconds(figures.mean_itl_s) in tables_of(app)
        assert seconds((figures.e2e_s - figures.ttft_s) / 5) in tables_of(app)  # TPOT over 6 tokens
    everything = said(app) + tables_of(app) + json.dumps(dict(app.query_params))
    assert KEY not in everything
    assert KEY not in str(app.session_state["otat_settings"])
    assert url not in json.dumps(dict(app.query_params))


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_faults_of_a_server_are_sentences_in_both_languages(lang: str, no_model: Engine) -> None:
    text = Text(lang, "latency")
    app = fill(open_page(lang=lang), "ftp://x/v1")
    assert text("reason.scheme") in app.error[0].value.replace("\\", "")
    app = fill(open_page(lang=lang), "http://127.0.0.1:9/v1", model=" ")
    assert text("server.model") in app.error[0].value
    with serve(raw_handler([b'{"error": {"message": "Bad key ' + KEY.encode() + b'"}}'], status=401)) as url:
        app = finish(fill(open_page(lang=lang), url, n=3))
    assert len(app.error) == 1
    assert "401" in app.error[0].value
    assert KEY not in app.error[0].value


def test_every_reason_has_a_translation() -> None:
    for lang in ("en", "ja"):
        text = Text(lang, "latency")
        for why, english in REASONS.items():
            found = text.find(f"reason.{why}")
            assert isinstance(found, str), why
            assert found.count("{target}") == english.count("{target}")
            if lang == "en":
                assert found == english


def test_errors_are_explained_with_their_reason_translated() -> None:
    class Frame:
        t = Text("ja", "latency")

        def explain(self, error: Any) -> str:
            return self.t.md(f"error.{error.code}", **error.values)

    for error in (
        EndpointUrlError(url="h", why="redirect", target="http://x", reason="…"),
        EndpointTimeoutError(seconds="3", why="answer", target="", reason="…"),
    ):
        sentence = endpoint_box.explain(Frame(), error)  # type: ignore[arg-type]
        assert "…" not in sentence
        assert "{" not in sentence


def test_an_owner_can_turn_it_off(no_model: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTAT_ALLOW_ENDPOINT", "0")
    app = open_page(lang="en")
    assert not app.exception
    assert Text("en", "latency")("error.endpoint_off") in said(app)
    assert not [widget for widget in app.text_input if widget.key == "endpoint_url"]


def test_a_room_has_it_off(no_model: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners could make the host ask addresses of its own network."""
    monkeypatch.delenv("OTAT_ALLOW_ENDPOINT", raising=False)
    monkeypatch.setattr(endpoint_box.st, "get_option", lambda name: {"server.address": "0.0.0.0"}.get(name))
    assert endpoint_box._is_served_to_others()
    monkeypatch.setattr(endpoint_box.st, "get_option", lambda name: {"server.address": "127.0.0.1"}.get(name))
    assert not endpoint_box._is_served_to_others()


@pytest.mark.parametrize("page", ["7_latency", "8_streaming"])
@pytest.mark.parametrize("lang", ["en", "ja"])
def test_a_run_of_one_token_can_be_looked_at(
    page: str, lang: str, no_model: Engine, recorded: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "recorded_trace", lambda name=None: recorded.until(1))
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["lang"] = lang
    app.switch_page(f"pages/{page}.py").run()
    assert not app.exception
    assert not app.error
