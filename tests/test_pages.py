"""Every page, found by glob, in both languages: it opens, cold or warm, with and without the model.

`AppTest` runs a page's script in this process and shows what it would draw. It runs no JavaScript: what the browser
does is tested in tests/browser.
"""

from __future__ import annotations

import gc
import re
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from core.errors import EmptyPromptError, ExplainerError, ModelNotFoundError, QueueFullError
from pages.views import ask, cache
from pages.views.cache import Engine, Status
from tests.conftest import ROOT

PAGES = [None, *sorted((ROOT / "pages").glob("[0-9]*.py"))]
IN_ORDER = sorted(filter(None, PAGES), key=lambda path: int(path.stem.split("_")[0]))
LANGUAGES = ("en", "ja")


def page_id(path: Path | None) -> str:
    return path.stem if path else "home"


def name_of(path: Path | None) -> str:
    return re.sub(r"^\d+_", "", path.stem) if path else "home"


def text_of(path: Path | None, lang: str) -> dict[str, Any]:
    return tomllib.loads(
        (ROOT / "assets" / "text" / lang / f"{name_of(path)}.toml").read_text(encoding="utf-8")
    )


def open_page(path: Path | None, **query: str) -> AppTest:
    """The page as a browser gets that opens its address first: home's script has not run."""
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    if path:
        app.switch_page(f"pages/{path.name}")
    return app.run()


@pytest.fixture
def with_model(monkeypatch: pytest.MonkeyPatch, loaded: Any, scheduler: Any) -> Engine:
    """An engine that is ready, with the tests' own model."""
    engine = Engine()
    engine.loaded, engine.scheduler, engine.status = loaded, scheduler, Status("ready", 1.0)
    monkeypatch.setattr(cache, "engine", lambda: engine)
    return engine


def said(app: AppTest) -> str:
    parts = [*app.markdown, *app.caption, *app.error, *app.warning, *app.title, *app.get("html")]
    return "\n".join(str(getattr(part, "value", None) or part.proto.body) for part in parts)


def assert_sound(app: AppTest) -> None:
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    left = re.findall(r"\{[a-z_]+\}", said(app))
    assert not left, f"placeholders that nobody filled: {left}"


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_a_cold_deep_link_opens(path: Path | None, lang: str, no_model: Engine) -> None:
    app = open_page(path, lang=lang)
    assert_sound(app)
    assert [title.value for title in app.title] == [text_of(path, lang)["question"].strip()]


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_it_opens_with_the_model(path: Path | None, with_model: Engine) -> None:
    app = open_page(path)
    assert_sound(app)
    app.run()
    assert_sound(app)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_page_links_to_every_other(path: Path | None, lang: str, no_model: Engine) -> None:
    app = open_page(path, lang=lang, temperature="0.7")
    links = {link.proto.label: link.proto.query_string for link in app.get("page_link")}
    for other in PAGES:
        label = text_of(other, lang)["nav"].strip()
        assert label in links
        assert "temperature=0.7" in links[label]


@pytest.mark.parametrize(("path", "following"), list(pairwise(IN_ORDER)), ids=page_id)
def test_every_page_ends_with_the_next_question(path: Path, following: Path, no_model: Engine) -> None:
    last = open_page(path, lang="ja", seed="5").get("page_link")[-1].proto
    assert last.label == text_of(following, "ja")["question"]
    assert "seed=5" in last.query_string


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_bad_values_in_a_link_become_one_sentence(path: Path | None, no_model: Engine) -> None:
    app = open_page(path, temperature="hot", top_p="-1", lang="xx", step="1e9", nothing="else")
    assert not app.exception
    assert len(app.warning) == 1
    assert "Temperature" in app.warning[0].value


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_settings_survive_a_walk_through_the_pages(path: Path | None, no_model: Engine) -> None:
    app = open_page(None, temperature="0.7", seed="5", lang="ja")
    app.switch_page(f"pages/{path.name}" if path else "app.py").run()
    app.switch_page("app.py").run()
    query = dict(app.query_params)
    assert query.items() >= {"temperature": "0.7", "seed": "5", "lang": "ja"}.items()


