"""The parts of the roofline page below the lab: the measured table, a whole request, precision, two cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from core import roofline
from core.prefill import pass_cost
from core.roofline import MachineLimits, PassPoint, PrecisionResult
from pages.views import controls, jobs, prefill_wave, roofline_data, tables
from pages.views.jobs import Task
from pages.views.tables import Cell
from pages.views.text import percent, seconds, size

if TYPE_CHECKING:
    from core.trace import Trace
    from pages.views.frame import Frame

PROMPT_TOKENS, ANSWER_TOKENS = 100, 500  # the request of lesson A5
PRECISION_TOKENS = 24


def points_table(frame: Frame, limits: MachineLimits, points: tuple[PassPoint, ...]) -> None:
    """Every measured pass, with how near it comes to each of the two limits."""
    head = [frame.t(f"points.{name}") for name in ("pass", "time", "tokens", "intensity", "mbu", "mfu")]
    rows = [
        [
            Cell(frame.t(f"points.{p.kind}", n=p.n_tokens, batch=p.n_sequences), css="nowrap"),
            Cell(seconds(p.seconds)),
            Cell(f"{p.tokens_per_s:,.0f}"),
            Cell(f"{p.intensity:.2f}"),
            Cell(percent(p.mbu(limits), 0), bar=p.mbu(limits)),
            Cell(percent(p.mfu(limits), 0), bar=p.mfu(limits)),
        ]
        for p in points
    ]
    tables.show(frame.t("points.title"), head, rows)
    st.caption(frame.t("points.note"))


def whole_request(frame: Frame, points: tuple[PassPoint, ...]) -> None:
    """100 prompt and 500 answer tokens: passes, bytes, and the time that the measured passes make of it."""
    spec, n_decode = frame.trace.spec, ANSWER_TOKENS - 1
    read = pass_cost(spec, PROMPT_TOKENS)
    writing = sum(pass_cost(spec, 1, PROMPT_TOKENS + i).bytes for i in range(n_decode))
    prompt = min((p for p in points if p.kind == "prefill"), key=lambda p: abs(p.n_tokens - PROMPT_TOKENS))
    one = next(p for p in points if p.kind == "decode" and p.n_sequences == 1)
    prefill_s, decode_s = prompt.seconds * PROMPT_TOKENS / prompt.n_tokens, one.seconds * n_decode
    head = [frame.t(f"request.{name}") for name in ("part", "passes", "bytes", "time")]
    rows = [
        [
            Cell(frame.t("request.prefill", n=PROMPT_TOKENS)),
            Cell("1"),
            Cell(size(read.bytes)),
            Cell(seconds(prefill_s)),
        ],
        [
            Cell(frame.t("request.decode", n=ANSWER_TOKENS)),
            Cell(f"{n_decode:,}"),
            Cell(size(writing)),
            Cell(seconds(decode_s), bar=decode_s / (decode_s + prefill_s)),
        ],
    ]
    tables.show(frame.t("request.title"), head, rows)
    share = percent(decode_s / (decode_s + prefill_s))
    st.caption(
        frame.md("request.note", share=share, answer=ANSWER_TOKENS, decode=n_decode, base=prompt.n_tokens)
    )


def precision(frame: Frame, trace: Trace) -> None:
    """The same answer with fewer bytes per weight, measured on request."""
    ids = tuple(token.id for token in trace.prompt_tokens)[:256]
    kinds = roofline.precisions(frame.loaded.device.type) if frame.loaded is not None else ("float32",)
    task = Task(
        "precision",
        prefill_wave.run_name(trace),
        lambda loaded: roofline.compare_precisions(loaded, ids, PRECISION_TOKENS),
        len(kinds) * (PRECISION_TOKENS + 1),
    )
    jobs.panel(frame, task, lambda results, over: _draw_precision(frame, results, over))


def _draw_precision(frame: Frame, results: tuple[Any, ...], over: bool) -> None:
    done = [r for r in results if isinstance(r, PrecisionResult)]
    if not done:
        return
    head = [frame.t(f"precision.{name}") for name in ("weights", "bytes", "time", "rate", "same")]
    rows = [
        [
            Cell(frame.t(f"precision.name_{r.dtype}")),
            Cell(size(r.weight_bytes)),
            Cell(seconds(r.seconds_per_token)),
            Cell(f"{r.bytes_per_s / 1e9:.1f} GB/s"),
            Cell(frame.t("precision.of", n=r.n_same, all=len(r.token_ids))),
        ]
        for r in done
    ]
    tables.show(frame.t("precision.title"), head, rows)
    if over and len(done) > 1:
        full, least = done[0], done[-1]
        ratio = full.seconds_per_token / least.seconds_per_token
        key = "precision.faster" if ratio > 1 else "precision.slower"
        fewer = f"{full.weight_bytes / least.weight_bytes:.1f}"
        st.markdown(
            frame.md(key, name=frame.t(f"precision.name_{least.dtype}"), fewer=fewer, ratio=f"{ratio:.2f}")
        )


def cards(frame: Frame) -> None:
    """Do two cards halve one answer? Reading is shared out; adding up is not."""
    spec = frame.trace.spec
    known = {a["id"]: a for a in roofline_data.accelerators() if a["link_gb_s"]}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        card = known[controls.select(frame, "rf_card", list(known), show=lambda i: known[i]["name"])]
        hop = controls.select(frame, "rf_hop", roofline_data.LINK_US, show=lambda us: f"{us} µs")
    read, link = card["read_gb_s"] * 1e9, card["link_gb_s"] * 1e9
    times = {
        n: roofline.tensor_parallel_token_s(spec, n, read, link, hop * 1e-6, PROMPT_TOKENS)
        for n in roofline_data.CARDS
    }
    alone = times[1]
    rows = [
        [
            Cell(f"{n}"),
            Cell(seconds(pass_cost(spec, 1, PROMPT_TOKENS).bytes / n / read)),
            Cell(seconds(t), bar=t / max(times.values())),
            Cell(f"{alone / t:.2f}×"),
        ]
        for n, t in times.items()
    ]
    tables.show(
        frame.t("cards.title"), [frame.t(f"cards.{c}") for c in ("n", "reading", "token", "faster")], rows
    )
    sums = 2 * spec.n_layers
    key = "cards.slower" if times[2] > alone else "cards.less" if times[2] > 0.55 * alone else "cards.near"
    st.markdown(frame.md(key, ratio=f"{alone / times[2]:.2f}", sums=sums, model=spec.name))
    st.caption(frame.md("cards.note", source=frame.t(f"source.{card['id']}")))
