"""One settings object behind the URL.

A learner's settings (prompt, temperature, language …) must survive a page switch, a reload, the back button, and a
link sent to a friend. Streamlit forgets a widget's value when its page is left, so the values live here instead: one
`Settings` object per session. Parameters present in the URL win over it, unless the URL is only late (`pull`); widgets
are seeded from it and write to it and to the URL (controls.py); `page_frame()` writes the URL, non-default values
only, at the start of each page.

The values in the URL do not depend on the language. What comes from a URL is checked here, in Python, because anyone
can type anything there: a bad value becomes the default and one clear sentence.

A page adds settings of its own with `declare`, at the top of its file, before `page_frame()`:

    settings.declare("layer", 0, int, lambda layer: 0 <= layer < 30)
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import streamlit as st

MAX_NEW_TOKENS = 256
LATE_S = 3.0  # so long after a change the browser may still send the URL from before it
MAX_LINK_BYTES = 6_000  # a longer prompt stays in the session: servers and chat programs cut longer links
_NAME = re.compile(r"^[a-z][a-z0-9_]{0,31}$")
_KEY = "otat_settings"


@dataclass(frozen=True)
class Setting:
    """One setting: its default, how to read it from a URL, which values are allowed, and how to write it."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    check: Callable[[Any], bool] = lambda value: True
    write: Callable[[Any], str] = str

    def read(self, raw: str) -> Any:
        """The value in `raw`. Raises ValueError where it cannot be read or is not allowed."""
        value = self.parse(raw)
        if not _allowed(self, value):
            raise ValueError(self.name)
        return value


def flag(raw: str) -> bool:
    """Reads 1 / 0 (also true / false, on / off, yes / no)."""
    known = {
        "1": True,
        "true": True,
        "on": True,
        "yes": True,
        "0": False,
        "false": False,
        "off": False,
        "no": False,
    }
    return known[raw.strip().lower()]


def number(raw: str) -> float:
    """Reads a finite number."""
    value = float(raw)
    if not math.isfinite(value):
        raise ValueError(raw)
    return value


def _write_number(value: float) -> str:
    return f"{value:.10g}"


def _write_flag(value: bool) -> str:
    return "1" if value else "0"


def _writer(default: object) -> Callable[[Any], str]:
    if isinstance(default, bool):
        return _write_flag
    return _write_number if isinstance(default, float) else str


def one_of(*options: str) -> Callable[[object], bool]:
    """A check that allows exactly these values."""
    return lambda value: value in options


def between(low: float, high: float) -> Callable[[Any], bool]:
    """A check that allows low ≤ value ≤ high."""
    return lambda value: low <= value <= high


_DECLARED: dict[str, Setting] = {}


def declare(
    name: str,
    default: Any,
    parse: Callable[[str], Any] | None = None,
    check: Callable[[Any], bool] | None = None,
    write: Callable[[Any], str] | None = None,
) -> None:
    """Add a setting that lives in the URL as `name`. `parse` is guessed from the default where it is left out.

    Declaring it again (a page does so at every run) is free. Names are short, lower case, and shared by all pages.
    """
    if not _NAME.match(name):
        raise ValueError(f"“{name}” is no name for a setting: use lower-case letters, digits and _")
    guess: Callable[[str], Any] = (
        flag if isinstance(default, bool) else number if isinstance(default, float) else type(default)
    )
    _DECLARED[name] = Setting(
        name, default, parse or guess, check or (lambda value: True), write or _writer(default)
    )


DEFAULT_PROMPT = "What is gravity?"

