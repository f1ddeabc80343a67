"""The streaming page: what it sends to the browser is the run, what it says is computed, settings survive in
the link."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from core import latency, streaming
from core.trace import Trace
from pages.views import streaming_data
from pages.views.cache import Engine
from pages.views.settings import Settings
from pages.views.text import seconds
from tests.conftest import ROOT

PLAIN = {"send": "token", "n": 4, "ms": 250, "draw": "asis", "cps": 40, "delay": 0, "jitter": 0}


def open_page(**query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    return app.switch_page("pages/8_streaming.py").run()


def said(app: AppTest) -> str:
    parts = [*app.markdown, *app.caption, *app.get("html")]
    return "\n".join(str(getattr(part, "value", None) or part.proto.body) for part in parts).replace(
        "\u00a0", " "
    )


class FakeFrame:
    """What component_data needs of a frame."""

    lang = "en"

    def __init__(self, **values: Any) -> None:
        streaming_data.declare()
        self.settings = Settings(values)

    class t:
        @staticmethod
        def group(_key: str) -> dict[str, str]:
            return {}


def test_the_browser_gets_the_run(recorded: Trace) -> None:
    shown = streaming_data.stream("run", recorded)
    data = streaming_data.component_data(FakeFrame(), "run", shown)  # type: ignore[arg-type]
    tokens = data["stream"]["tokens"]
    assert [t["t"] for t in tokens] == [step.ended_s for step in recorded.choice_steps]
    spoken = bytes.fromhex("".join(t["hex"] for t in tokens if not t["special"]))
    assert spoken.decode() == recorded.answer_text
    assert data["controls"] == PLAIN
    assert len(data["dice"]) == len(tokens)
    assert all(0 <= d < 1 for d in data["dice"])
    json.dumps(data)  # everything is plain


def test_the_dice_of_the_browser_are_those_of_core(recorded: Trace) -> None:
    sent = streaming.messages_every_tokens(streaming.emissions_of(recorded))
    arrived = streaming.deliver(sent, 0.0, 1.0, streaming_data.JITTER_SEED)
    dice, previous = streaming_data.dice(len(sent)), 0.0
    for message, number in zip(arrived, dice, strict=True):
        previous = max(previous, message.sent_s + number)
        assert message.arrived_s == pytest.approx(previous)


@pytest.mark.parametrize("name", ["emoji", "japanese"])
def test_recorded_streams_mark_their_halves(name: str, recorded: Trace) -> None:
    shown = streaming_data.stream(name, recorded)
    data = streaming_data.component_data(FakeFrame(), name, shown)  # type: ignore[arg-type]
    assert sum(t["half"] for t in data["stream"]["tokens"]) == sum(streaming.waiting_tokens(shown.emissions))


def test_what_the_component_says_is_checked() -> None:
    settings = FakeFrame().settings
    settings.set("st_n", 3)
    for bad in ({"n": 99}, {"n": "x"}, {"send": "pigeon"}, {"delay": -1}, {"ms": None}, {"other": 1}):
        for key, value in bad.items():
            name = {"send": "st_send"}.get(key) or streaming_data.DIALS.get(key, ("",))[0]
            if name:
                assert settings.set(name, value) is False
    assert settings.get("st_n") == 3
    assert streaming_data.controls(settings) == {**PLAIN, "n": 3}


def test_the_last_character_does_not_care_how_the_answer_is_shown(recorded: Trace) -> None:
    shown = streaming_data.stream("run", recorded)
    for settings in (PLAIN, {**PLAIN, "send": "count", "n": 8}, {**PLAIN, "send": "time", "ms": 500}):
        ways = {way: (first, last) for way, first, last in streaming_data.three_ways(shown, settings)}
        assert ways["asis"][1] == ways["end"][1] == shown.emissions[-1].time_s
        assert ways["end"][0] == ways["end"][1]
        assert ways["asis"][0] < ways["end"][0]
        assert ways["smooth"][1] >= ways["asis"][1]


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_the_sentences_are_computed_from_the_run(lang: str, no_model: Engine, recorded: Trace) -> None:
    app = open_page(lang=lang)
    assert not app.exception
    text = said(app)
    times = [step.ended_s for step in recorded.choice_steps]
    itl = latency.mean(latency.gaps_s(times))
    sent = streaming.messages_every_tokens(streaming.emissions_of(recorded), 8)
    gap = latency.mean(latency.gaps_s([m.sent_s for m in sent]))
    for value in (times[0], times[-1], times[-1] - times[0], itl, gap):
        assert seconds(value).replace(".", r"\.") in text or seconds(value) in text
    assert not re.findall(r"\{[a-z_]+\}", text)


@pytest.mark.parametrize("lang", ["en", "ja"])
@pytest.mark.parametrize("stream", ["emoji", "japanese"])
def test_other_streams_open_and_say_how_many_halves_there_are(
    stream: str, lang: str, no_model: Engine
) -> None:
    app = open_page(lang=lang, stream=stream)
    assert not app.exception
    assert not app.error
    shown = streaming_data.stream(stream, None)  # type: ignore[arg-type]
    halves = sum(streaming.waiting_tokens(shown.emissions))
    assert str(halves) in said(app)
    assert shown.machine.split("(")[0].strip() in said(app).replace("\\", "")


def test_settings_come_from_the_link_and_bad_ones_are_refused(no_model: Engine) -> None:
    app = open_page(st_send="time", st_ms="400", st_draw="smooth", st_cps="20", st_delay="100")
    assert not app.exception
    assert not app.warning
    table = "".join(part.proto.body for part in app.get("html"))
    assert "simulated" in table
    app = open_page(st_send="pigeon", st_n="0", st_cps="nan", stream="../../etc/passwd")
    assert not app.exception
    assert len(app.warning) == 1


def test_the_prediction_is_right_about_the_same_moment(no_model: Engine) -> None:
    app = open_page(lang="en")
    radio = app.radio[0]
    assert radio.options[1] == "At the same moment"
    radio.set_value(1).run()
    assert "Right." in said(app)
