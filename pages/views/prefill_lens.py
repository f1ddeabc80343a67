"""The logit lens on screen: what each layer would have answered in one pass of the run."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakKeyDictionary

import streamlit as st

from pages.views import controls, prefill_wave
from pages.views import settings as settings_module
from pages.views.jobs import Task, panel
from pages.views.names import names
from pages.views.run_stage import doubt_bits, probabilities
from pages.views.text import percent, tiny, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.logit_lens import LayerAnswer, Lens
    from core.model import LoadedModel
    from core.trace import Step, Trace
    from pages.views.frame import Frame

N_TOP = 3
N_SEARCHED = 64
CLOSE = 0.1  # a recorded run's vectors have 16 bits: its logits come back to within a few hundredths
_doubts: WeakKeyDictionary[Trace, tuple[Step, float]] = WeakKeyDictionary()


def most_doubtful(trace: Trace) -> tuple[Step, float]:
    """The pass whose choice was most open, with its entropy in bits; the first N_SEARCHED choices are looked at."""
    known = _doubts.get(trace)
    if known is None:
        steps = trace.choice_steps[:N_SEARCHED]
        bits = [doubt_bits(probabilities(step.logits)) for step in steps]
        known = _doubts[trace] = max(zip(steps, bits, strict=True), key=lambda pair: pair[1])
    return known


def _take_to(step: int) -> None:
    now = settings_module.current()
    now.set("step", step)
    settings_module.write_url(now)


def _try(frame: Frame, trace: Trace, now: Step) -> None:
    """An invitation to the pass where the layers have most to disagree about."""
    step, bits = most_doubtful(trace)
    if step is now or len(trace.choice_steps) < 3:
        return
    frame.try_this(frame.t("lens.try", step=step.index + 1, bits=f"{bits:.1f}"))
    st.button(
        frame.t("lens.go", step=step.index + 1), key="lens_go", on_click=_take_to, args=(step.index + 1,)
    )


def chosen_step(frame: Frame, trace: Trace) -> Step:
    """The pass to look at: the setting counts passes from 1; its default is the one that chose the first token."""
    first = trace.choice_steps[0].index
    step = frame.settings.get("step")
    return trace.steps[step - 1] if first < step <= len(trace.steps) else trace.steps[first]


def show(frame: Frame, trace: Trace) -> None:
    """The choice of a pass, the button, and the layers' answers."""
    first, last = trace.choice_steps[0].index + 1, len(trace.steps)
    if last > first:
        controls.slider(frame, "step", first, last, 1)
    step = chosen_step(frame, trace)
    position = step.n_cached_after
    before = "".join(token.text for token in trace.tokens[max(0, position - 6) : position])
    token = names(trace, [step.token_id if step.token_id is not None else 0])[0][0]
    st.markdown(frame.md("lens.at", step=step.index + 1, before=visible(before), token=visible(token)))
    if frame.loaded is not None and frame.loaded.spec != trace.spec:
        st.caption(frame.t("lens.other_model"))
        return
    _try(frame, trace, step)
    panel(frame, lens_task(trace, step), lambda results, over: _draw(frame, trace, results))


def lens_task(trace: Trace, step: Step) -> Task:
    """The lens is no measurement of time, so it need not wait for one: its job has a name of its own."""

    def make(loaded: LoadedModel) -> Iterator[Lens]:
        from core.logit_lens import lens_job

        return lens_job(loaded, step, N_TOP)

    about = f"{prefill_wave.run_name(trace)}-{step.index}"
    return Task("lens", about, make, 1, job_name=f"lens-{uuid4().hex}", timing=False)


def _draw(frame: Frame, trace: Trace, results: tuple[Lens, ...]) -> None:
    if not results:
        return
    lens = results[0]
    if lens.last_difference > CLOSE:
        st.warning(frame.t("lens.inexact", difference=f"{lens.last_difference:.2g}"), icon=":material/info:")
    frame.surprise(sentence(frame, trace, lens))
    st.html(lens_html(frame, trace, lens))
    st.caption(frame.t("lens.check", difference=tiny(lens.last_difference)))


def sentence(frame: Frame, trace: Trace, lens: Lens) -> str:
    """When the final answer appeared."""
    before = lens.answers[max(0, lens.settled_layer - 1)].top_ids[0]
    token, earlier = (shown(name) for name, _ in names(trace, [lens.answer_id, before]))
    last = lens.settled_layer == trace.spec.n_layers
    key = "surprise" if lens.first_layer < lens.settled_layer or not lens.settled_layer else "surprise_once"
    return frame.md(
        "lens.surprise_last" if last and key == "surprise_once" else f"lens.{key}",
        token=token, earlier=earlier, first=lens.first_layer, settled=lens.settled_layer, n=trace.spec.n_layers,
    )  # fmt: skip


def shown(name: str) -> str:
    """A token for these sentences, the space that does not break included."""
    return visible(name.replace("\u00a0", "⍽"))


def lens_html(frame: Frame, trace: Trace, lens: Lens) -> str:
    """One row per layer: its likeliest tokens, and how it sees the final answer. Token texts are escaped."""
    ids = sorted({i for answer in lens.answers for i in answer.top_ids})
    text = {i: shown(name) for i, (name, _) in zip(ids, names(trace, ids), strict=True)}
    heads = "".join(
        f'<th scope="col">{html.escape(frame.t(f"lens.{k}"))}</th>' for k in ("layer", "top", "p", "rank")
    )
    body = "".join(_row(frame, answer, text, lens.answer_id) for answer in lens.answers)
    kind = f'<em class="otat-kind computed">{html.escape(frame.t("kind.computed"))}</em>'
    caption = f"<caption>{html.escape(frame.t('lens.caption'))}{kind}</caption>"
    return f'<table class="pf-lens">{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _row(frame: Frame, answer: LayerAnswer, text: dict[int, str], final: int) -> str:
    label = frame.t("lens.embedding") if answer.layer == 0 else str(answer.layer)
    chips = "".join(
        f'<span><code class="{"final" if i == final else ""}">{html.escape(text[i])}</code>'
        f"<small>{percent(p, 0) if p >= 0.005 else '&lt; 1 %'}</small></span>"
        for i, p in zip(answer.top_ids, answer.top_p, strict=True)
    )
    bar = f'<i><u style="width:{100 * answer.p:.2f}%"></u></i>{percent(answer.p)}'
    mark = ' class="final"' if answer.rank == 1 else ""
    head = f'<th scope="row">{html.escape(label)}</th>'
    return f"<tr{mark}>{head}<td>{chips}</td><td>{bar}</td><td>{answer.rank:,}</td></tr>"
