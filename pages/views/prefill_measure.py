"""Two measurements about reading: the prompt one token at a time, and passes of several lengths."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import streamlit as st

from core import prefill
from core.prefill import LengthTime, Race
from pages.views import charts, prefill_wave
from pages.views import settings as settings_module
from pages.views.jobs import Task, panel
from pages.views.text import percent, seconds, tiny

if TYPE_CHECKING:
    from core.spec import ModelSpec
    from core.trace import Trace
    from pages.views.frame import Frame

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
REPEATS = 3


def declare() -> None:
    """The longest length that is measured."""
    settings_module.declare("longest", 512, int, lambda n: n in LENGTHS[4:])


# ---- one by one instead ----------------------------------------------------------------------------------------------


def race(frame: Frame, trace: Trace) -> None:
    """The panel “one by one instead”."""
    ids = tuple(token.id for token in trace.prompt_tokens)
    n = min(len(ids), prefill.MAX_RACE_TOKENS)
    task = Task("race", prefill_wave.run_name(trace), lambda loaded: prefill.one_by_one(loaded, ids), n + 1)
    if n < len(ids):
        st.caption(frame.t("race.bounded", n=n, all=len(ids)))
    panel(frame, task, lambda results, over: _draw_race(frame, results, over))


def _draw_race(frame: Frame, results: tuple[Race, ...], over: bool) -> None:
    if not results:
        return
    last = results[-1]
    st.html(race_bars(frame, last))
    if last.max_difference is None:
        if over and last.one_by_one_s > prefill.MAX_RACE_S:
            st.caption(frame.t("race.too_slow", n=last.n_fed, seconds=f"{prefill.MAX_RACE_S:.0f}"))
        return
    frame.figures(
        [
            (frame.t("race.fig_together"), seconds(last.together_s), "measured"),
            (frame.t("race.fig_one_by_one", n=last.n_tokens), seconds(last.one_by_one_s), "measured"),
            (frame.t("race.fig_ratio"), f"{last.ratio:.1f}×", "measured"),
            (frame.t("race.fig_difference"), tiny(last.max_difference), "measured"),
        ]
    )
    same = "race.same" if last.same_choice else "race.close"
    st.markdown(frame.md(same, ratio=f"{last.ratio:.1f}", n=last.n_tokens))


def race_bars(frame: Frame, last: Race) -> str:
    """Two bars in proportion: one pass, and as many passes as tokens (so far)."""
    longest = max(last.together_s, last.one_by_one_s, 1e-9)

    def bar(label: str, value_s: float, kind: str, parts: int) -> str:
        width = max(0.4, 100 * value_s / longest)
        style = f"width:{width:.2f}%;--parts:{max(1, parts)}"
        return (
            f'<div class="pf-bar"><span>{html.escape(label)}</span>'
            f'<div><i class="{kind}" style="{style}"></i></div><b>{html.escape(seconds(value_s))}</b></div>'
        )

    one = bar(frame.t("race.together", n=last.n_tokens), last.together_s, "prefill", 1)
    label = frame.t("race.one_by_one", n=last.n_fed, all=last.n_tokens)
    return f'<div class="pf-bars">{one}{bar(label, last.one_by_one_s, "decode", last.n_fed)}</div>'


# ---- cost against length ---------------------------------------------------------------------------------------------


def cost(frame: Frame, trace: Trace) -> None:
    """The panel “what does a longer prompt cost”."""
    from pages.views import controls

    spec, limit = trace.spec, min(1024, trace.spec.max_context - 1)
    options = [n for n in LENGTHS[4:] if n <= limit] or [limit]
    longest = controls.select(frame, "longest", options, show=lambda n: f"{n:,}")
    lengths = [n for n in LENGTHS if n <= longest]
    ids = tuple(token.id for token in trace.prompt_tokens)
    about = f"{prefill_wave.run_name(trace)}-{longest}"
    n_total = REPEATS * len(lengths)
    task = Task("cost", about, lambda loaded: prefill.times_by_length(loaded, ids, lengths, REPEATS), n_total)
    panel(frame, task, lambda results, over: _draw_cost(frame, spec, results, over))
    _computed(frame, trace)


def _draw_cost(frame: Frame, spec: ModelSpec, results: tuple[LengthTime, ...], over: bool) -> None:
    times = prefill.medians(results)
    if not times:
        return
    parts = time_parts(spec, times)
    frame.chart(cost_chart(frame, times, parts), key="prefill_cost_chart", alt=frame.t("cost.alt"))
    values = {"rate": f"{parts['rate'] / 1e9:,.0f}", "n": parts["best"], "repeats": REPEATS}
    st.caption(frame.t("cost.reading", **values))
    if not over or len(times) < 2:
        return
    first, before, last = times[0], times[-2], times[-1]
    frame.figures(
        [
            (
                frame.t("cost.fig_per_token", n=first.n_tokens),
                seconds(first.seconds / first.n_tokens),
                "measured",
            ),
            (
                frame.t("cost.fig_per_token", n=last.n_tokens),
                seconds(last.seconds / last.n_tokens),
                "measured",
            ),
            (
                frame.t("cost.fig_double", a=before.n_tokens, b=last.n_tokens),
                f"{last.seconds / before.seconds:.2f}×",
                "measured",
            ),
        ]
    )


def time_parts(spec: ModelSpec, times: tuple[LengthTime, ...]) -> dict[str, Any]:
    """The arithmetic as time: FLOPs divided by the best rate of all lengths. FLOPs per second; seconds per length."""
    costs = [prefill.pass_cost(spec, t.n_tokens) for t in times]
    rate, best = max((c.flops / t.seconds, t.n_tokens) for c, t in zip(costs, times, strict=True))
    return {
        "rate": rate,
        "best": best,
        "linear": [(c.linear + c.vocabulary) / rate for c in costs],
        "attention": [c.attention / rate for c in costs],
    }


def cost_chart(frame: Frame, times: tuple[LengthTime, ...], parts: dict[str, Any]) -> Any:
    """Measured points over the two computed parts, stacked."""
    lengths, dark = [t.n_tokens for t in times], frame.dark
    chart = charts.figure(dark, x=frame.t("cost.x"), y=frame.t("cost.y"))
    for name, tone in (("linear", "prefill"), ("attention", "new")):
        chart.add_scatter(
            x=lengths, y=[1e3 * s for s in parts[name]], name=frame.t(f"cost.{name}"), stackgroup="parts",
            mode="lines", line={"color": charts.color(tone, dark), "width": 1.5, "dash": charts.DASH[tone]},
            hovertemplate="%{y:.1f} ms",
        )  # fmt: skip
    chart.add_scatter(
        x=lengths, y=[1e3 * t.seconds for t in times], name=frame.t("cost.measured"), mode="lines+markers",
        marker={"color": charts.color("ink", dark), "size": 9, "symbol": "circle"},
        line={"color": charts.color("ink", dark), "width": 1, "dash": "dot"}, hovertemplate="%{y:.1f} ms",
    )  # fmt: skip
    return chart.update_layout(hovermode="x unified")


def _computed(frame: Frame, trace: Trace) -> None:
    """What the formula says without any measurement: this prompt, and where the two parts would be equal."""
    spec = trace.spec
    own = prefill.pass_cost(spec, trace.n_prompt)
    whole = prefill.pass_cost(spec, spec.max_context)
    frame.figures(
        [
            (frame.t("cost.fig_share", n=trace.n_prompt), percent(own.attention / own.flops), "computed"),
            (
                frame.t("cost.fig_share", n=f"{spec.max_context:,}"),
                percent(whole.attention / whole.flops),
                "computed",
            ),
            (frame.t("cost.fig_crossing"), f"{prefill.crossing_length(spec):,}", "computed"),
        ]
    )
