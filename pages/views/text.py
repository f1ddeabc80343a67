"""Every sentence on screen, in the learner's language.

Prose lives in `assets/text/<language>/<page>.toml`, never in Python, so that a translator needs no code. A key is a
dotted path (`error.empty_prompt`), looked up in the page's own file first and then in `common.toml`. Results are never
typed into prose: a sentence holds {placeholders} and code fills them in.

What a learner typed, and what a model said, is untrusted. `Text.md` escapes such values for Markdown; anything that
becomes HTML goes through `html.escape` at the place where it is written.
"""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path

TEXT = Path(__file__).resolve().parents[2] / "assets" / "text"
LANGUAGES = ("en", "ja")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~$:^])")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:ms|s|B|[KMG]i?B)\b)")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@functools.lru_cache(maxsize=256)
def _read(path: Path, mtime_ns: int) -> dict[str, object]:
    # The time stamp is part of the key: an edited text shows on the next run, without a restart.
    return tomllib.loads(path.read_text(encoding="utf-8"))


def table(lang: str, page: str) -> dict[str, object]:
    """The whole text file of one page and language; empty where there is none."""
    path = TEXT / lang / f"{page}.toml"
    return _read(path, path.stat().st_mtime_ns) if path.exists() else {}


def _find(tree: dict[str, object], key: str) -> object:
    node: object = tree
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return None
        node = node[part]
    return node


def escape_markdown(value: object) -> str:
    """`value` as Markdown that shows exactly these characters, on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(value).split()))


class _Keep(dict[str, object]):
    # A forgotten placeholder shows as {name}: visible to an author, never a traceback for a learner.
    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


class Text:
    """Looks up and fills the sentences of one page in one language. `Text("ja", "tokens")("lead", n=4)`."""

    def __init__(self, lang: str, page: str) -> None:
        self.lang, self.page = lang, page

    def find(self, key: str) -> object:
        """The raw value of `key` (a string, list or table), or None. The page's file wins over `common.toml`."""
        for name in (self.page, "common"):
            found = _find(table(self.lang, name), key)
            if found is not None:
                return found
        return None

    def __call__(self, key: str, /, **values: object) -> str:
        """The sentence of `key` with its placeholders filled. A missing key is shown as itself."""
        found = self.find(key)
        text = found.strip() if isinstance(found, str) else key
        return text.format_map(_Keep(values)) if values else text

    def md(self, key: str, /, **values: object) -> str:
        """Like calling it, but the values are escaped, so that a prompt cannot turn into Markdown or a link."""
        filled = self(key, **{name: escape_markdown(value) for name, value in values.items()})
        return _BEFORE_UNIT.sub("\u00a0", filled)  # a line must not begin with a unit

    def group(self, key: str) -> dict[str, str]:
        """A table of sentences as a flat dict, for the labels of a component (`data["text"]`)."""
        found = self.find(key)
        return (
            {k: v.strip() for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
        )


def seconds(value_s: float) -> str:
    """A duration for people: `3.2 ms`, `87 ms`, `1.24 s`."""
    if value_s < 0.01:
        return f"{value_s * 1e3:.2g} ms"
    return f"{value_s * 1e3:.0f} ms" if value_s < 1 else f"{value_s:.2f} s"


def size(n_bytes: float) -> str:
    """A size in powers of 1024: `512 B`, `45.0 KiB`, `1.98 MiB`, `16.00 GiB`."""
    for unit, digits in (("B", 0), ("KiB", 1), ("MiB", 2)):
        if abs(n_bytes) < 1024:
            return f"{n_bytes:,.{digits}f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:,.2f} GiB"


def percent(fraction: float, digits: int = 1) -> str:
    """`26.0 %`"""
    return f"{fraction * 100:.{digits}f} %"


def tiny(value: float) -> str:
    """A very small number for people: `4.8×10⁻⁵`, and `0` for none."""
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}×10{str(int(power)).translate(_SUPERSCRIPT)}" if value else "0"


def visible(text: str) -> str:
    """A token's text with its invisible characters shown: a space as ·, a line break as ⏎, a tab as ⇥."""
    return text.replace("\r", "").replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"