WIDGETS = ("slider", "number_input", "text_input", "text_area", "checkbox", "selectbox", "button_group", "radio")


def written_back(app: AppTest) -> list[str]:
    """The widgets whose value this run sends to the browser, where it replaces what the learner did since."""
    widgets = [widget.proto for kind in WIDGETS for widget in app.get(kind)]
    assert widgets
    return [widget.label for widget in widgets if widget.set_value]


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_no_run_of_a_page_undoes_what_a_quick_hand_did_meanwhile(path: Path | None, with_model: Engine) -> None:
    app = open_page(path, temperature="0.3", lang="ja").run()
    assert written_back(app) == []
    for key in [widget.key for widget in app.slider]:
        slider = app.slider(key=key)
        app = slider.set_value(slider.max if slider.value != slider.max else slider.min).run()
        assert written_back(app) == [], key


def test_a_run_does_not_undo_what_is_typed_after_it(with_model: Engine) -> None:
    app = open_page(None, max_tokens="1")
    app.text_input(key="ask_home_prompt").set_value("Why is the sky blue?")
    app = app.button(key="ask_run").click().run()
    assert_sound(app)
    assert app.query_params["prompt"] == "Why is the sky blue?"
    assert written_back(app) == []


def test_a_prompt_of_several_lines_can_become_one_of_one_line(with_model: Engine) -> None:
    app = open_page(None, max_tokens="1", prompt="Two\nlines")
    app.text_area(key="ask_home_prompt").set_value("One line")
    app = app.button(key="ask_run").click().run()
    assert_sound(app)
    assert app.text_input(key="ask_home_prompt").value == "One line"


@pytest.mark.parametrize("locale", ["ja", "ja-JP", "en-GB", "de", None])
def test_the_browser_chooses_the_language(
    locale: str | None, monkeypatch: pytest.MonkeyPatch, no_model: Engine
) -> None:
    from streamlit.runtime.context import ContextProxy

    monkeypatch.setattr(ContextProxy, "locale", property(lambda self: locale))
    expected = "ja" if locale and locale.startswith("ja") else "en"
    assert open_page(None).title[0].value == text_of(None, expected)["question"]
    assert open_page(None, lang="en").title[0].value == text_of(None, "en")["question"]


def test_switching_the_language_keeps_every_value(no_model: Engine) -> None:
    app = open_page(None, temperature="0.7", prompt="Hello")
    app.button_group(key="otat_lang_home").set_value("ja").run()
    assert app.title[0].value == text_of(None, "ja")["question"]
    assert app.text_input(key="ask_home_prompt").value == "Hello"
    assert app.slider(key="ctl_home_temperature").value == 0.7
    assert app.query_params["lang"] == "ja"


def test_a_control_writes_the_address(no_model: Engine) -> None:
    app = open_page(None)
    app.slider(key="ctl_home_temperature").set_value(0.9).run()
    assert app.query_params["temperature"] == "0.9"
    app.slider(key="ctl_home_temperature").set_value(0.0).run()
    assert "temperature" not in app.query_params


# ---- running ------------------------------------------------------------------------------------------------------


def press_run(app: AppTest, prompt: str) -> AppTest:
    app.text_input(key="ask_home_prompt").set_value(prompt)
    app.button(key="ask_run").click()
    return app.run()


def finish(app: AppTest) -> AppTest:
    app.session_state["otat_run"].result(timeout=120)
    return app.run()


