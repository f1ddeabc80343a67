"""Sentences: looked up in the page first, filled without executing anything, escaped where a learner's words go in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pages.views import text
from pages.views.text import Text


def test_a_page_wins_over_the_common_text() -> None:
    assert Text("en", "home")("title") == "Home"
    assert Text("en", "home")("kind.measured") == "measured"
    assert Text("ja", "home")("kind.measured") == "実測"


def test_a_missing_key_or_value_is_seen_but_breaks_nothing() -> None:
    t = Text("en", "home")
    assert t("no.such.key") == "no.such.key"
    assert "{percent}" in t("model.stage.weights", other=1)


def test_a_group_is_the_flat_table_of_a_component() -> None:
    words = Text("ja", "home").group("stage")
    assert words["play"] == "再生"
    assert all(isinstance(value, str) for value in words.values())


def test_values_cannot_become_markdown() -> None:
    filled = Text("en", "home").md("lead", prompt="**a** [b](c) <i>\n# d $e$ :red[f]")
    for piece in ("**a**", "[b](c)", "<i>", "\n", "$e$", ":red["):
        assert piece not in filled


@given(st.text(max_size=80))
def test_escaping_keeps_every_visible_character(value: str) -> None:
    escaped = text.escape_markdown(value)
    assert "\n" not in escaped
    assert escaped.replace("\\", "") == " ".join(value.split()).replace("\\", "")


@given(st.text(max_size=30))
def test_a_value_is_never_a_format_of_its_own(value: str) -> None:
    assert Text("en", "home")("lead", prompt="{0} {prompt.__class__}" + value)


@pytest.mark.parametrize(
    ("value_s", "shown"),
    [
        (0.0, "0 ms"),
        (0.0000004, "0.0004 ms"),
        (0.0032, "3.2 ms"),
        (0.087, "87 ms"),
        (0.9994, "999 ms"),
        (1.236, "1.24 s"),
    ],
)
def test_seconds(value_s: float, shown: str) -> None:
    assert text.seconds(value_s) == shown


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (46_080, "45.0 KiB"),
        (2_076_672, "1.98 MiB"),
        (17_179_869_184, "16.00 GiB"),
    ],
)
def test_sizes_are_powers_of_1024(n_bytes: int, shown: str) -> None:
    assert text.size(n_bytes) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (4.77e-05, "4.8×10⁻⁵"), (0.1, "1.0×10⁻¹"), (25.0, "2.5×10¹")]
)
def test_tiny_numbers(value: float, shown: str) -> None:
    assert text.tiny(value) == shown


def test_a_number_stays_with_its_unit() -> None:
    """Only in sentences, and only before a unit: “2 steps” may break."""
    filled = Text("en", "home").md("surprise.short", n_prompt=2, prefill="87 ms", step="3.2 ms")
    assert "87\u00a0ms" in filled
    assert "2 tokens" in filled


def test_invisible_characters_are_shown() -> None:
    assert text.visible(" a\n\t") == "·a⏎⇥"
    assert text.visible("") == "∅"
