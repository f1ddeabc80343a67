"""The run stage's data: a trace, or a run that is still going on, as plain values for the browser.

The stage (assets/components/run_stage) shows a run token by token and pass by pass. It plays, steps back and scrubs by
itself; all it gets from here is what happened. What it needs of a pass (the five likeliest tokens out of the whole
vocabulary, the bits of doubt) is computed once per step and remembered as long as the step lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import streamlit as st

from core import latency
from pages.views import components, text
from pages.views import settings as settings_module
from pages.views.names import names

if TYPE_CHECKING:
    from core.scheduler import Run
    from core.trace import Step, Trace
    from pages.views.frame import Frame

N_CANDIDATES = 5
Choice = tuple[
    list[list[Any]], float, float
]  # candidates [text, hex, p, id], probability of the chosen token, bits
_choices: WeakKeyDictionary[Step, Choice] = WeakKeyDictionary()


def payload(
    trace: Trace, *, run: str, state: str, queue_position: int | None, step: int | None
) -> dict[str, Any]:
    """The stage's `data` without its texts. `run` names the run: a new name resets the player."""
    return {
        "tokens": _tokens(trace),
        "n_prompt": trace.n_prompt,
        "steps": [_step(trace, index) for index in range(len(trace.steps))],
        "admitted": None if state == "waiting" else trace.admitted_s,
        "state": state,
        "queue_position": None if queue_position is None else queue_position + 1,
        "step": step,
        "run": run,
    }


def show(
    frame: Frame, data: dict[str, Any], key: str = "run_stage", on_step: Callable[[], None] | None = None
) -> Any:
    """Mount the stage with the learner's language. `on_step` is called when they chose a position (state `step`)."""
    words = frame.t.group("stage")
    if data["state"] in ("waiting", "running"):
        words["nothing_yet"] = words["nothing_live"]
    full = {**data, "lang": frame.lang, "text": words}
    # The default is what the link said: without it, going back to the end (None) would look like no change.
    default = {"step": data["step"]}
    return components.mount("run_stage", full, key, default=default, on_step_change=on_step or (lambda: None))


def _tokens(trace: Trace) -> list[dict[str, Any]]:
    from core.tokenizer import character_groups

    group = {}
    for number, (start, stop) in enumerate(character_groups(trace.tokens)):
        group.update(dict.fromkeys(range(start, stop), number))
    template = (*trace.from_template, *(False for _ in trace.answer_tokens))
    return [
        {
            "id": token.id,
            "text": token.text,
            "hex": token.bytes.hex(),
            "special": token.is_special,
            "template": bool(template[i]),
            "group": group.get(i, i),
        }
        for i, token in enumerate(trace.tokens)
    ]


def _step(trace: Trace, index: int) -> dict[str, Any]:
    step = trace.steps[index]
    top, p_chosen, bits = _choice(trace, step) if step.is_choice else ([], None, None)
    n_chosen_before = sum(earlier.is_choice for earlier in trace.steps[:index])
    return {
        "phase": step.phase,
        "t0": step.started_s,
        "t1": step.ended_s,
        "token_index": trace.n_prompt + n_chosen_before if step.is_choice else None,
        "n_cached_before": step.n_cached_before,
        "n_input": step.n_input,
        "kv_bytes": step.n_cached_after * trace.spec.kv_bytes_per_token,
        "top": top,
        "p_chosen": p_chosen,
        "entropy_bits": bits,
        "batch": step.batch_size,
    }


def _choice(trace: Trace, step: Step) -> Choice:
    known = _choices.get(step)
    if known is None:
        p = probabilities(step.logits)
        # argpartition finds the few likeliest without sorting the whole vocabulary; ties go to the lower id.
        likeliest = sorted(np.argpartition(p, -N_CANDIDATES)[-N_CANDIDATES:], key=lambda i: (-p[i], i))
        texts = names(trace, likeliest)
        top = [[*text, float(p[i]), int(i)] for text, i in zip(texts, likeliest, strict=True)]
        known = (top, float(p[step.token_id]), doubt_bits(p))
        _choices[step] = known
    return known


def probabilities(logits: np.ndarray) -> np.ndarray:
    """The model's own probabilities (temperature 1, nothing cut), over the whole vocabulary, in float64."""
    shifted = np.exp(logits.astype(np.float64) - float(logits.max()))
    return shifted / shifted.sum()


def doubt_bits(p: np.ndarray) -> float:
    """Entropy in bits: 0 when one token is certain, 1 for a coin toss between two."""
    positive = p[p > 0]
    return float(-(positive * np.log2(positive)).sum())


# ---- the learner's current run ---------------------------------------------------------------------------------------


def current_trace(frame: Frame, run: Run | None) -> Trace:
    """What the stage shows: the live run as far as it is, or the recorded one before there is any."""
    if run is None or run.error is not None:
        return frame.trace
    trace = run.peek()
    return trace if trace.steps or not run.is_over else frame.trace


def current(frame: Frame, run: Run | None, step: int) -> dict[str, Any]:
    """The payload of `current_trace`, opening at `step` (-1: the end).

    Take `step` from the settings when the page's script runs, not when a fragment does: the stage knows best where the
    learner is, and unchanged data is not sent again (90 kB, with the component's code, for every click on a step).
    """
    trace = current_trace(frame, run)
    live = run is not None and trace.origin == "live"
    return payload(
        trace,
        run=f"live-{run.submitted_at}" if run is not None and live else f"recorded-{trace.created}",
        state=run.state if run is not None and live else "recorded",
        queue_position=run.queue_position if run is not None and live else None,
        step=None if step < 0 else step,
    )


def keep_step(key: str = "run_stage") -> None:
    """Callback of the stage: the chosen position goes into the settings and the URL."""
    settings = settings_module.current()
    step = st.session_state[key].get("step")
    settings.set("step", -1 if step is None else int(step))
    settings_module.write_url(settings)


def figures(frame: Frame, trace: Trace) -> None:
    """The figures of the run, each with the page that explains it."""
    events = latency.events_of(trace)
    gaps = latency.gaps_s(events.token_s)
    rows: list[tuple[str, str, str, str]] = []
    if events.n_tokens:
        rows.append((frame.t("fig.ttft"), text.seconds(events.token_s[0]), "measured", "latency"))
    if gaps:
        speed = latency.tokens_per_s(events) or 0.0
        rows.append((frame.t("fig.itl"), text.seconds(latency.mean(gaps) or 0.0), "measured", "latency"))
        rows.append((frame.t("fig.speed"), f"{speed:.1f}", "measured", "roofline"))
    frame.figures(rows)
    if trace.origin == "recorded":
        st.caption(frame.t("ask.recorded", machine=text.escape_markdown(trace.machine)))


def surprise(frame: Frame, trace: Trace) -> None:
    """The sentence that surprises, once there are two tokens to compare."""
    gaps = latency.gaps_s(latency.events_of(trace).token_s)
    if gaps:
        frame.surprise(_surprise(frame, trace, gaps))


def _surprise(frame: Frame, trace: Trace, gaps: Sequence[float]) -> str:
    prefill = sum(step.duration_s for step in trace.steps if step.phase == "prefill")
    middle = latency.percentile(gaps, 50) or 1e-9
    ratio = prefill / middle
    key = "surprise.reading" if ratio < trace.n_prompt / 2 else "surprise.short"
    return frame.md(
        key,
        n_prompt=trace.n_prompt,
        ratio=f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}",
        prefill=text.seconds(prefill),
        step=text.seconds(middle),
    )
