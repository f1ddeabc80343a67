"""Does a long prompt slow the answer after it has started? Measured, not argued.

Reading a long prompt takes long: that is the wait for the first token. Once the answer runs, each pass reads
the weights (always the same) and the KV cache (longer, the longer the prompt was). So a long prompt also
slows every later token, by as much as its cache weighs beside the weights: on a small model with a short
context hardly at all, on a large model with a very long context a lot.

The measurement prefills one prompt per length, in chunks, and then lets all answers take turns, one pass
each. Taking turns makes the comparison fair on a machine that has other work, because a slow moment hits all
of them. It is a job for the scheduler: it yields after each pass, so it can be cancelled within one, and
nobody else waits longer than one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core.errors import InvalidSettingError, TraceFileError
from core.latency import percentile

if TYPE_CHECKING:
    from core.model import LoadedModel

CHUNK = 64  # prompt tokens of one pass: others wait no longer than for one
LENGTHS = (16, 128, 512, 1024)
N_ANSWER = 24
BUDGET_S = 40.0  # a busy machine stops here, with fewer passes of each length
# Filler for the prompts: what it says does not matter to the time, only its length does.
FILLER = (
    "The kettle was old, but it was reliable. Each morning it took its time, and each morning nobody minded, because "
    "waiting for hot water is a good moment to look out of the window and to think about nothing in particular. "
)


@dataclass(frozen=True)
class PromptPass:
    """One measured pass: of which prompt length, which phase, how long it took, and what the cache held
    before."""

    n_prompt: int
    phase: Literal["prefill", "decode"]
    duration_s: float
    n_cached: int


@dataclass(frozen=True)
class PromptEffect:
    """What one prompt length costs: all its prefill passes together, and the typical pass after them
    (seconds)."""

    n_prompt: int
    prefill_s: float
    median_itl_s: float
    p95_itl_s: float
    n_decoded: int
    kv_bytes: int


def n_passes(lengths: Sequence[int] = LENGTHS, n_answer: int = N_ANSWER) -> int:
    """Passes of the whole measurement, for its progress bar."""
    return sum(-(-length // CHUNK) + n_answer for length in lengths)


def measure_prompt_effect(
    lengths: Sequence[int] = LENGTHS, n_answer: int = N_ANSWER, budget_s: float = BUDGET_S
) -> Callable[[LoadedModel], Iterator[PromptPass]]:
    """A job for `Scheduler.run_job`. Raises InvalidSettingError for lengths below 1 or no answer."""
    if not lengths or min(lengths) < 1 or n_answer < 1:
        raise InvalidSettingError(name="lengths", value=tuple(lengths), allowed="numbers of tokens above 0")

    def work(loaded: LoadedModel) -> Iterator[PromptPass]:
        from core.forward import Span, packed_forward
        from core.tokenizer import encode

        deadline = time.monotonic() + budget_s
        filler = [token.id for token in encode(loaded.tokenizer, FILLER)]
        fits = [n for n in lengths if n + n_answer < loaded.spec.max_context]
        caches = [loaded.new_cache(capacity=n + n_answer) for n in fits]
        last = [filler[0]] * len(fits)
        for cache, length in zip(caches, fits, strict=True):
            ids = (filler * (length // len(filler) + 1))[:length]
            for start in range(0, length, CHUNK):
                (record,) = packed_forward(
                    loaded, [Span(cache, tuple(ids[start : start + CHUNK]))], record=False
                )
                yield PromptPass(length, "prefill", record.ended_s - record.started_s, start)
        for turn in range(n_answer):
            if turn and time.monotonic() > deadline:
                return
            for i, (cache, length) in enumerate(zip(caches, fits, strict=True)):
                before = len(cache)
                (record,) = packed_forward(loaded, [Span(cache, (last[i],))], record=False)
                last[i] = int(record.logits[-1].argmax())
                yield PromptPass(length, "decode", record.ended_s - record.started_s, before)

    return work


def effects(passes: Sequence[PromptPass], kv_bytes_per_token: int) -> tuple[PromptEffect, ...]:
    """The passes so far, one row per prompt length that has at least one answer token, shortest first."""
    found = []
    for length in sorted({p.n_prompt for p in passes}):
        gaps = [p.duration_s for p in passes if p.n_prompt == length and p.phase == "decode"]
        prefill = [p.duration_s for p in passes if p.n_prompt == length and p.phase == "prefill"]
        median, p95 = percentile(gaps, 50), percentile(gaps, 95)
        if median is not None and p95 is not None:
            found.append(
                PromptEffect(length, sum(prefill), median, p95, len(gaps), length * kv_bytes_per_token)
            )
    return tuple(found)


def slower_by(rows: Sequence[PromptEffect]) -> tuple[float, float] | None:
    """(prefill, token): how many times longer the longest prompt took than the shortest. None below two
    lengths."""
    if len(rows) < 2 or rows[0].prefill_s <= 0 or rows[0].median_itl_s <= 0:
        return None
    return rows[-1].prefill_s / rows[0].prefill_s, rows[-1].median_itl_s / rows[0].median_itl_s


def expected_slowdown(rows: Sequence[PromptEffect], weight_bytes: int) -> float | None:
    """What the bytes alone would predict for the longest prompt against the shortest: (weights + its cache) /
    (weights + the other). Computed, to stand beside what was measured."""
    if len(rows) < 2:
        return None
    return (weight_bytes + rows[-1].kv_bytes) / (weight_bytes + rows[0].kv_bytes)


@dataclass(frozen=True)
class RecordedEffect:
    """A measurement made earlier, with what it was made on: shown until somebody measures here and now."""

    rows: tuple[PromptEffect, ...]
    weight_bytes: int
    model: str
    machine: str
    created: str

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> RecordedEffect:
        """Read what `save` wrote. Raises TraceFileError for anything else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            rows = tuple(PromptEffect(**row) for row in values.pop("rows"))
            return RecordedEffect(rows=rows, **values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceFileError(path=str(path), reason="it is damaged or no recorded measurement") from error