def test_a_run_is_made_kept_and_replayed_by_its_link(with_model: Engine) -> None:
    app = open_page(None, max_tokens="6", temperature="0.9", seed="4")
    finish(press_run(app, "Name a colour."))
    assert_sound(app)
    first = app.session_state["otat_run"].result()
    assert first.prompt == "Name a colour."
    app.switch_page(f"pages/{PAGES[1].name}" if len(PAGES) > 1 else "app.py").run()
    assert app.session_state["otat_run"].result() is first, "changing the page keeps the run"

    query = dict(app.query_params)
    other = open_page(None, **query)
    second = other.session_state["otat_run"].result(timeout=120)
    assert [token.id for token in second.tokens] == [token.id for token in first.tokens]


def test_run_waits_for_the_model_and_then_starts(no_model: Engine, loaded: Any, scheduler: Any) -> None:
    app = press_run(open_page(None, max_tokens="3"), "Hello")
    assert "otat_run" not in app.session_state
    assert not app.error
    no_model.loaded, no_model.scheduler, no_model.status = loaded, scheduler, Status("ready", 1.0)
    app.run()
    assert app.session_state["otat_run"].result(timeout=120).n_generated == 3


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t"])
def test_an_empty_prompt_is_a_sentence(prompt: str, with_model: Engine) -> None:
    app = press_run(open_page(None), prompt)
    assert [error.value for error in app.error] == [EmptyPromptError.template]


def test_a_prompt_of_a_hundred_thousand_characters_is_a_sentence_and_stays(with_model: Engine) -> None:
    text = "gravity " * 12_500
    app = press_run(open_page(None), text)
    assert len(app.error) == 1
    assert "Shorten it by" in app.error[0].value
    assert app.text_input(key="ask_home_prompt").value == text
    assert len(str(dict(app.query_params))) < 10_000


@pytest.mark.parametrize(
    "prompt",
    [
        "<script>alert(1)</script>",
        "مرحبا \u202e بالعالم",
        "a\x00b",
        "👩‍👩‍👧‍👦",
        "{prompt} {0} %s",
        "$x$ **bold** [a](javascript:alert(1))",
    ],
    ids=["script", "rtl", "nul", "emoji", "braces", "markdown"],
)
def test_odd_prompts_run_and_are_shown_as_they_are(prompt: str, with_model: Engine) -> None:
    app = finish(press_run(open_page(None, max_tokens="2"), prompt))
    assert not app.exception
    assert not app.error
    html = "\n".join(part.proto.body for part in app.get("html"))
    assert "<script>alert" not in html


def test_a_failed_start_says_what_to_do(no_model: Engine) -> None:
    no_model.status = Status("failed", 0.0, ModelNotFoundError(source="x/y", remedy="Do this."))
    app = open_page(None)
    assert not app.exception
    assert "x/y" in app.error[0].value.replace("\\", "")
    assert "Do this" in app.error[0].value


@pytest.mark.parametrize("lang", LANGUAGES)
def test_an_explained_error_is_one_translated_sentence(
    lang: str, no_model: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "state_line", raising(QueueFullError(n_waiting=64)))
    app = open_page(None, lang=lang)
    common = tomllib.loads((ROOT / "assets" / "text" / lang / "common.toml").read_text(encoding="utf-8"))
    assert not app.exception
    assert [error.value for error in app.error] == [common["error"]["queue_full"].format(n_waiting=64)]


def test_an_unexpected_error_is_plain_and_its_details_are_logged(
    no_model: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ask, "state_line", raising(RuntimeError("secret detail")))
    app = open_page(None)
    assert not app.exception
    assert len(app.error) == 1
    assert "secret" not in app.error[0].value
    assert "secret detail" in caplog.text


def raising(error: Exception) -> Callable[[object], None]:
    def fail(frame: object) -> None:
        raise error

    return fail


# ---- the engine ---------------------------------------------------------------------------------------------------


