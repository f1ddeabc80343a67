"""The calculator page around the calculator: sentences with computed figures, the run's real cache, and log
lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from core.errors import ExplainerError, UnsupportedConfigError
from core.kv_logs import LogFigure, expected, recognize
from core.kv_memory import KVLayout, kv_bytes, layer_bytes, max_tokens, weight_bytes
from core.trace import Trace
from pages.views import kv_memory_data as data
from pages.views import settings as settings_module
from pages.views import tables
from pages.views.frame import Frame
from pages.views.text import escape_markdown, size

if TYPE_CHECKING:
    from core.kv_cache import KVCache

EXAMPLE, EXAMPLE_USERS, EXAMPLE_TOKENS = "llama-3.1-8b", 32, 4096
MAX_PASTE, MAX_LOG = 200_000, 20_000
LOG_LINE = (
    "llama_kv_cache: size = 512.00 MiB (4096 cells, 32 layers, 1/1 seqs), "
    "K (f16): 256.00 MiB, V (f16): 256.00 MiB"
)
WINDOW_EXAMPLE, WINDOW_SHORT, WINDOW_LONG = "gemma-3-12b", 1024, 131_072


def both_units(n_bytes: float) -> str:
    """`16.00 GiB = 17.18 GB`: powers of 1024 and of 1000, side by side."""
    for unit, power in (("GB", 1000**3), ("MB", 1000**2), ("kB", 1000)):
        if n_bytes >= power:
            return f"{size(n_bytes)} = {n_bytes / power:,.2f} {unit}"
    return size(n_bytes)


def example() -> dict[str, Any]:
    """The figures of the worked example, all from the formula."""
    preset = next(entry for entry in data.presets() if entry["id"] == EXAMPLE)
    layout = data.preset_layout(EXAMPLE)
    cache = kv_bytes(layout, EXAMPLE_TOKENS, n_sequences=EXAMPLE_USERS).total
    weights = weight_bytes(preset["n_parameters"], "bf16")
    return {
        "name": preset["name"],
        "users": EXAMPLE_USERS,
        "tokens": f"{EXAMPLE_TOKENS:,}",
        "cache": size(cache),
        "weights": both_units(weights),
        "per_token": size(kv_bytes(layout, 1).total),
        "share": f"{cache / weights * 100:.0f}",
        "heads": preset["n_heads"],
        "kv_heads": preset["layers"][0]["heads"],
        "times": f"{preset['n_heads'] / preset['layers'][0]['heads']:g}",
    }


def window_example() -> dict[str, Any]:
    """A model with windows: how little its cache grows beyond them."""
    preset = next(entry for entry in data.presets() if entry["id"] == WINDOW_EXAMPLE)
    layout = data.preset_layout(WINDOW_EXAMPLE)
    short, long = (kv_bytes(layout, n).total for n in (WINDOW_SHORT, WINDOW_LONG))
    return {
        "window_name": preset["name"],
        "short": f"{WINDOW_SHORT:,}",
        "long": f"{WINDOW_LONG:,}",
        "text_times": WINDOW_LONG // WINDOW_SHORT,
        "cache_times": f"{long / short:.0f}",
        "n_window": layout.count("window"),
        "n_layers": len(layout.layers),
        "window": f"{layout.windows[-1]:,}",
    }


def refusal(frame: Frame, error: ExplainerError) -> str:
    """The sentence of a refusal in the learner's language. Rare ones keep their English detail."""
    if not isinstance(error, UnsupportedConfigError):
        return frame.explain(error)
    why = f"refused.{error.values.get('why')}"
    key = why if isinstance(frame.t.find(why), str) else "refused.detail"
    return frame.md(key, **{**error.values, "sentence": str(error)})


# --- a pasted configuration
# -------------------------------------------------------------------------------------------


def paste_box(frame: Frame) -> None:
    """A box for a config.json. Using it makes that model the page's model."""
    with st.expander(frame.t("paste.title")):
        st.markdown(frame.t("paste.note"))
        st.text_area(
            frame.t("paste.label"),
            height=180,
            max_chars=MAX_PASTE,
            key="mem_paste",
            placeholder='{"model_type": …}',
        )
        st.button(frame.t("paste.button"), on_click=_use_paste, key="mem_paste_button")
        error = st.session_state.get("mem_paste_error")
        if error is not None:
            st.error(refusal(frame, error), icon=":material/info:")
        elif frame.settings.get("mem_model") == "custom":
            st.success(frame.md("paste.done", name=frame.settings.get("mem_name")), icon=":material/check:")


