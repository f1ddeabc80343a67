"""Widgets that write to the one settings object.

Each control reads its value from `frame.settings`, shows the label `control.<name>` (and `control.<name>_help`) of the
page's or the common text, and writes the new value back to the settings and the URL when it changes. So a value is the
same on every page, survives reload and back, and travels in a copied link.

    controls.slider(frame, "temperature", 0.0, 2.0, 0.05)
    layer = controls.select(frame, "layer", range(30))

Call them wherever the widget should appear (inside a column, a popover …). They return the checked value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import streamlit as st

from pages.views import settings as settings_module

if TYPE_CHECKING:
    from pages.views.frame import Frame


def _commit(name: str, key: str) -> None:
    settings = settings_module.current()
    value = st.session_state.get(key)
    settings.rejected.clear()
    if value is None or not settings.set(name, value):
        settings.rejected.append(
            name
        )  # page_frame() shows the sentence; the widget goes back to the last good value
    settings_module.write_url(settings)


def _prepare(frame: Frame, name: str, wanted: Any = None) -> dict[str, Any]:
    key = f"ctl_{frame.page}_{name}"
    wanted = frame.settings.get(name) if wanted is None else wanted
    # Before the widget is made: the settings win over what the widget remembers. Where both agree nothing is written:
    # what is written travels to the browser, and would undo what a quick hand has done there in the meantime.
    if st.session_state.get(key) != wanted:
        st.session_state[key] = wanted
    help_text = frame.t.find(f"control.{name}_help")
    return {
        "label": frame.t(f"control.{name}"),
        "help": help_text.strip() if isinstance(help_text, str) else None,
        "key": key,
        "on_change": _commit,
        "args": (name, key),
    }


def slider(frame: Frame, name: str, low: float, high: float, step: float, **options: Any) -> Any:
    """A slider over [low, high]. Give low, high and step the type of the setting (all int or all float).

    A value outside (from a link, or of a model with more layers) is moved to the nearer end, so that a page can use it.
    """
    value = min(max(frame.settings.get(name), low), high)
    st.slider(min_value=low, max_value=high, step=step, **_prepare(frame, name, value), **options)
    return value


def number(frame: Frame, name: str, low: float, high: float, step: float = 1, **options: Any) -> Any:
    """A number box, for values that are typed rather than dragged (a seed, a context length)."""
    st.number_input(min_value=low, max_value=high, step=step, **_prepare(frame, name), **options)
    return frame.settings.get(name)


def toggle(frame: Frame, name: str, **options: Any) -> bool:
    """An on/off switch."""
    st.toggle(**_prepare(frame, name), **options)
    return bool(frame.settings.get(name))


def select(
    frame: Frame, name: str, options: Sequence[Any], show: Callable[[Any], str] | None = None, **more: Any
) -> Any:
    """One of `options`. Up to five are shown side by side, more in a list. Values must not depend on the language.

    Labels come from `show(option)`, else from the text key `control.<name>_option.<option>`, else from the value.
    """
    choices = list(options)
    value = frame.settings.get(name)
    if choices and value not in choices:
        value = choices[0]
    common = _prepare(frame, name, value)

    def label(option: Any) -> str:
        found = frame.t.find(f"control.{name}_option.{option}")
        return show(option) if show else found if isinstance(found, str) else str(option)

    if len(choices) <= 5:
        st.segmented_control(options=choices, format_func=label, required=True, **common, **more)
    else:
        st.selectbox(options=choices, format_func=label, **common, **more)
    return value


def text(frame: Frame, name: str, *, area: bool = False, max_chars: int | None = None, **options: Any) -> str:
    """A line of text, or a box of several lines with `area=True`."""
    make = st.text_area if area else st.text_input
    make(max_chars=max_chars, **_prepare(frame, name), **options)
    return str(frame.settings.get(name))