declare("prompt", DEFAULT_PROMPT, str)
declare("system", "", str)  # empty: the one that the model's chat template brings along
declare("chat", True)
declare("temperature", 0.0, check=lambda t: t == 0 or 0.01 <= t <= 2)
declare("top_k", 0, int, between(0, 200))
declare("top_p", 1.0, check=between(0.01, 1))
declare("min_p", 0.0, check=between(0, 0.95))
declare("repetition_penalty", 1.0, check=between(1, 2))
declare("seed", 0, int, between(0, 2**31 - 1))
declare("max_tokens", 40, int, between(1, MAX_NEW_TOKENS))
declare("lang", "", str, one_of("", "en", "ja"))
declare("projector", False)
declare("step", -1, int, between(-1, 2_000))  # a pass of a run; a long prompt is read in several
declare("run", False)  # a link with run=1 replays the run in the session that opens it

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "max_tokens")


@dataclass
class Settings:
    """The settings of one session. `get` and `set` by name; `query()` is what belongs in the URL."""

    values: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)  # from the URL, for a page that was not opened yet
    rejected: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)  # the URL that was sent last
    replaced: dict[tuple[str, str], float] = field(default_factory=dict)  # (name, value in the URL) -> when

    def get(self, name: str) -> Any:
        """The value of a declared setting. KeyError for a name nobody declared (a programming mistake)."""
        if name in self.unread and name in _DECLARED:
            self._take(name, self.unread.pop(name))
        return self.values.get(name, _DECLARED[name].default)

    def set(self, name: str, value: Any) -> bool:
        """Store `value`. False, and nothing stored, where it is not allowed."""
        if not _allowed(_DECLARED[name], value):
            return False
        self.values[name] = value
        self.unread.pop(name, None)
        return True

    def pull(self, query: MutableMapping[str, str]) -> None:
        """Take over what the URL says. What cannot be used is remembered in `rejected` and left out.

        With each message the browser sends the URL as it stands there, which may be from before a change that it has
        not heard of yet. So what was just replaced is not taken back; later it is: somebody went Back in the browser.
        """
        now = time.monotonic()
        for name in list(query):
            if not _NAME.match(name) or now - self.replaced.get((name, query[name]), -math.inf) < LATE_S:
                continue
            if name in _DECLARED:
                self._take(name, query[name])
            elif len(query[name]) <= MAX_LINK_BYTES and len(self.unread) < 40:
                self.unread[name] = query[name]

    def _take(self, name: str, raw: str) -> None:
        try:
            self.values[name] = _DECLARED[name].read(raw)
        except (ValueError, KeyError, OverflowError, TypeError):
            self.rejected.append(name)

    def query(self) -> dict[str, str]:
        """The URL parameters of this session: non-default values only, independent of the language."""
        written = {name: raw for name, raw in self._changed() if len(quote(raw)) <= MAX_LINK_BYTES}
        return {**self.unread, **written}

    def too_long_for_link(self) -> bool:
        """True where a text is too long to travel in a link (it stays in this session)."""
        return any(len(quote(raw)) > MAX_LINK_BYTES for _, raw in self._changed())

    def _changed(self) -> Iterator[tuple[str, str]]:
        for name, value in self.values.items():
            setting = _DECLARED[name]
            if value != setting.default:
                yield name, setting.write(value)


def _allowed(setting: Setting, value: Any) -> bool:
    try:
        if isinstance(value, str):
            value.encode("utf-8")  # half a surrogate pair, which JSON can hold, fits into no URL and no page
        return bool(setting.check(value))
    except (TypeError, ValueError):
        return False


def current() -> Settings:
    """The settings object of this session."""
    if _KEY not in st.session_state:
        st.session_state[_KEY] = Settings()
    found: Settings = st.session_state[_KEY]
    return found


def write_url(settings: Settings) -> None:
    """Make the URL say what the settings say; nothing is sent where it already does."""
    wanted, before = settings.query(), st.query_params.to_dict()
    if before != wanted:
        now = time.monotonic()
        settings.replaced = {old: when for old, when in settings.replaced.items() if now - when < LATE_S}
        for old in (*before.items(), *settings.written.items()):
            settings.replaced[old] = now
        for kept in wanted.items():
            settings.replaced.pop(kept, None)
        settings.written = wanted
        st.query_params.from_dict(wanted)
