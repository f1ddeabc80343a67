"""What the latency page shows: the run's moments, an editable card of moments, and what each tool would
report."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from core import latency
from core.errors import InvalidSettingError
from core.latency import Definition, Events, Request, Summary
from pages.views import settings as settings_module
from pages.views import tables
from pages.views.tables import Cell
from pages.views.text import seconds

if TYPE_CHECKING:
    from core.openai_stream import Observation
    from core.trace import Trace
    from pages.views.frame import Frame

CARD = "0,0.5,0.6,0.72,0.81"  # prefill starts, then the tokens: the worked example of the tests
MAX_MOMENTS = 13
TRY_BUNDLE = 4  # tokens per message in the experiment
SHORT = 4  # tokens of the second, shorter request in the table


def declare() -> None:
    """The page's settings, all in the URL. A server's address and key are none of them, on purpose."""
    settings_module.declare("net", 0, int, settings_module.between(0, 500))
    settings_module.declare("moments", CARD, str, is_card)
    settings_module.declare("bundle", 1, int, settings_module.between(1, 8))
    settings_module.declare("two", False)


# ---- moments -----------------------------------------------------------------------------------------------


def read_card(raw: str) -> Events:
    """The moments of a link. Raises ValueError or InvalidSettingError for anything that is no row of
    moments."""
    moments = [float(part) for part in raw.split(",")]
    if not 1 <= len(moments) <= MAX_MOMENTS or any(not 0 <= m <= 1000 for m in moments):
        raise ValueError(raw)
    return Events(0.0, moments[0], tuple(moments[1:]))


def is_card(raw: object) -> bool:
    """Can `raw` be read as a card?"""
    try:
        read_card(str(raw))
    except (ValueError, InvalidSettingError):
        return False
    return True


def write_card(admitted: float, tokens: list[float]) -> str:
    """The moments for a link, to the millisecond."""
    return ",".join(f"{moment:.3f}".rstrip("0").rstrip(".") or "0" for moment in (admitted, *tokens))


def _words(frame: Frame) -> dict[str, str]:
    return frame.t.group("stage") | frame.t.group("line")


def run_line(frame: Frame, trace: Trace) -> dict[str, Any]:
    """The run's own time line."""
    events = latency.events_of(trace)
    return {
        "mode": "run", "id": f"{trace.created}:{events.n_tokens}", "unit": "token", "kind": "measured",
        "admitted": events.admitted_s, "tokens": list(events.token_s),
        "labels": [[token.text, token.bytes.hex()] for token in trace.answer_tokens],
        "network_ms": frame.settings.get("net"), "lang": frame.lang, "text": _words(frame),
    }  # fmt: skip


def card_line(frame: Frame) -> dict[str, Any]:
    """The card whose moments can be moved."""
    events = read_card(frame.settings.get("moments"))
    return {
        "mode": "card", "id": "card", "unit": "token", "kind": "computed",
        "admitted": events.admitted_s, "tokens": list(events.token_s), "labels": [], "network_ms": 0,
        "lang": frame.lang, "text": _words(frame) | {"aria": frame.t("line.aria_card")},
    }  # fmt: skip


def observed_line(frame: Frame, name: str, seen: Observation) -> dict[str, Any]:
    """A server's answer as its client saw it. Moments are messages, unless the server counted one token in
    each."""
    single = seen.counted and all(m.n_tokens == 1 for m in seen.carrying)
    words = _words(frame)
    if not single:
        words |= {"token_n": words["message_n"], "n_of": words["n_of_messages"]}
    return {
        "mode": "run", "id": name, "unit": "message", "kind": "measured",
        "admitted": 0.0, "tokens": [m.time_s for m in seen.carrying],
        "labels": [[m.text, m.text.encode().hex()] for m in seen.carrying],
        "network_ms": 0, "lang": frame.lang, "text": words,
    }  # fmt: skip


# ---- sentences ---------------------------------------------------------------------------------------------


def surprise(frame: Frame, figures: Summary) -> None:
    """The first token took as long as how many of the others?"""
    if figures.ttft_s and figures.median_itl_s and figures.e2e_s:
        ratio = figures.ttft_s / figures.median_itl_s
        frame.surprise(
            frame.md(
                "surprise",
                ttft=seconds(figures.ttft_s),
                ratio=f"{ratio:.1f}",
                e2e=seconds(figures.e2e_s),
                share=f"{100 * figures.ttft_s / figures.e2e_s:.0f}",
            )
        )


