"""Mounting the project's own components (Streamlit components v2).

A component is a folder `assets/components/<name>/` with `index.html`, `style.css` and `main.js`. The shared style and
script (`shared.css`, `shared.js`) are put before each, so that all components have one palette and one player. Files
are read as text: paths would only work in an installed package. A component is registered once per process and again
only when one of its files changed.

Python computes, the browser animates: a page hands over its data once, and stepping, playing and dragging happen in
the browser. Big arrays go in as one-dimensional numpy arrays beside a dict (`data={"logits": array, "meta": {...}}`);
bytes inside a dict would silently become text, so nobody sends them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

ROOT = Path(__file__).resolve().parents[2] / "assets" / "components"
_log = logging.getLogger("otat")
_registered: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {}
_lock = threading.Lock()


def _files(name: str) -> tuple[Path, ...]:
    folder = ROOT / name
    return (
        folder / "index.html",
        ROOT / "shared.css",
        folder / "style.css",
        ROOT / "shared.js",
        folder / "main.js",
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _renderer(name: str) -> Callable[..., Any]:
    files = _files(name)
    stamp = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in files)
    with _lock:
        known = _registered.get(name)
        if known is None or known[0] != stamp:
            html, shared_css, css, shared_js, js = map(_read, files)
            # The line breaks matter: a text of one line would be taken for a path.
            made = st.components.v2.component(
                f"otat_{name}", html=f"\n{html}\n", css=f"{shared_css}\n{css}\n", js=f"{shared_js}\n{js}\n"
            )
            _registered[name] = known = (stamp, made)
    return known[1]


_LANGUAGE_JS = """
export default ({ data }) => {
  document.documentElement.lang = data[0];
};
"""


def set_document_language(lang: str) -> None:
    """Say in which language the page is; Streamlit's document says "en" whatever is on it.

    Voices, fonts and Japanese line breaks go by this. As the first component of a page it also makes the browser fetch
    Streamlit's code for components while Python still works: 0.1 s of the first paint.
    """
    with _lock:
        if "document" not in _registered:
            _registered["document"] = ((), st.components.v2.component("otat_document", js=_LANGUAGE_JS))
    with st.container(key="otat_document"):
        _registered["document"][1](data=[lang], key="otat_document_language")


def _guarded(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Anybody can send anything from a browser. What cannot be used changes nothing, and only the log hears of it."""

    def call() -> None:
        try:
            callback()
        except Exception:
            _log.exception("What the component %s sent could not be used", name)

    return call


def _last_number(key: str, name: str) -> int:
    value = (st.session_state.get(key) or {}).get(name)
    seq = value.get("seq") if isinstance(value, Mapping) else None
    return seq if isinstance(seq, int) else 0


def mount(
    name: str,
    data: Mapping[str, Any],
    key: str,
    *,
    default: Mapping[str, Any] | None = None,
    numbered: str = "",
    height: int | str = "content",
    width: int | str = "stretch",
    **callbacks: Callable[[], None],
) -> Any:
    """Show component `name` with `data`, under `key` (always needed: it is the component's identity).

    Returns the component's state: an attribute for each value it sent with `setStateValue` or `setTriggerValue`.
    A callback `on_<name>_change=…` is called when the state value `name` changes. A `default` needs the callback of
    each of its keys.

    `numbered` names a state value that the learner may change again before Python has answered: the component numbers
    its changes (`Agreement` in shared.js), and gets the number of the last one that arrived, as `seq` beside the data.
    """
    if numbered:
        data = {**data, "seq": _last_number(key, numbered)}
    options: dict[str, Any] = {"default": dict(default)} if default else {}
    has_arrays = any(hasattr(value, "dtype") for value in data.values())
    # To see whether a dict holds tables, Streamlit imports pandas and pyarrow: 0.4 s of the first paint. It does not
    # look into a list, so data without arrays travels in one; `opened()` in shared.js takes it out again.
    sent = dict(data) if has_arrays else [dict(data)]
    guarded = {event: _guarded(name, callback) for event, callback in callbacks.items()}
    return _renderer(name)(data=sent, key=key, height=height, width=width, **options, **guarded)