def _use_paste() -> None:
    text = st.session_state.get("mem_paste") or ""
    _attempt(lambda chosen: data.take_config(chosen, text))


def use_file(sent: object) -> None:
    """A file that the browser has read."""
    _attempt(lambda chosen: data.take_file(chosen, sent))


def _attempt(action: Any) -> None:
    chosen = settings_module.current()
    st.session_state["mem_paste_error"] = None
    try:
        action(chosen)
        settings_module.write_url(chosen)
        st.session_state["mem_revision"] = st.session_state.get("mem_revision", 0) + 1
    except ExplainerError as error:
        st.session_state["mem_paste_error"] = error


# --- formula against reality
# ------------------------------------------------------------------------------------------


def tensors(trace: Trace, cache: KVCache | None) -> tuple[list[tuple[str, str, int]], bool]:
    """(name, shape, bytes) of every layer's K and V, and whether they are the live tensors."""
    live = cache is not None and len(cache) == trace.n_cached
    rows = []
    for layer in range(trace.spec.n_layers):
        for name in ("keys", "values"):
            if live and cache is not None:
                tensor = getattr(cache, name)[layer]
                shape, n_bytes = tuple(tensor.shape), tensor.numel() * tensor.element_size()
            else:
                array = getattr(trace, name)[layer]
                shape, n_bytes = array.shape, array.size * trace.spec.dtype_bytes
            rows.append((f"{layer + 1} {name[0].upper()}", " × ".join(map(str, shape)), int(n_bytes)))
    return rows, live


def reality(frame: Frame) -> None:
    """The run's cache, tensor by tensor, beside the formula."""
    trace = frame.trace
    spec = trace.spec
    run = frame.run if frame.run is not None and trace.origin == "live" else None
    rows, live = tensors(trace, run.cache if run else None)
    layout = KVLayout.uniform(spec.n_layers, spec.n_kv_heads, spec.head_dim)
    dtype = {4: "f32", 2: "f16"}.get(spec.dtype_bytes, "f32")
    held, formula = sum(row[2] for row in rows), kv_bytes(layout, trace.n_cached, k_dtype=dtype).total
    st.subheader(frame.t("reality.title"), anchor=False)
    if trace.n_traced != trace.n_cached and not live:
        st.caption(frame.t("reality.untraced"))
        return
    st.markdown(
        frame.md("reality.note_live" if live else "reality.note_recorded", n=trace.n_cached, model=spec.name)
    )
    kind = "measured" if live else "computed"
    frame.figures(
        [
            (frame.t("reality.held"), f"{held:,} B", kind),
            (frame.t("reality.formula"), f"{formula:,} B", "computed"),
            (frame.t("reality.difference"), f"{held - formula:,} B", "computed"),
        ]
    )
    st.markdown(
        frame.md(
            "reality.product",
            layers=spec.n_layers,
            heads=spec.n_kv_heads,
            width=spec.head_dim,
            size=spec.dtype_bytes,
            n=trace.n_cached,
            total=f"{formula:,}",
        )
    )
    with st.expander(frame.t("reality.each", n=len(rows))):
        each = layer_bytes(layout, trace.n_cached, k_dtype=dtype)
        head = [frame.t(f"reality.{name}") for name in ("tensor", "shape", "bytes", "by_formula")]
        body = [
            [
                tables.Cell(name),
                tables.Cell(shape),
                tables.Cell(f"{n:,}"),
                tables.Cell(f"{each[i // 2] // 2:,}"),
            ]
            for i, (name, shape, n) in enumerate(rows)
        ]
        tables.show(frame.t("reality.title"), head, body, n_left=2)


# --- log lines
# --------------------------------------------------------------------------------------------------------


