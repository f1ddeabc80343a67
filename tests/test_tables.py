"""Tables: what comes from outside is text, links are links only where they are https, bars stay inside."""

from __future__ import annotations

import pytest

from pages.views.tables import STYLE, Cell


def test_everything_is_escaped() -> None:
    evil = '<img src=x onerror="alert(1)">&'
    cell = Cell(evil, note=evil, href='https://x/"><script>', css='a"b').html()
    assert "<img" not in cell
    assert "<script" not in cell
    assert cell.count("&lt;img") == 2
    assert 'class="a&quot;b"' in cell


@pytest.mark.parametrize("href", ["javascript:alert(1)", "http://x", "//x", "data:text/html,x", ""])
def test_only_https_becomes_a_link(href: str) -> None:
    assert "<a" not in Cell("t", href=href).html()


def test_a_link_opens_beside_the_page_and_tells_nothing() -> None:
    assert 'href="https://x/y" target="_blank" rel="noopener"' in Cell("t", href="https://x/y").html()


@pytest.mark.parametrize(("bar", "share"), [(0.25, "0.2500"), (-1.0, "0.0000"), (7.0, "1.0000")])
def test_bars_stay_inside(bar: float, share: str) -> None:
    assert f"--share:{share}" in Cell("t", bar=bar).html()


def test_row_names_are_headers() -> None:
    assert Cell("a", css="l").html("th") == '<th class="l" scope=row>a</th>'
    assert "otat-table" in STYLE.read_text(encoding="utf-8")
