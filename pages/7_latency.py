"""Slow to start, or slow to go on? The moments of one run, and what people call the times between them."""

from __future__ import annotations

import streamlit as st

from core import latency
from pages.views import components, controls, endpoint_box, latency_data, long_prompt, settings, tables
from pages.views.frame import page_frame

latency_data.declare()
RUN, CARD = "latency_run", "latency_card"


def keep_network() -> None:
    """The simulated delay was changed on the time line."""
    now = settings.current()
    now.set("net", int(st.session_state[RUN].network["network_ms"]))
    settings.write_url(now)


def keep_card() -> None:
    """A moment of the card was moved, added or taken away."""
    moments, now = st.session_state[CARD].moments, settings.current()
    now.set("moments", latency_data.write_card(moments["admitted"], moments["tokens"]))
    settings.write_url(now)


frame = page_frame("latency")
with frame.errors():
    events = latency.events_of(frame.trace)
    network_s = frame.settings.get("net") / 1000
    latency_data.surprise(frame, latency.summarize(events))
    line = latency_data.run_line(frame, frame.trace)
    components.mount("latency_line", line, RUN, numbered="network", on_network_change=keep_network)
    left, right = st.columns(2, gap="medium")
    with left:
        latency_data.question(frame, events)
    with right:
        latency_data.myth_ttft(frame, latency.summarize(events))

    st.header(frame.t("card.title"), anchor=False)
    st.markdown(frame.t("card.lead"))
    card = latency_data.card_line(frame)
    components.mount("latency_line", card, CARD, numbered="moments", on_moments_change=keep_card)
    frame.try_this(frame.md("try.card"))

    st.header(frame.t("tools.title"), anchor=False)
    st.markdown(frame.t("tools.lead"))
    one, other = st.columns(2, gap="medium")
    with one:
        bundle = controls.slider(frame, "bundle", 1, 8, 1)
    with other:
        two = controls.toggle(frame, "two")
    seen = latency_data.requests(events, bundle, two, network_s)
    latency_data.spread(frame, seen)
    latency_data.tools_table(frame, seen)
    tables.note(frame.t("tools.note"))
    left, right = st.columns(2, gap="medium")
    with left:
        frame.myth(frame.md("belief.itl"))
    with right:
        latency_data.try_bundles(frame, events)

    st.header(frame.t("long.title"), anchor=False)
    long_prompt.section(frame)

with frame.errors():
    st.header(frame.t("server.title"), anchor=False)
    st.markdown(frame.t("server.lead"))
    endpoint_box.section(frame)
frame.next_page()