def question(frame: Frame, events: Events) -> None:
    """What does a slower network do to the gaps between tokens?"""
    slow = 0.2
    near, far = latency.summarize(events), latency.summarize(events, network_s=slow)
    if near.mean_itl_s is None or far.ttft_s is None or near.ttft_s is None:
        return
    options = [frame.t(f"predict.{name}") for name in ("longer", "share", "same")]
    values = {
        "near": seconds(near.ttft_s),
        "far": seconds(far.ttft_s),
        "itl": seconds(near.mean_itl_s),
    }
    frame.predict("network", frame.t("predict.q", ms=200), options, 2, frame.md("predict.why", **values))


def myth_ttft(frame: Frame, figures: Summary) -> None:
    """TTFT is more than prefill: this run's split, and how to move it."""
    if figures.split is not None:
        queue, prefill = seconds(figures.split.queue_s), seconds(figures.split.prefill_s)
        frame.myth(frame.md("belief.ttft", queue=queue, prefill=prefill))


# ---- tools -------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def definitions() -> tuple[Definition, ...]:
    """The table of tools (assets/data/latency_definitions.toml)."""
    return latency.definitions()


def requests(events: Events, bundle: int, two: bool, network_s: float) -> list[Request]:
    """What the tools look at: this run as its client sees it, and, if wanted, the same run stopped early."""
    found = [latency.request_of(events, bundle, network_s)]
    if two:
        found.append(latency.request_of(latency.first_tokens(events, SHORT), bundle, network_s))
    return found


def range_of(seen: list[Request]) -> tuple[float, float] | None:
    """The smallest and the largest “time per token” that the tools would report."""
    reports = [row.report(seen) for row in definitions() if row.first_token != "only"]
    known = [value for value in reports if value is not None]
    return (min(known), max(known)) if known else None


def tools_table(frame: Frame, seen: list[Request]) -> None:
    """What each tool would report for these requests."""
    reports = [(row, row.report(seen)) for row in definitions()]
    longest = max((value for _, value in reports if value is not None), default=1.0) or 1.0
    most = (range_of(seen) or (0.0, 1.0))[1] or 1.0
    head = [frame.t(f"tools.{name}") for name in ("tool", "formula", "counts", "here")]
    rows = [[*_words_of(frame, row), _value(row, value, longest, most)] for row, value in reports]
    tables.show(frame.t("tools.title"), head, rows, n_left=3, stack=True)


def _words_of(frame: Frame, row: Definition) -> list[Cell]:
    counts = frame.t(f"tools.first.{row.first_token}"), frame.t(f"tools.weight.{row.weight}")
    clock = frame.t(f"tools.clock.{row.clock}")
    return [
        Cell(row.figure, note=row.tool, href=row.source),
        Cell(frame.t(f"tools.formula_of.{row.function}"), css="mono"),
        Cell(counts[0], note=f"{counts[1]} · {clock}"),
    ]


def _value(row: Definition, value: float | None, longest: float, most: float) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("–")
    if row.first_token == "only":
        return Cell(milliseconds(value), bar=value / longest, css="first")
    return Cell(milliseconds(value), bar=value / most)


def milliseconds(value_s: float) -> str:
    """A time to a tenth of a millisecond: small differences are the point here."""
    return f"{value_s * 1e3:,.1f} ms"


def spread(frame: Frame, seen: list[Request]) -> None:
    """How far apart the answers to “how long does a token take?” are."""
    values = _spread_words(seen)
    if values:
        frame.surprise(frame.md("tools.spread", **values))


def try_bundles(frame: Frame, events: Events) -> None:
    """The same run behind a server that bundles tokens, averaged with a short answer."""
    values = _spread_words(requests(events, TRY_BUNDLE, True, 0.0))
    if values:
        frame.try_this(frame.md("try.tools", n=TRY_BUNDLE, **values))


def _spread_words(seen: list[Request]) -> dict[str, str] | None:
    ends = range_of(seen)
    if ends is None or ends[0] <= 0:
        return None
    return {"low": milliseconds(ends[0]), "high": milliseconds(ends[1]), "times": f"{ends[1] / ends[0]:.1f}"}