def log_box(frame: Frame) -> None:
    """Paste a log line; see which quantity it is, and the formula's figure for the page's model."""
    st.subheader(frame.t("logs.title"), anchor=False)
    st.markdown(frame.t("logs.note"))
    text = st.text_area(
        frame.t("logs.label"), height=110, max_chars=MAX_LOG, key="mem_log", placeholder=LOG_LINE
    )
    if not (text or "").strip():
        return
    figures = recognize(text or "")
    if not figures:
        st.info(frame.t("logs.unknown"), icon=":material/help:")
        return
    layout = data.layout_of(frame.settings, frame.trace.spec)
    head = [frame.t(f"logs.{name}") for name in ("line", "printed", "ours", "verdict")]
    rows = [_log_row(frame, figure, layout) for figure in figures]
    tables.show(frame.t("logs.title"), head, rows, n_left=1, stack=True)
    for quantity in dict.fromkeys(figure.quantity for figure in figures):
        st.markdown("- " + frame.t(f"logs.about_{quantity}"))


def _log_row(frame: Frame, figure: LogFigure, layout: KVLayout) -> list[tables.Cell]:
    values = data.view(frame.settings)
    ours = expected(
        figure,
        layout,
        n_tokens=values["tokens"],
        n_sequences=values["users"],
        k_dtype=values["k"],
        v_dtype=values["v"] or None,
        tensor_parallel=values["tp"],
    )
    name = f"{figure.engine}: {frame.t(f'logs.quantity_{figure.quantity}')}"
    return [
        tables.Cell(name, note=figure.line[:120]),
        tables.Cell(_printed(frame, figure)),
        tables.Cell(_fitting(frame, figure, layout) or ("–" if ours is None else both_units(ours))),
        tables.Cell(_verdict(frame, figure, ours)),
    ]


def _fitting(frame: Frame, figure: LogFigure, layout: KVLayout) -> str:
    """What fits in the memory that an engine has left for its cache."""
    if figure.quantity != "available" or figure.n_bytes is None:
        return ""
    values = data.view(frame.settings)
    common = {"k_dtype": values["k"], "v_dtype": values["v"] or None, "tensor_parallel": values["tp"]}
    n = max_tokens(layout, figure.n_bytes, engine="vllm", block_size=values["block"], **common)
    return "∞" if n is None else frame.t("logs.unit_tokens", n=f"{n:,}")


def _printed(frame: Frame, figure: LogFigure) -> str:
    if figure.n_bytes is not None:
        return both_units(figure.n_bytes)
    if figure.concurrency is not None:
        return f"{figure.concurrency:g}×"
    count = figure.n_tokens or figure.blocks or figure.cells or 0
    unit = "tokens" if figure.n_tokens else "blocks" if figure.blocks else "cells"
    return frame.t(f"logs.unit_{unit}", n=f"{count:,}")


def _verdict(frame: Frame, figure: LogFigure, ours: float | None) -> str:
    if figure.quantity == "available":
        return frame.t("logs.verdict_tokens")
    if ours is None:
        return frame.t("logs.verdict_open")
    if figure.n_bytes is None:
        return frame.t("logs.verdict_bytes")
    if abs(ours - figure.n_bytes) <= figure.rounding_bytes + 1:
        return frame.t("logs.verdict_equal")
    return (
        frame.t("logs.verdict_times", n=f"{figure.n_bytes / ours:.2f}")
        if ours
        else frame.t("logs.verdict_open")
    )


def surprise(frame: Frame) -> None:
    """The run's text, and what a larger model would keep for it."""
    trace = frame.trace
    n_text = sum(len(token.bytes) for token in trace.tokens[: trace.n_cached])
    held = kv_bytes(data.preset_layout(EXAMPLE), trace.n_cached).total
    facts = example() | {
        "n": trace.n_cached,
        "text": f"{n_text:,}",
        "cache": size(held),
        "ratio": f"{held / max(1, n_text):,.0f}",
    }
    frame.surprise(frame.md("surprise", **facts))


def question(frame: Frame) -> bool:
    """How large is the cache beside the weights? True once it was answered."""
    facts = example()
    options = [frame.t(f"predict.option_{name}") for name in ("tenth", "half", "same", "ten")]
    text = {key: escape_markdown(value) for key, value in facts.items()}
    return frame.predict("size", frame.t("predict.q", **text), options, 2, frame.t("predict.why", **text))
