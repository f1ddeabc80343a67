"""What moves on the screen? Tokens, messages and characters, each with a clock of its own."""

from __future__ import annotations

import streamlit as st

from core import latency, streaming
from core.streaming import RecordedStream
from pages.views import components, controls, settings, streaming_data, tables
from pages.views.frame import Frame, page_frame
from pages.views.tables import Cell
from pages.views.text import seconds

streaming_data.declare()
KEY = "streaming_lanes"
BUNDLE = 8  # tokens per message in the experiment


def keep_controls() -> None:
    """The learner has set something in the component: remember it, and put it into the link."""
    streaming_data.keep(settings.current(), st.session_state[KEY].controls)


def surprise(frame: Frame, shown: RecordedStream) -> None:
    """The last character's moment does not depend on how the answer is shown; the first one's does."""
    plain = {"send": "token", "n": 1, "ms": 100, "delay": 0, "jitter": 0, "cps": 40}
    ways = {way: (first, last) for way, first, last in streaming_data.three_ways(shown, plain)}
    if ways:
        first, last = ways["asis"]
        frame.surprise(
            frame.md("surprise", first=seconds(first), last=seconds(last), wait=seconds(last - first))
        )


def question(frame: Frame) -> None:
    """Does showing it in one piece help?"""
    options = [frame.t(f"predict.{name}") for name in ("earlier", "same", "later")]
    frame.predict("one_piece", frame.t("predict.q"), options, 1, frame.md("predict.why"))


def ways(frame: Frame, shown: RecordedStream) -> None:
    """The same messages, drawn in three ways."""
    chosen = streaming_data.controls(frame.settings)
    rows = streaming_data.three_ways(shown, chosen)
    end = max((last for _, _, last in rows), default=1.0)
    kind = frame.t("kind.simulated" if chosen["delay"] or chosen["jitter"] else "kind.computed")
    head = [frame.t("ways.draw"), f"{frame.t('ways.first')} · {kind}", f"{frame.t('ways.last')} · {kind}"]
    cells = [
        [
            Cell(frame.t(f"lanes.draw_{way}")),
            Cell(seconds(first), bar=first / end),
            Cell(seconds(last), bar=last / end),
        ]
        for way, first, last in rows
    ]
    tables.show(frame.t("ways.title"), head, cells)


def halves(frame: Frame, shown: RecordedStream) -> None:
    """How many tokens of this answer are only part of a character."""
    waiting = streaming.waiting_tokens(shown.emissions)
    if any(waiting):
        longest = max(m.n_tokens for m in streaming.messages_every_tokens(shown.emissions))
        frame.try_this(frame.md("try.halves", n=sum(waiting), all=len(waiting), longest=longest))
    else:
        frame.try_this(frame.md("try.no_halves", all=len(waiting)))


def bundles(frame: Frame, shown: RecordedStream) -> None:
    """The gap between messages is not the gap between tokens."""
    itl = latency.mean(latency.gaps_s([e.time_s for e in shown.emissions]))
    sent = streaming.messages_every_tokens(shown.emissions, BUNDLE)
    gap = latency.mean(latency.gaps_s([m.sent_s for m in sent]))
    if itl is not None and gap is not None:
        frame.try_this(frame.md("try.bundle", n=BUNDLE, gap=seconds(gap), itl=seconds(itl)))


frame = page_frame("streaming")
with frame.errors():
    name = frame.settings.get("stream")
    shown = streaming_data.stream(name, frame.trace)
    surprise(frame, shown)
    controls.select(frame, "stream", streaming_data.STREAMS)
    if name != "run":
        tables.note(frame.t("recorded", prompt=shown.prompt, machine=shown.machine))
    data = streaming_data.component_data(frame, name, shown)
    components.mount(KEY, data, KEY, numbered="controls", on_controls_change=keep_controls)
    left, right = st.columns(2, gap="medium")
    with left:
        question(frame)
        frame.myth(frame.md("belief.moving"))
        st.header(frame.t("ways.title"), anchor=False)
        ways(frame, shown)
        tables.note(frame.t("ways.note"))
    with right:
        frame.myth(frame.md("belief.gap"))
        bundles(frame, shown)
        halves(frame, shown)
        frame.link("latency", frame.t("to_latency"), icon=":material/arrow_forward:")
frame.next_page()
