"""Small HTML tables in the project's look, for results that a chart would hide. All cells are escaped
here."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

STYLE = Path(__file__).resolve().parents[2] / "assets" / "tables.css"


@dataclass(frozen=True)
class Cell:
    """One cell. `note` stands below in small print, `href` makes the text a link, `bar` draws a share from 0
    to 1."""

    text: str
    note: str = ""
    href: str = ""
    bar: float | None = None
    css: str = ""

    def html(self, tag: str = "td") -> str:
        words = html.escape(self.text)
        if self.href.startswith("https://"):
            words = (
                f'<a href="{html.escape(self.href, quote=True)}" target="_blank" rel="noopener">{words}</a>'
            )
        if self.bar is not None:
            words = f'<b>{words}</b><i style="--share:{max(0.0, min(1.0, self.bar)):.4f}"></i>'
        note = f"<small>{html.escape(self.note)}</small>" if self.note else ""
        css = " ".join(filter(None, [self.css, "bar" if self.bar is not None else ""]))
        return f'<{tag} class="{html.escape(css)}"{" scope=row" if tag == "th" else ""}>{words}{note}</{tag}>'


def show(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], n_left: int = 1, *, stack: bool = False
) -> None:
    """A table; the first column names the row, the first `n_left` columns are aligned to the left.

    stack: on a phone each row becomes a small block with its last cell beside its name, instead of
    scrolling."""
    top = "".join(
        f'<th scope="col" class="{"l" if i < n_left else ""}">{html.escape(h)}</th>'
        for i, h in enumerate(head)
    )
    body = "".join(
        f"<tr>{''.join(_placed(cell, i, n_left) for i, cell in enumerate(row))}</tr>" for row in rows
    )
    css = "otat-table stack" if stack else "otat-table"
    label = html.escape(caption, quote=True)
    st.html(
        f'{_style()}<div class="{css}" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _placed(cell: Cell, column: int, n_left: int) -> str:
    placed = Cell(
        cell.text, cell.note, cell.href, cell.bar, f"{cell.css} l".strip() if column < n_left else cell.css
    )
    return placed.html("td" if column else "th")


def note(text: str) -> None:
    """A line of small print. (Streamlit's own captions are too pale to be read from the back of a room.)"""
    st.html(f'{_style()}<p class="otat-note">{html.escape(text)}</p>')


def _style() -> str:
    return f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
