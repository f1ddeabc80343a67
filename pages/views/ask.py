"""Where a learner asks: the prompt, Run and Stop, and the settings of a run.

The prompt and its button are one form, so that Enter runs it. The text stays in the box whatever happens. A refused
prompt becomes a sentence under it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import streamlit as st

from core.errors import ExplainerError
from pages.views import controls, live
from pages.views import settings as settings_module

if TYPE_CHECKING:
    from pages.views.frame import Frame


def _submit(key: str) -> None:
    settings = settings_module.current()
    settings.rejected.clear()
    before, typed = settings.get("prompt"), st.session_state[key]
    settings.set("prompt", typed)
    if _has_lines(typed) == _has_lines(before):  # the box stays, and what was typed into it since must stay there
        st.session_state[f"{key}_seen"] = typed
    live.ask()


def _has_lines(prompt: str) -> bool:
    return "\n" in prompt


def prompt_row(frame: Frame) -> None:
    """The prompt, Run, and the settings."""
    key = f"ask_{frame.page}_prompt"
    wanted = frame.settings.get("prompt")
    if st.session_state.get(f"{key}_seen") != wanted or key not in st.session_state:
        # Only when the setting itself changed: a text that was typed but not run yet stays in the box.
        st.session_state[key] = st.session_state[f"{key}_seen"] = wanted
    with st.container(key="otat_ask", horizontal=True, vertical_alignment="bottom"):
        with st.form("ask_form", border=False), st.container(key="otat_ask_form", horizontal=True):
            make = st.text_area if _has_lines(wanted) else st.text_input
            make(
                frame.t("control.prompt"), key=key, label_visibility="collapsed",
                placeholder=frame.t("ask.placeholder"), max_chars=live.MAX_CHARACTERS,
            )  # fmt: skip
            st.form_submit_button(
                frame.t("ask.run"), type="primary", icon=":material/play_arrow:", on_click=_submit, args=(key,),
                key="ask_run",
            )  # fmt: skip
        with st.popover(frame.t("ask.settings"), icon=":material/tune:", key="ask_settings", width="content"):
            settings_panel(frame)


def settings_panel(frame: Frame) -> None:
    """All settings of a run. Each is in the URL."""
    controls.toggle(frame, "chat")
    controls.text(
        frame, "system", area=True, height=90, disabled=not frame.settings.get("chat"), max_chars=2_000
    )
    controls.slider(frame, "temperature", 0.0, 2.0, 0.05)
    controls.slider(frame, "top_k", 0, 200, 1)
    controls.slider(frame, "top_p", 0.01, 1.0, 0.01)
    controls.slider(frame, "min_p", 0.0, 0.95, 0.01)
    controls.slider(frame, "repetition_penalty", 1.0, 2.0, 0.05)
    controls.number(frame, "seed", 0, 2**31 - 1)
    controls.slider(frame, "max_tokens", 1, settings_module.MAX_NEW_TOKENS, 1)


def line_above(frame: Frame, otherwise: Callable[[], None]) -> None:
    """What the learner should know first: a refusal, the state of the run, else what `otherwise` shows."""
    failure = live.error()
    if failure is not None:
        st.error(frame.explain(failure), icon=":material/info:")
    if frame.settings.too_long_for_link():
        st.caption(frame.t("url.too_long"))
    if not state_line(frame):
        otherwise()


def state_line(frame: Frame) -> bool:
    """One line above the stage: what the run is doing, with Stop; or what would make it new. False: nothing to say."""
    run = frame.run
    if live.is_wanted():
        _line(frame, frame.t("ask.soon"), stop=True)
    elif run is not None and not run.is_over:
        _line(frame, live.run_words(frame, run), stop=True)
    elif run is not None and run.error is None and _differs(frame):
        _line(frame, frame.t("ask.changed"))
    else:
        return False
    return True


def _line(frame: Frame, words: str, stop: bool = False) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="otat_state"):
        st.caption(words)
        if stop:
            st.button(frame.t("ask.stop"), icon=":material/stop:", on_click=live.stop, key="ask_stop")


def _differs(frame: Frame) -> bool:
    run, settings = frame.run, frame.settings
    if run is None:
        return False
    try:
        same = run.request.params == live.params_of(settings)
    except ExplainerError:
        return True
    asked = (run.request.prompt, run.request.chat, run.request.system)
    return not same or asked != (settings.get("prompt"), settings.get("chat"), settings.get("system"))
