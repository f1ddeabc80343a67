"""The sampling lab's data: one choice of a run, as plain values for the browser.

All scores of the pass travel once, as one array in a mount of its own (assets/components/logits_store); the lab beside
it gets what is small: settings, the names of the likeliest tokens, the run's choices with their doubt. The browser
computes the rest, with the mathematics of core/sampling.py.

The lab has settings of its own (`lab` in the URL): a learner may try anything here, and the link still replays the run
as it was. They start from the run's settings; a greedy run starts the lab at temperature 1, where there is more to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import streamlit as st

from core.errors import ExplainerError
from core.sampling import PRESETS, SamplingParams, entropy_bits, softmax
from pages.views import components
from pages.views import settings as settings_module
from pages.views.names import names

if TYPE_CHECKING:
    from core.trace import Step, Trace
    from pages.views.frame import Frame

LAB, STORE = "sampling_lab", "logits_store"
N_NAMES = 200  # likeliest tokens whose texts are sent; others are asked for when they are drawn
RULES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
FIELDS = (*RULES, "seed")
WHOLE = ("top_k", "seed")
NEARLY = (
    0.95  # of two equally doubtful choices the earlier one is more interesting: more of the answer follows
)

_doubts: WeakKeyDictionary[Trace, tuple[float, ...]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Choice:
    """One choice of a run. number: 0 for the first answer token. previous_ids: everything before it."""

    number: int
    step: Step
    previous_ids: tuple[int, ...]

    @property
    def position(self) -> int:
        """Passes finished when it was made: what `step` means in the URL and on the run stage."""
        return self.step.index + 1


def doubts(trace: Trace) -> tuple[float, ...]:
    """Entropy in bits, at temperature 1, of each choice."""
    if trace not in _doubts:
        _doubts[trace] = tuple(entropy_bits(softmax(step.logits)) for step in trace.choice_steps)
    return _doubts[trace]


def choice_at(trace: Trace, position: int) -> Choice:
    """The choice after `position` passes (or the next one), or the most doubtful one where nobody asked (below 1)."""
    steps = trace.choice_steps
    if position < 1:
        bits = doubts(trace)
        number = next(i for i, value in enumerate(bits) if value >= NEARLY * max(bits))
    else:
        number = next((i for i, step in enumerate(steps) if step.index + 1 >= position), len(steps) - 1)
    before = tuple(token.id for token in trace.tokens[: trace.n_prompt + number])
    return Choice(number, steps[number], before)


def context(trace: Trace, choice: Choice, n_tokens: int = 8) -> str:
    """The end of the text before this choice."""
    tokens = trace.tokens[: trace.n_prompt + choice.number][-n_tokens:]
    spoken = b"".join(token.bytes for token in tokens if not token.is_special)
    return " ".join(spoken.decode("utf-8", errors="replace").split())


def read_lab(raw: str) -> str:
    """Checks what a URL says about the lab: six numbers, each in its range. Raises ValueError."""
    if raw:
        _from_text(raw)
    return raw


def _from_text(raw: str) -> dict[str, Any]:
    parts = raw.split(",")
    if len(parts) != len(FIELDS):
        raise ValueError(raw)
    values = {name: (int if name in WHOLE else float)(part) for name, part in zip(FIELDS, parts, strict=True)}
    try:
        SamplingParams(**values)
    except ExplainerError as error:
        raise ValueError(raw) from error
    return values


def lab_settings(frame: Frame) -> dict[str, Any]:
    """The lab's settings: the learner's, else those of their runs."""
    raw = frame.settings.get("lab")
    if raw:
        return _from_text(raw)
    values = {name: frame.settings.get(name) for name in FIELDS}
    return {**values, "temperature": values["temperature"] or 1.0}


def lab_params(frame: Frame, max_tokens: int) -> SamplingParams:
    """The lab's settings as core takes them."""
    return SamplingParams(**lab_settings(frame), max_tokens=max_tokens)


settings_module.declare("lab", "", read_lab, lambda raw: isinstance(raw, str))


def show(frame: Frame, trace: Trace, choice: Choice) -> None:
    """Mount the logits and the lab."""
    key = f"{trace.created}.{trace.n_prompt}.{id(trace)}:{choice.number}"
    logits = np.ascontiguousarray(choice.step.logits, dtype=np.float32)
    components.mount(STORE, {"logits": logits, "meta": {"key": key}}, STORE)
    components.mount(
        LAB,
        {"logits_key": key, **payload(frame, trace, choice)},
        LAB,
        numbered="settings",
        on_settings_change=_take_settings,
        on_step_change=_take_step,
        on_names_change=lambda: None,
    )


def payload(frame: Frame, trace: Trace, choice: Choice) -> dict[str, Any]:
    """What the lab gets beside the logits."""
    previous = sorted(set(choice.previous_ids))
    return {
        "n_vocab": trace.spec.vocab_size,
        "dice_step": choice.number,
        "settings": lab_settings(frame),
        "previous": previous,
        "names": _names(trace, choice, previous),
        "answer": _answer(trace),
        "step": choice.position,
        "context": context(trace, choice),
        "chosen": choice.step.token_id,
        "presets": [
            [name, {rule: getattr(params, rule) for rule in RULES}] for name, params in PRESETS.items()
        ],
        "lang": frame.lang,
        "text": frame.t.group("lab"),
    }


def _names(trace: Trace, choice: Choice, previous: Sequence[int]) -> list[list[Any]]:
    logits = choice.step.logits
    n = min(N_NAMES, logits.size)
    likeliest = np.argpartition(logits, logits.size - n)[logits.size - n :]
    asked = (st.session_state.get(LAB) or {}).get("names") or []
    ids = dict.fromkeys(
        [*map(int, likeliest), *previous, *(i for i in asked if isinstance(i, int) and 0 <= i < logits.size)]
    )
    return [[token_id, text, raw] for token_id, (text, raw) in zip(ids, names(trace, ids), strict=True)]


def _answer(trace: Trace) -> list[dict[str, Any]]:
    chosen = zip(trace.answer_tokens, trace.choice_steps, doubts(trace), strict=True)
    return [
        {
            "text": token.text,
            "hex": token.bytes.hex(),
            "special": token.is_special,
            "bits": round(bits, 3),
            "step": step.index + 1,
        }
        for token, step, bits in chosen
    ]


def _take(name: str, value: Any) -> None:
    settings = settings_module.current()
    if not settings.set(name, value):
        settings.rejected.append(name)
    settings_module.write_url(settings)


def _take_settings() -> None:
    sent = (st.session_state.get(LAB) or {}).get("settings") or {}
    raw = ",".join(
        f"{sent.get(name, 0):g}" if name not in WHOLE else str(int(sent.get(name, 0))) for name in FIELDS
    )
    try:
        _take("lab", read_lab(raw))
    except ValueError:
        settings_module.current().rejected.append("lab")


def _take_step() -> None:
    step = (st.session_state.get(LAB) or {}).get("step")
    if step is not None:
        _take("step", int(step))
