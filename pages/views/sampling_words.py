"""The figures that the sampling page's sentences are filled with, computed from one choice of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.sampling import SamplingParams, distribution, entropy_bits, likeliest_first, softmax
from pages.views.names import names
from pages.views.text import percent, visible

if TYPE_CHECKING:
    from core.trace import Trace
    from pages.views.sampling_lab import Choice

SMALL = 0.01  # a token with less probability than this belongs to the tail
CERTAIN_BITS = 1.0  # below this doubt, "equally good words" would be less than two


@dataclass(frozen=True)
class Facts:
    """values: placeholders of the page's sentences. surprise_key: which sentence fits this choice."""

    values: dict[str, str]
    surprise_key: str
    first: str
    second: str


def facts(trace: Trace, choice: Choice) -> Facts:
    """Everything the page says about this choice."""
    logits = choice.step.logits
    order = likeliest_first(logits)[:2]
    first, second = (visible(text).removeprefix("·") or "·" for text, _ in names(trace, order))
    plain, hot = softmax(logits), softmax(logits / 2)
    bits = entropy_bits(plain)
    small = plain < SMALL
    values = {
        "bits": f"{bits:.1f}",
        "equal": f"{2**bits:.0f}",
        "first": first,
        "second": second,
        "p_first": percent(plain[order[0]]),
        "p_second": percent(plain[order[1]]),
        "p_hot": percent(hot[order[0]]),
        "other": f"{10 * (1 - plain[order[0]]):.0f}",
        "n_small": f"{int(small.sum()):,}",
        "tail": percent(float(plain[small].sum())),
        "tail_hot": percent(float(hot[small].sum())),
        "n_cold": f"{_nucleus(choice, 0.5):,}",
        "n_hot": f"{_nucleus(choice, 2.0):,}",
    }
    return Facts(values, "surprise" if bits >= CERTAIN_BITS else "surprise_sure", first, second)


def _nucleus(choice: Choice, temperature: float) -> int:
    return distribution(choice.step.logits, SamplingParams(temperature=temperature, top_p=0.5)).n_survivors
