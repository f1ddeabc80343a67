"""How much memory do the tokens take? Any model, any context, and what an engine really holds."""

from __future__ import annotations

import streamlit as st

from pages.views import components, kv_memory_data, kv_memory_words, settings
from pages.views.frame import page_frame

kv_memory_data.declare()
KEY = "kv_calculator"


def keep_settings() -> None:
    """A slider was let go, a model chosen: remember it, and put it into the link."""
    now = settings.current()
    kv_memory_data.take_view(now, st.session_state[KEY].settings)
    settings.write_url(now)


def take_file() -> None:
    """The browser has read a dropped file."""
    kv_memory_words.use_file(st.session_state[KEY].file)


frame = page_frame("kv_memory")
with frame.errors():
    kv_memory_words.surprise(frame)
    answered = kv_memory_words.question(frame)
    data = kv_memory_data.component(frame.settings, frame.trace.spec)
    data |= {"lang": frame.lang, "text": frame.t.group("calc"), "revealed": answered}
    data["revision"] = st.session_state.get("mem_revision", 0)
    components.mount(
        KEY, data, KEY, numbered="settings", on_settings_change=keep_settings, on_file_change=take_file
    )
    kv_memory_words.paste_box(frame)
    left, right = st.columns(2, gap="medium")
    with left:
        frame.myth(frame.md("myth_heads", **kv_memory_words.example()))
        frame.myth(frame.t("myth_quantized"))
    with right:
        frame.try_this(frame.md("try_window", **kv_memory_words.window_example()))
        frame.try_this(frame.md("try_heads", **kv_memory_words.example()))
    kv_memory_words.reality(frame)
    kv_memory_words.log_box(frame)
frame.next_page()
