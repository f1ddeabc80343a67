"""“Measure a server of your own”: a form, a measurement in threads, and the same figures as for our own run.

Address, model and key stay in this session's memory: not in the URL, not in a file, not in a log. Whatever
the server sends is text and is shown as text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from core import latency, openai_stream
from core.errors import ExplainerError, InvalidSettingError
from core.openai_stream import Ask, Endpoint, Measurement, Observation
from pages.views import components, latency_data, tables
from pages.views.tables import Cell
from pages.views.text import seconds

if TYPE_CHECKING:
    from pages.views.frame import Frame

_MEASUREMENT = "otat_endpoint"
_SHOWN = "otat_endpoint_shown"
POLL_S = 0.3


def explain(frame: Frame, error: ExplainerError) -> str:
    """The error's sentence, with its reason in the learner's language too."""
    values = dict(error.values)
    why = values.get("why")
    if isinstance(why, str) and frame.t.find(f"reason.{why}") is not None:
        values["reason"] = frame.t(f"reason.{why}", target=values.get("target", ""))
    return frame.explain(type(error)(**values))


def _is_served_to_others() -> bool:
    """True where the app listens on more than this machine's own address."""
    return str(st.get_option("server.address") or "") not in {"127.0.0.1", "localhost", "::1"}


def section(frame: Frame) -> None:
    """The whole section, or one sentence where the instance's owner turned it off."""
    if not openai_stream.is_allowed(served_to_others=_is_served_to_others()):
        tables.note(frame.t("error.endpoint_off"))
        return
    active = _is_active()
    with st.form("endpoint_form", border=True):
        left, right = st.columns(2)
        url = left.text_input(
            frame.t("server.url"), key="endpoint_url", placeholder="http://127.0.0.1:8000/v1", max_chars=500
        )
        model = right.text_input(frame.t("server.model"), key="endpoint_model", max_chars=300)
        key = left.text_input(
            frame.t("server.key"),
            key="endpoint_key",
            type="password",
            max_chars=4000,
            help=frame.t("server.key_help"),
        )
        prompt = right.text_input(
            frame.t("control.prompt"),
            key="endpoint_prompt",
            value=frame.settings.get("prompt")[:2000],
            max_chars=2000,
        )
        n = left.number_input(
            frame.t("server.requests"),
            1,
            openai_stream.MAX_REQUESTS,
            1,
            key="endpoint_n",
            help=frame.t("server.requests_help"),
        )
        length = right.number_input(frame.t("control.max_tokens"), 1, 1024, 64, key="endpoint_length")
        pressed = st.form_submit_button(frame.t("server.measure"), icon=":material/speed:", disabled=active)
    if pressed:
        _start(frame, {"url": url, "model": model, "key": key}, prompt, int(n), int(length))
        active = _is_active()
    st.fragment(_watch, run_every=POLL_S if active else None)(frame, active)


def _is_active() -> bool:
    measurement = st.session_state.get(_MEASUREMENT)
    return measurement is not None and not measurement.is_done


def _start(frame: Frame, server: dict[str, str], prompt: str, n: int, length: int) -> None:
    try:
        endpoint = Endpoint(server["url"], server["model"], server["key"].strip())
        st.session_state[_MEASUREMENT] = Measurement(endpoint, Ask(prompt, max_tokens=length), n)
        st.session_state.pop(_SHOWN, None)
    except ExplainerError as error:
        st.session_state.pop(_MEASUREMENT, None)
        st.error(_field_error(frame, error), icon=":material/info:")


def _field_error(frame: Frame, error: ExplainerError) -> str:
    """Settings of this form are named as the form names them."""
    if isinstance(error, InvalidSettingError):
        return frame.t("server.field", name=frame.t(f"server.{error.values['name']}"))
    return explain(frame, error)


def _stop() -> None:
    st.session_state[_MEASUREMENT].cancel()


def _watch(frame: Frame, was_active: bool) -> None:
    measurement: Measurement | None = st.session_state.get(_MEASUREMENT)
    if measurement is None:
        return
    if was_active and measurement.is_done:
        st.rerun()
    if not measurement.is_done:
        tables.note(frame.t("server.progress", n=measurement.n_messages))
        st.button(frame.t("server.stop"), key="endpoint_stop", on_click=_stop)
        return
    for sentence in dict.fromkeys(explain(frame, error) for error in measurement.errors):
        st.error(sentence, icon=":material/info:")
    if measurement.observations:
        _results(frame, measurement.observations)


def _results(frame: Frame, seen: tuple[Observation, ...]) -> None:
    head = [
        frame.t(f"server.col_{name}")
        for name in ("request", "connect", "ttft", "gap", "tpot", "e2e", "speed")
    ]
    tables.show(frame.t("server.title"), head, [_row(frame, i, one) for i, one in enumerate(seen)])
    counted = (
        "all"
        if all(one.counted for one in seen)
        else "total"
        if all(one.n_tokens for one in seen)
        else "none"
    )
    tables.note(frame.t(f"server.counted.{counted if all(one.streamed for one in seen) else 'whole'}"))
    index = 0
    if len(seen) > 1:
        names = [frame.t("server.nth", n=i + 1) for i in range(len(seen))]
        index = st.segmented_control(
            frame.t("server.which"),
            range(len(seen)),
            format_func=lambda i: names[i],
            key=_SHOWN,
            required=True,
            default=0,
        )
    one = seen[index or 0]
    components.mount(
        "latency_line", latency_data.observed_line(frame, f"server:{index}:{one.ended_s}", one), "server_line"
    )


def _row(frame: Frame, index: int, seen: Observation) -> list[Cell]:
    figures = latency.summarize(seen.request().events)
    n, first, last = seen.n_tokens, figures.ttft_s or 0.0, figures.e2e_s or 0.0
    tpot = (last - first) / (n - 1) if n and n > 1 and last > first else None
    tokens = frame.t("server.n_tokens", n=n) if n else frame.t("server.n_messages", n=len(seen.carrying))
    speed = f"{n / last:.1f}" if n and last else "–"
    values: list[Any] = [seen.connected_s, figures.ttft_s, figures.mean_itl_s, tpot, figures.e2e_s]
    shown = [Cell(seconds(value)) if value is not None else Cell("–") for value in values]
    return [Cell(frame.t("server.nth", n=index + 1), note=tokens), *shown, Cell(speed)]
