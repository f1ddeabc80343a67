"""“Go on from here”: the run continued from one choice, with the lab's settings or with all presets at once.

The first token is drawn from the recorded scores of the pass, with the dice of the lab's seed; then the model goes on
from a copy of the cache (see forks.py). Nothing before the choice is computed again.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from core.branching import crossroads
from core.sampling import PRESETS, SamplingParams, choose
from pages.views import cache, forks, sampling_lab

if TYPE_CHECKING:
    from core.tokenizer import Token
    from core.trace import Trace
    from pages.views.forks import Branch, Tree
    from pages.views.frame import Frame
    from pages.views.sampling_lab import Choice

STYLE = Path(__file__).resolve().parents[2] / "assets" / "sampling.css"
LENGTH = 24  # tokens of a continuation: enough to see where it goes
POLL_S = 0.3
YOURS = "yours"


def section(frame: Frame, trace: Trace, choice: Choice) -> None:
    """The buttons and, once pressed, the continuations side by side."""
    tree = forks.tree_of("sampling", trace, frame.run)
    st.html(f"<style>{STYLE.read_text(encoding='utf-8')}</style>")
    st.header(frame.t("continue.title"), anchor=False)
    seed = sampling_lab.lab_settings(frame)["seed"]
    st.markdown(frame.t("continue.note", n_shared=trace.n_prompt + choice.number, seed=seed))
    _buttons(frame, tree, choice)
    st.fragment(_ways, run_every=POLL_S if tree.is_growing else None)(frame, tree, choice)


def _buttons(frame: Frame, tree: Tree, choice: Choice) -> None:
    ready = cache.engine().scheduler is not None
    with st.container(horizontal=True, key="sampling_continue"):
        mine = {YOURS: sampling_lab.lab_params(frame, LENGTH)}
        st.button(
            frame.t("continue.button"), key="continue_yours", type="primary", disabled=not ready,
            on_click=_grow, args=(tree, choice, mine),
        )  # fmt: skip
        st.button(
            frame.t("continue.presets"), key="continue_presets", disabled=not ready,
            on_click=_grow, args=(tree, choice, _presets(frame)),
        )  # fmt: skip
    if not ready:
        st.markdown(f":small[{frame.t('model.needed')}]")


def _presets(frame: Frame) -> dict[str, SamplingParams]:
    seed = sampling_lab.lab_settings(frame)["seed"]
    names = sampling_lab.RULES
    return {
        label: SamplingParams(**{name: getattr(params, name) for name in names}, seed=seed, max_tokens=LENGTH)
        for label, params in PRESETS.items()
    }


def _grow(tree: Tree, choice: Choice, wanted: dict[str, SamplingParams]) -> None:
    for branch in list(tree.grown):
        if not tree.has_room or branch.label in wanted:
            tree.remove(branch)
    for label, params in wanted.items():
        token_id, _ = choose(choice.step.logits, params, choice.number, choice.previous_ids)
        tree.add(tree.trunk, choice.number, crossroads(choice.step.logits, token_id), params, label)
    tree.advance()


def _ways(frame: Frame, tree: Tree, choice: Choice) -> None:
    was_growing = tree.is_growing
    tree.advance()
    here = [branch for branch in tree.grown if branch.at == choice.number]
    if here:
        cards = [_original(frame, tree, choice), *(_card(frame, tree, branch) for branch in here)]
        st.html(f'<div class="otat-ways">{"".join(cards)}</div>')
    if was_growing and not tree.is_growing:
        st.rerun()  # once, so that the timer stops


def _original(frame: Frame, tree: Tree, choice: Choice) -> str:
    tokens = tree.trunk.tokens[choice.number : choice.number + LENGTH + 1]
    return _html(
        frame.t("continue.original"),
        _context(tree, choice.number),
        _spoken(tokens[:1]),
        _spoken(tokens[1:]),
        "",
    )


def _card(frame: Frame, tree: Tree, branch: Branch) -> str:
    note = (
        frame.t("continue.passes", n=branch.n_passes) + " · " + frame.t("continue.saved", n=branch.n_copied)
    )
    note += f" · {frame.t('kind.measured')}"
    if not branch.is_growing and _agrees(tree, branch):
        note = frame.t("continue.same") + " · " + note
    if branch.state == "waiting":
        note = frame.t("continue.wait")
    if branch.error is not None:
        note = frame.explain(branch.error, markdown=False)
    first, rest = _spoken(branch.tokens[:1]), _spoken(branch.tokens[1:])
    title = frame.t(f"continue.{branch.label}")
    return _html(title, _context(tree, branch.at), first, rest, note, growing=branch.is_growing)


def _agrees(tree: Tree, branch: Branch) -> bool:
    """True where the branch says what the run says, as far as both go."""
    pairs = zip(tree.trunk.tokens[branch.at :], branch.tokens, strict=False)
    return all(ours.id == theirs.id for ours, theirs in pairs)


def _context(tree: Tree, at: int) -> str:
    return _spoken((*tree.prompt, *tree.trunk.tokens[:at])[-6:] if at else ())


def _spoken(tokens: Sequence[Token]) -> str:
    return b"".join(t.bytes for t in tokens if not t.is_special).decode("utf-8", errors="replace")


def _html(title: str, before: str, first: str, rest: str, note: str, *, growing: bool = False) -> str:
    still = '<span class="still"></span>' if growing else ""
    return (
        f'<section class="otat-way"><h3>{html.escape(title)}</h3><p><span class="before">… {html.escape(before)}</span>'
        f"<mark>{html.escape(first)}</mark>{html.escape(rest)}{still}</p>"
        f'<p class="note">{html.escape(note)}</p></section>'
    )
