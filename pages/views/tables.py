"""Small HTML tables in the project's look, for results that a chart would hide. All cells are escaped
here."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

_STYLE = """<style> .otat-table { overflow-x: auto; } .otat-table table { border-collapse: collapse; width:
100%; font-size: .875rem; line-height: 1.4; font-variant-numeric: tabular-nums; } .otat-table th, .otat-table
td { text-align: end; padding: .4375rem .75rem .4375rem 0; border: 0; border-bottom: 1px solid var(--line);
vertical-align: baseline; } .otat-table thead th { color: var(--muted); font-weight: 600; font-size: .8125rem;
} .otat-table tbody th { font-weight: 600; } .otat-table th.l, .otat-table td.l { text-align: start; }
.otat-table td.mono { font-family: ui-monospace, "JetBrains Mono", Menlo, Consolas, monospace; font-size:
.8125rem; } .otat-table small { display: block; color: var(--muted); font-weight: 400; } .otat-table a {
color: inherit; } .otat-table .bar { position: relative; min-width: 7.5rem; white-space: nowrap; } .otat-table
.bar i { position: absolute; inset: auto auto .1875rem 0; height: .25rem; border-radius: .125rem; background:
var(--decode); } .otat-table .bar.first i { background: var(--prefill); } .otat-table .bar b { font-weight:
650; } </style>"""


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
            words = f'<b>{words}</b><i style="width:{max(0.0, min(1.0, self.bar)) * 100:.1f}%"></i>'
        note = f"<small>{html.escape(self.note)}</small>" if self.note else ""
        css = " ".join(filter(None, [self.css, "bar" if self.bar is not None else ""]))
        return f'<{tag} class="{html.escape(css)}"{" scope=row" if tag == "th" else ""}>{words}{note}</{tag}>'


def show(caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], n_left: int = 1) -> None:
    """A table; the first column names the row, the first `n_left` columns are aligned to the left."""
    top = "".join(
        f'<th scope="col" class="{"l" if i < n_left else ""}">{html.escape(h)}</th>'
        for i, h in enumerate(head)
    )
    body = "".join(
        f"<tr>{''.join(_placed(cell, i, n_left) for i, cell in enumerate(row))}</tr>" for row in rows
    )
    st.html(
        f'{_STYLE}<div class="otat-table" tabindex="0" role="region" aria-label="{html.escape(caption, quote=True)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _placed(cell: Cell, column: int, n_left: int) -> str:
    placed = Cell(
        cell.text, cell.note, cell.href, cell.bar, f"{cell.css} l".strip() if column < n_left else cell.css
    )
    return placed.html("td" if column else "th")
