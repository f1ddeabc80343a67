"""Latency: what the waiting of one answer is made of, and what people call its parts.

A request is sent, waits in a queue, is read (prefill, which also chooses the first token), and is then
answered one token per pass. Everything that is reported about its speed comes from these few moments:

    submitted ── queue ── admitted ── prefill ── first token ── gap ── token ── gap ── … ── last token

TTFT, time to first token: from submitted to the first token. It holds the queue, the prefill and, for a
client, the network, so “TTFT 2 s” does not say that prefill took 2 s. ITL, inter-token latency: the gaps
between neighbouring tokens (n tokens have n - 1 gaps). TPOT, time per output token: for most, (E2E - TTFT) /
(n - 1), the mean gap; for some, E2E / n, which counts the first token's wait too. E2E: from submitted to the
last token. Tools differ in just this, in whether they look at tokens or at the messages that carry them, and
in whether a long answer counts more than a short one. `TOOLS` has one function per definition, so that a page
can show what each would report for the same run.

All times are seconds on one clock. Figures that do not exist (the gaps of a single token) are None, never 0.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import InvalidSettingError

if TYPE_CHECKING:
    from core.trace import Trace

DEFINITIONS_PATH = Path(__file__).resolve().parent.parent / "assets" / "data" / "latency_definitions.toml"


# ---- the moments of one request ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Events:
    """When things happened to one request, in seconds on one clock.

    `admitted_s` is the start of its prefill; `token_s` holds one moment per answer token, in order (it may be
    empty). Raises InvalidSettingError when a moment is not a number, is negative, or comes before the one it
    must follow.
    """

    submitted_s: float
    admitted_s: float
    token_s: tuple[float, ...]

    def __post_init__(self) -> None:
        check_times("submitted", (self.submitted_s,))
        check_times("times", (self.submitted_s, self.admitted_s, *self.token_s))

    @property
    def n_tokens(self) -> int:
        return len(self.token_s)


def check_times(
    name: str, times: Sequence[float], allowed: str = "times in order, in seconds from 0 on"
) -> None:
    """Raise InvalidSettingError unless `times` are finite, not negative and never go back."""
    previous = 0.0
    for time in times:
        if not isinstance(time, (int, float)) or not math.isfinite(time) or time < previous:
            raise InvalidSettingError(name=name, value=time, allowed=allowed)
        previous = time


def events_from_times(
    token_s: Iterable[float], *, submitted_s: float = 0.0, admitted_s: float | None = None
) -> Events:
    """Events of a request of which only the token times are known: no queue unless `admitted_s` is given."""
    return Events(submitted_s, submitted_s if admitted_s is None else admitted_s, tuple(token_s))


def events_of(trace: Trace) -> Events:
    """The events of a recorded or live run (`submitted` is its zero)."""
    return Events(0.0, float(trace.admitted_s), tuple(float(step.ended_s) for step in trace.choice_steps))


# ---- the figures -------------------------------------------------------------------------------------------


def ttft_s(events: Events) -> float | None:
    """Time to first token: first token - submitted. None without a token."""
    return events.token_s[0] - events.submitted_s if events.token_s else None


def e2e_s(events: Events) -> float | None:
    """End-to-end latency: last token - submitted. None without a token."""
    return events.token_s[-1] - events.submitted_s if events.token_s else None


def gaps_s(times: Sequence[float]) -> tuple[float, ...]:
    """Inter-token latencies: the n - 1 gaps between n moments."""
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))


def tpot_s(events: Events) -> float | None:
    """Time per output token after the first: (E2E - TTFT) / (n - 1). None below two tokens."""
    if events.n_tokens < 2:
        return None
    return (events.token_s[-1] - events.token_s[0]) / (events.n_tokens - 1)


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which `percent` of the values lie, with straight lines between neighbours (numpy's
    default)."""
    if not 0.0 <= percent <= 100.0:
        raise InvalidSettingError(name="percentile", value=percent, allowed="a number from 0 to 100")
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100.0
    low = min(int(place), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def tokens_per_s(events: Events) -> float | None:
    """Answer tokens by the whole wait: n / E2E. What the reader of a finished answer experienced."""
    total = e2e_s(events)
    return events.n_tokens / total if total else None


def decode_tokens_per_s(events: Events) -> float | None:
    """Answer tokens by the time of writing alone: 1 / TPOT. What a reader sees once the answer moves."""
    per_token = tpot_s(events)
    return 1.0 / per_token if per_token else None


@dataclass(frozen=True)
class Split:
    """What TTFT is made of, in seconds. `network_s` is 0 for a clock that stands beside the model."""

    queue_s: float
    prefill_s: float
    network_s: float

    @property
    def total_s(self) -> float:
        return self.queue_s + self.prefill_s + self.network_s


def split_ttft(events: Events, network_s: float = 0.0) -> Split | None:
    """Queue, prefill and network parts of the TTFT. `network_s` is the way there and back, in seconds
    (simulated here)."""
    check_times("network", (network_s,), "a delay in seconds, 0 or more")
    if not events.token_s:
        return None
    queue = events.admitted_s - events.submitted_s
    return Split(queue, events.token_s[0] - events.admitted_s, network_s)


@dataclass(frozen=True)
class Summary:
    """All figures of one request, in seconds and tokens per second; None where a figure does not exist."""

    n_tokens: int
    ttft_s: float | None
    e2e_s: float | None
    tpot_s: float | None
    gaps_s: tuple[float, ...]
    mean_itl_s: float | None
    median_itl_s: float | None
    p95_itl_s: float | None
    tokens_per_s: float | None
    decode_tokens_per_s: float | None
    split: Split | None


def summarize(events: Events, network_s: float = 0.0) -> Summary:
    """Every figure of one request. A network delay moves TTFT and E2E alike and leaves the gaps as they
    are."""
    first, last, gaps = ttft_s(events), e2e_s(events), gaps_s(events.token_s)
    total = None if last is None else last + network_s
    return Summary(
        n_tokens=events.n_tokens,
        ttft_s=None if first is None else first + network_s,
        e2e_s=total,
        tpot_s=tpot_s(events),
        gaps_s=gaps,
        mean_itl_s=mean(gaps),
        median_itl_s=percentile(gaps, 50),
        p95_itl_s=percentile(gaps, 95),
        tokens_per_s=events.n_tokens / total if total else None,
        decode_tokens_per_s=decode_tokens_per_s(events),
        split=split_ttft(events, network_s),
    )


# ---- what tools report -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrival:
    """One message of a stream as its client saw it: when it came (seconds, same clock) and how many tokens it
    held."""

    time_s: float
    n_tokens: int


@dataclass(frozen=True)
class Request:
    """One request as the server saw it (`events`) and as its client did (`arrivals`, in order)."""

    events: Events
    arrivals: tuple[Arrival, ...]

    def __post_init__(self) -> None:
        check_times("arrivals", (self.events.submitted_s, *(a.time_s for a in self.arrivals)))
        if any(arrival.n_tokens < 1 for arrival in self.arrivals):
            raise InvalidSettingError(name="arrivals", value=0, allowed="messages of at least one token")

    @property
    def n(self) -> int:
        return sum(arrival.n_tokens for arrival in self.arrivals)

    @property
    def first_s(self) -> float:
        """Wait of the client for its first message."""
        return self.arrivals[0].time_s - self.events.submitted_s

    @property
    def last_s(self) -> float:
        """Wait of the client for its last message."""
        return self.arrivals[-1].time_s - self.events.submitted_s

    @property
    def gaps(self) -> tuple[tuple[float, int], ...]:
        """(seconds since the message before, tokens it brought) of every message but the first."""
        between = gaps_s([arrival.time_s for arrival in self.arrivals])
        return tuple((gap, a.n_tokens) for gap, a in zip(between, self.arrivals[1:], strict=True))


def request_of(events: Events, tokens_per_message: int = 1, network_s: float = 0.0) -> Request:
    """The client's view when a server sends a message every `tokens_per_message` tokens, `network_s` seconds
    away."""
    if tokens_per_message < 1:
        raise InvalidSettingError(name="tokens_per_message", value=tokens_per_message, allowed="1 or more")
    arrivals = []
    for start in range(0, events.n_tokens, tokens_per_message):
        bundle = events.token_s[start : start + tokens_per_message]
        arrivals.append(Arrival(bundle[-1] + network_s, len(bundle)))
    return Request(events, tuple(arrivals))


def first_tokens(events: Events, n: int) -> Events:
    """The same request, had it stopped after its first `n` tokens (their times would have been the same)."""
    return Events(events.submitted_s, events.admitted_s, events.token_s[:n])


def client_ttft(requests: Sequence[Request]) -> float | None:
    """First message - request sent; one value per request."""
    return mean([r.first_s for r in requests if r.arrivals])


def scheduled_ttft(requests: Sequence[Request]) -> float | None:
    """First token - admitted, on the server's clock: the queue is left out."""
    return mean([r.events.token_s[0] - r.events.admitted_s for r in requests if r.events.token_s])


def after_first(requests: Sequence[Request]) -> float | None:
    """(E2E - TTFT) / (n - 1) of each request, then the mean: a short answer weighs as much as a long one."""
    return mean([(r.last_s - r.first_s) / (r.n - 1) for r in requests if r.n > 1])


def message_gaps(requests: Sequence[Request]) -> float | None:
    """Gaps between messages, however many tokens they hold, of all requests in one heap."""
    return mean([gap for r in requests for gap, _ in r.gaps])


def shared_gaps(requests: Sequence[Request]) -> float | None:
    """Each message's gap divided over the tokens it brought, one value per token."""
    return mean([gap / n for r in requests for gap, n in r.gaps for _ in range(n)])


def divided_gaps(requests: Sequence[Request]) -> float | None:
    """Each message's gap divided by the tokens it brought, one value per message."""
    return mean([gap / n for r in requests for gap, n in r.gaps])


def with_first(requests: Sequence[Request]) -> float | None:
    """E2E / n of each request, then the mean: the wait for the first token is spread over all."""
    return mean([r.last_s / r.n for r in requests if r.arrivals])


def with_first_per_token(requests: Sequence[Request]) -> float | None:
    """All waits / all tokens: as `with_first`, but every token weighs the same."""
    tokens = sum(r.n for r in requests)
    return math.fsum(r.last_s for r in requests if r.arrivals) / tokens if tokens else None


def after_first_per_token(requests: Sequence[Request]) -> float | None:
    """All writing times / all gaps: as `after_first`, but every gap weighs the same."""
    spans = [(r.last_s - r.first_s, r.n - 1) for r in requests if r.n > 1]
    return math.fsum(span for span, _ in spans) / sum(n for _, n in spans) if spans else None


def inference_per_token(requests: Sequence[Request]) -> float | None:
    """(last token - admitted) / n on the server's clock: prefill counts, the queue does not."""
    served = [r.events for r in requests if r.events.token_s]
    return mean([(e.token_s[-1] - e.admitted_s) / e.n_tokens for e in served])


def decode_per_gap(requests: Sequence[Request]) -> float | None:
    """(last token - first token) / (n - 1) on the server's clock."""
    return mean([t for t in (tpot_s(r.events) for r in requests) if t is not None])


def decode_per_token(requests: Sequence[Request]) -> float | None:
    """(last token - first token) / n: n - 1 gaps shared by n tokens, so a little less than any gap's mean."""
    served = [r.events for r in requests if r.events.token_s]
    return mean([(e.token_s[-1] - e.token_s[0]) / e.n_tokens for e in served])


Report = Callable[[Sequence[Request]], float | None]

TOOLS: dict[str, Report] = {
    function.__name__: function
    for function in (
        client_ttft,
        scheduled_ttft,
        after_first,
        message_gaps,
        shared_gaps,
        divided_gaps,
        with_first,
        with_first_per_token,
        after_first_per_token,
        inference_per_token,
        decode_per_gap,
        decode_per_token,
    )
}


@dataclass(frozen=True)
class Definition:
    """One figure of one tool: who calls what how, and where that was read."""

    tool: str
    figure: str  # the tool's own name for it
    function: str  # key of TOOLS
    formula: str
    first_token: str  # "with" | "without" | "only": does the wait for the first token count?
    weight: str  # "request" | "token" | "message": what counts once in the mean
    clock: str  # "client" | "server"
    source: str
    read_in: str

    def report(self, requests: Sequence[Request]) -> float | None:
        """Seconds that the tool would show for these requests; None where it would show nothing."""
        return TOOLS[self.function](requests)


def definitions(path: Path = DEFINITIONS_PATH) -> tuple[Definition, ...]:
    """The table of tools, in the file's order."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["definition"]
    return tuple(Definition(**row) for row in rows)