def test_loading_ends_with_everything_frozen(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> None:
    """Streamlit collects garbage after each run of a script: the model must be out of the collector's sight."""
    import core.model

    monkeypatch.setattr(
        core.model, "load_model", lambda source, progress: (progress("ready", 1.0), loaded)[1]
    )
    before = gc.get_freeze_count()
    engine = Engine()
    engine.start()
    assert engine._thread is not None
    engine._thread.join(60)
    try:
        assert engine.status.ready
        assert engine.loaded is loaded
        assert gc.get_freeze_count() > before
        assert len(gc.get_objects()) < gc.get_freeze_count(), "most objects are frozen"
    finally:
        engine.scheduler.close()
        gc.unfreeze()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Engine:
    import core.model

    def load(source: object, progress: object) -> None:
        raise request.param

    monkeypatch.setattr(core.model, "load_model", load)
    engine = Engine()
    engine.start()
    engine._thread.join(60)
    return engine


@pytest.mark.parametrize(
    "broken", [ModelNotFoundError(source="a", remedy="b"), RuntimeError("?")], indirect=True
)
def test_loading_that_fails_is_told_and_can_be_tried_again(
    broken: Engine, monkeypatch: pytest.MonkeyPatch, loaded: Any
) -> None:
    import core.model

    assert broken.status.failed
    assert broken.loaded is None
    assert broken.status.error is None or isinstance(broken.status.error, ExplainerError)
    monkeypatch.setattr(core.model, "load_model", lambda source, progress: loaded)
    broken.start()
    broken._thread.join(60)
    assert broken.status.ready
    broken.scheduler.close()
    gc.unfreeze()


def test_a_model_that_could_not_be_loaded_is_told_until_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("/no/such/model")
    engine.start()
    assert engine._thread is not None
    engine._thread.join(60)
    assert engine.status.failed
    monkeypatch.setattr(cache, "engine", lambda: engine)
    app = open_page(None)
    for _ in range(3):
        app.run()
        assert "/no/such/model" in app.error[0].value
        assert engine.status.failed


def test_an_answer_does_not_outlive_the_place_of_the_right_one(no_model: Engine) -> None:
    """Options are sorted by a run's own figures: after another run the same place may hold another answer."""

    def script() -> None:
        import streamlit as st

        from pages.views.frame import Frame
        from pages.views.settings import Settings

        frame = Frame("prefill", "en", Settings())
        frame.predict("ratio", "How much?", ["1", "2", "4"], st.session_state.get("right", 1), "Because.")

    app = AppTest.from_function(script).run()
    app = app.radio[0].set_value(1).run()
    assert "Because." in said(app)
    assert app.run().radio[0].value == 1
    app.session_state["right"] = 0
    app = app.run()
    assert app.radio[0].value is None
    assert "Because." not in said(app)


@pytest.mark.parametrize(
    "query",
    [
        {"mem_model": "manual", "mem_shape": "3_2-32-8-128"},
        {"mem_model": "manual", "mem_shape": "３２-32-8-128"},
        {"mem_model": "manual", "mem_mla": "5_1-64"},
        {"mem_model": "custom", "mem_layers": "F5.5.2-a2", "mem_tp": "2"},
        {"mem_model": "custom", "mem_layers": "S0.0.0s5p2-a2", "mem_tp": "2"},
    ],
    ids=str,
)
def test_numbers_that_only_one_side_could_read_are_refused(query: dict[str, str], no_model: Engine) -> None:
    app = open_page(ROOT / "pages" / "6_kv_memory.py", **query)
    assert not app.exception
    assert len(app.warning) == 1


def test_a_config_with_half_a_character_in_its_name_does_no_harm(no_model: Engine) -> None:
    from pages.views import kv_memory_data
    from pages.views.settings import Settings

    mine = Settings()
    shape = '"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4'
    kv_memory_data.declare()
    kv_memory_data.take_config(mine, f'{{"model_type": "llama", {shape}, "_name_or_path": "a\\ud800b"}}')
    assert mine.query()["mem_name"] == "a?b"


def test_what_a_component_sends_cannot_break_a_page(caplog: pytest.LogCaptureFixture) -> None:
    from pages.views import components

    def callback() -> None:
        raise KeyError("step")

    components._guarded("kv_stage", callback)()
    assert "kv_stage" in caplog.text
