"""The prefill wave's data: which positions each pass read, and when each layer began.

The component (assets/components/prefill_wave) plays a run's prefill and the first decode passes after it in the run's
own times. What it gets is small: the tokens' texts and one number per layer and pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.head_profile import unmasked_share
from core.prefill import attention_pairs
from pages.views import components
from pages.views.text import percent, seconds

if TYPE_CHECKING:
    from core.trace import Step, Trace
    from pages.views.frame import Frame

N_DECODE = 3  # decode passes shown after the prompt: enough to see a single column climb


def prefill_steps(trace: Trace) -> tuple[Step, ...]:
    """The passes that read the prompt: one, or several chunks."""
    return tuple(step for step in trace.steps if step.phase == "prefill")


def decode_steps(trace: Trace) -> tuple[Step, ...]:
    """The passes that read one chosen token each."""
    return tuple(step for step in trace.steps if step.phase == "decode")


def run_name(trace: Trace) -> str:
    """Names a run, so that the browser knows a new one from the same one again."""
    return f"{trace.origin}-{trace.created}-{len(trace.tokens)}-{trace.steps[0].started_s:.6f}"


def unbroken(figure: str) -> str:
    """A figure whose unit stays on its line."""
    return figure.replace(" ", "\u00a0")


def tokens_data(trace: Trace, n: int) -> list[dict[str, Any]]:
    """The first n tokens as the components show them."""
    template = (*trace.from_template, *(False for _ in trace.answer_tokens))
    return [
        {"text": k.text, "hex": k.bytes.hex(), "special": k.is_special, "template": bool(mark)}
        for k, mark in zip(trace.tokens[:n], template, strict=False)
    ]


def payload(trace: Trace) -> dict[str, Any]:
    """The component's `data` without its texts."""
    shown = (*prefill_steps(trace), *decode_steps(trace)[:N_DECODE])
    n_layers = trace.spec.n_layers
    return {
        "tokens": tokens_data(trace, shown[-1].n_cached_after),
        "n_prompt": trace.n_prompt,
        "n_layers": n_layers,
        "windows": [trace.spec.window_of(layer) for layer in range(n_layers)],
        "steps": [_step(trace, step) for step in shown],
        "run": run_name(trace),
    }


def _step(trace: Trace, step: Step) -> dict[str, Any]:
    windows = [trace.spec.window_of(layer) for layer in range(trace.spec.n_layers)]
    return {
        "phase": step.phase,
        "n_before": step.n_cached_before,
        "n_input": step.n_input,
        "chooses": step.is_choice,
        "t0": step.started_s,
        "t1": step.ended_s,
        "layers": [float(t) for t in step.layer_starts_s],
        "pairs": [attention_pairs(step.n_input, step.n_cached_before, window) for window in windows],
    }


def show(frame: Frame, trace: Trace) -> None:
    """Mount the wave with the learner's language."""
    text = {**frame.t.group("stage"), **frame.t.group("wave")}
    components.mount("prefill_wave", {**payload(trace), "lang": frame.lang, "text": text}, "prefill_wave")


def myths(frame: Frame, trace: Trace) -> tuple[str, str]:
    """What this run says to “all layers at once” and to “masking is only needed in training”."""
    step, n_layers = prefill_steps(trace)[-1], trace.spec.n_layers
    second = unbroken(seconds(float(step.layer_starts_s[1] - step.layer_starts_s[0])))
    whole = unbroken(seconds(float(step.layer_starts_s[-1] - step.layer_starts_s[0])))
    layers = frame.t("myth_layers", second=second, n_layers=n_layers, whole=whole, n=step.n_input)
    together = min(prefill_steps(trace)[0].n_input, trace.n_traced)
    if together < 2:
        return layers, frame.t("myth_mask_one")
    share = unbroken(percent(unmasked_share(trace, together), 0))
    return layers, frame.t("myth_mask", n=together, share=share)
