"""Plotly figures in the project's look. No Streamlit here: these functions make a figure, a page shows it.

    chart = charts.figure(frame.dark, x="context (tokens)", y="time per token (ms)")
    chart.add_scatter(x=lengths, y=times, name="measured", line_color=charts.color("decode", frame.dark))
    frame.chart(chart, key="cost", alt="Time per token against context length")

One colour per phase, the same as in the components; a second cue (dash or marker) for those who do not see the colour.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

_LIGHT = {
    "prefill": "#2f6fed", "decode": "#d9630a", "new": "#b1206f", "cache": "#0b7a67",
    "wait": "#8b93a5", "out": "#b9b4a6",
    "ink": "#1c2230", "muted": "#5d6577", "line": "#e4e1d8", "paper": "#fbfaf6", "card": "#ffffff",
}  # fmt: skip
_DARK = {
    "prefill": "#7aa5ff", "decode": "#ff9f4a", "new": "#ff7dbd", "cache": "#3cc9ae",
    "wait": "#7f8799", "out": "#565d6e",
    "ink": "#eceef4", "muted": "#a3abbd", "line": "#2b3140", "paper": "#11141b", "card": "#181c26",
}  # fmt: skip

DASH = {"prefill": "solid", "decode": "solid", "new": "dot", "cache": "dash", "wait": "dashdot", "out": "dot"}
MARKER = {
    "prefill": "square",
    "decode": "circle",
    "new": "diamond",
    "cache": "triangle-up",
    "wait": "x",
    "out": "cross",
}

# The fonts of .streamlit/config.toml.
FONT = "Inter, 'Noto Sans', 'Noto Sans JP', 'Noto Sans CJK JP', 'Hiragino Sans', 'Yu Gothic UI', system-ui, sans-serif"

CONFIG = {
    "displaylogo": False,
    "displayModeBar": False,
    "scrollZoom": False,
    "toImageButtonOptions": {"format": "png", "scale": 2},
}


def color(name: str, dark: bool = False) -> str:
    """The colour of a phase (prefill, decode, new, cache, wait, out) or surface (ink, muted, line, paper, card)."""
    return (_DARK if dark else _LIGHT)[name]


def figure(dark: bool = False, *, x: str = "", y: str = "", height: int = 340, **layout: Any) -> go.Figure:
    """An empty figure with axis titles `x` and `y`, transparent background, and room for labels on a phone."""
    tone = _DARK if dark else _LIGHT
    axis = {
        "gridcolor": tone["line"],
        "linecolor": tone["line"],
        "zerolinecolor": tone["line"],
        "automargin": True,
        "separatethousands": True,
    }
    chart = go.Figure()
    chart.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 8, "t": 28, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": tone["ink"], "size": 14, "family": FONT},
        hoverlabel={"bgcolor": tone["card"], "font": {"color": tone["ink"]}, "bordercolor": tone["line"]},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"color": tone["ink"]}},
        xaxis={"title": {"text": x, "standoff": 6}, **axis},
        yaxis={"title": {"text": y, "standoff": 6}, **axis},
        colorway=[tone[name] for name in ("prefill", "decode", "cache", "new", "wait")],
    )
    return chart.update_layout(**layout) if layout else chart
