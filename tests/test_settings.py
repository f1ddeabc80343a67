"""The settings behind the URL: what is read, what is refused, what is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scheduler import Scheduler
from pages.views import settings as module
from pages.views.settings import Settings

MAX_PROMPT_TOKENS = Scheduler.__init__.__kwdefaults__["max_prompt_tokens"]


def pulled(**query: str) -> Settings:
    made = Settings()
    made.pull(query)
    return made


def test_defaults_need_no_url() -> None:
    assert Settings().query() == {}
    assert Settings().get("prompt") == module.DEFAULT_PROMPT


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("temperature", "0", 0.0),
        ("top_k", "40", 40),
        ("top_p", "0.9", 0.9),
        ("seed", "7", 7),
        ("chat", "0", False),
        ("chat", "false", False),
        ("projector", "1", True),
        ("lang", "ja", "ja"),
        ("prompt", "今日は", "今日は"),
        ("prompt", "", ""),
        ("step", "-1", -1),
    ],
)
def test_a_good_value_is_taken_from_the_url(name: str, raw: str, value: object) -> None:
    settings = pulled(**{name: raw})
    assert settings.get(name) == value
    assert settings.rejected == []


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("temperature", "warm"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("temperature", "-1"),
        ("temperature", "9"),
        ("temperature", "0.001"),
        ("top_k", "1.5"),
        ("top_k", "-3"),
        ("top_k", "9" * 400),
        ("top_p", "0"),
        ("top_p", "1.1"),
        ("seed", "-1"),
        ("seed", str(2**40)),
        ("max_tokens", "0"),
        ("max_tokens", "257"),
        ("chat", "maybe"),
        ("lang", "fr"),
        ("lang", "../en"),
        ("step", "<script>"),
    ],
)
def test_a_bad_value_becomes_the_default_and_is_named(name: str, raw: str) -> None:
    settings = pulled(**{name: raw})
    assert settings.get(name) == Settings().get(name)
    assert settings.rejected == [name]
    assert settings.query() == {}, "a value that cannot be used does not stay in the address"


def test_the_url_wins_over_the_session() -> None:
    settings = Settings()
    settings.set("temperature", 0.5)
    settings.pull({"temperature": "0.9"})
    assert settings.get("temperature") == 0.9


def test_what_the_url_leaves_out_stays() -> None:
    settings = Settings()
    settings.set("temperature", 0.5)
    settings.pull({"seed": "3"})
    assert (settings.get("temperature"), settings.get("seed")) == (0.5, 3)


def test_only_what_differs_is_written() -> None:
    settings = Settings()
    settings.set("temperature", 0.5)
    settings.set("chat", False)
    settings.set("top_k", 0)
    assert settings.query() == {"temperature": "0.5", "chat": "0"}
    settings.set("temperature", 0.0)
    assert settings.query() == {"chat": "0"}


@given(
    temperature=st.floats(0.01, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 200),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_copied_link_gives_the_same_settings(
    temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    """What sliders can set survives exactly: the same seed with another temperature would be another answer."""
    first = Settings()
    values = {"temperature": round(temperature, 2), "top_p": round(top_p, 3), "top_k": top_k, "seed": seed}
    for name, value in values.items():
        assert first.set(name, value)
    second = pulled(**first.query())
    assert second.rejected == []
    for name in ("temperature", "top_p", "top_k", "seed"):
        assert second.get(name) == first.get(name)


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=60), max_size=8))
def test_nothing_in_a_url_can_break_it(query: dict[str, str]) -> None:
    settings = Settings()
    settings.pull(query)
    for name in ("prompt", "temperature", "lang", "chat", "step"):
        settings.get(name)
    settings.query()


def test_a_setting_of_a_page_that_was_not_opened_yet_waits_for_it() -> None:
    settings = pulled(test_only_layer="12", test_only_bad="x")
    assert settings.query() == {"test_only_layer": "12", "test_only_bad": "x"}, "it stays in the address"
    module.declare("test_only_layer", 0, int, module.between(0, 29))
    module.declare("test_only_bad", 0, int)
    assert settings.get("test_only_layer") == 12
    assert settings.get("test_only_bad") == 0
    assert settings.rejected == ["test_only_bad"]


def test_foreign_parameters_do_not_fill_the_memory() -> None:
    settings = pulled(**{f"other_{i}": "x" for i in range(500)}, long="y" * 100_000)
    assert len(settings.unread) <= 40
    assert "long" not in settings.query()


def test_a_text_too_long_for_a_link_stays_in_the_session() -> None:
    settings = Settings()
    settings.set("prompt", "long " * 20_000)
    assert "prompt" not in settings.query()
    assert settings.too_long_for_link()
    assert len(settings.get("prompt")) == 100_000


def test_a_value_that_is_not_allowed_is_not_stored() -> None:
    settings = Settings()
    assert not settings.set("temperature", 7.0)
    assert not settings.set("temperature", "hot")
    assert not settings.set("temperature", float("nan"))
    assert settings.get("temperature") == 0.0


def test_a_name_that_nobody_declared_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        Settings().get("no_such_setting")
    with pytest.raises(ValueError, match="no name"):
        module.declare("Bad Name", 1)


# ---- what the browser sends late -------------------------------------------------------------------------------------


class Browser(dict[str, str]):
    """What `st.query_params` is to the module."""

    to_dict = dict.copy

    def from_dict(self, values: dict[str, str]) -> None:
        self.clear()
        self.update(values)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def changed(seen: dict[str, str], monkeypatch: pytest.MonkeyPatch, mine: Settings, value: int) -> None:
    """A callback in a run whose message carried the URL `seen`."""
    monkeypatch.setattr(module.st, "query_params", Browser(seen))
    mine.set("seed", value)
    module.write_url(mine)


def test_a_url_from_before_a_change_is_not_taken_back(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Settings({"seed": 1})
    changed({"seed": "1"}, monkeypatch, mine, 2)
    changed({"seed": "1"}, monkeypatch, mine, 3)  # the browser has not heard of the 2 yet
    for late in ("1", "2", "3"):
        mine.pull(Browser(seed=late))
        assert mine.get("seed") == 3
    clock[0] += module.LATE_S + 0.1
    mine.pull(Browser(seed="1"))  # Back in the browser
    assert mine.get("seed") == 1


def test_a_value_that_came_back_at_once_counts(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Settings({"seed": 1})
    changed({"seed": "1"}, monkeypatch, mine, 2)
    changed({"seed": "2"}, monkeypatch, mine, 1)
    mine.pull(Browser(seed="1"))
    assert mine.get("seed") == 1
    mine.pull(Browser(seed="2"))
    assert mine.get("seed") == 1


def test_every_pass_of_the_longest_run_can_be_chosen() -> None:
    """A long prompt is read in several passes, before those of the answer."""
    mine = Settings()
    assert mine.set("step", MAX_PROMPT_TOKENS + module.MAX_NEW_TOKENS)
    assert pulled(step="258").get("step") == 258


def test_text_that_fits_into_no_url_is_refused() -> None:
    mine = Settings()
    assert not mine.set("prompt", "half of a pair: \ud800")
    assert mine.query() == {}
    assert mine.set("prompt", "whole: 😀")
    mine.query()


@pytest.mark.parametrize("value", [70.553706, 0.05, 1e-7, 123456.789])
def test_a_number_survives_the_url(value: float) -> None:
    module.declare("survives", 0.0)
    mine = Settings()
    mine.set("survives", value)
    again = Settings()
    again.pull(mine.query())
    assert again.get("survives") == value
