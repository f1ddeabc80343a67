"""The figures that the branching page's sentences are filled with, counted on the tree of branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pages.views.names import names
from pages.views.text import percent, visible

if TYPE_CHECKING:
    from pages.views.forks import Branch, Tree
    from pages.views.frame import Frame


def surprise(frame: Frame, tree: Tree, at: int) -> str:
    """One sentence: two futures that one token apart, or, before anything was grown, what else was possible."""
    place = tree.place(tree.trunk, at)
    if place is None:
        return ""
    sibling = _most_different(tree, at)
    first = _word(frame, place.token_id)
    if sibling is None:
        rest = percent(1 - place.probability)
        return frame.md("surprise_alone", first=first, p=percent(place.probability), rest=rest)
    pairs = list(zip(tree.trunk.tokens[at + 1 :], sibling.tokens[1:], strict=False))
    values = {
        "first": first,
        "p": percent(place.probability),
        "other": _word(frame, sibling.tokens[0].id),
        "q": percent(sibling.places[0].probability),
        "n": len(pairs),
        "same": sum(a.id == b.id for a, b in pairs),
    }
    return frame.md("surprise", **values)


def opposites(frame: Frame, tree: Tree) -> str:
    """What the recorded example shows: two answers to one question that say the opposite."""
    children = sorted((b for b in tree.grown if b.parent == 0), key=lambda b: -b.places[0].probability)
    said = {branch.text.split(",")[0].strip(): branch for branch in children}
    no, yes = said.get("No"), said.get("Absolutely")
    if no is None or yes is None:
        return surprise(frame, tree, 0)
    return frame.md(
        "surprise_example", no=_sentence(no), yes=_sentence(yes),
        p_no=percent(no.places[0].probability), p_yes=percent(yes.places[0].probability),
    )  # fmt: skip


def _sentence(branch: Branch) -> str:
    return branch.text.split(".")[0].strip()


def _most_different(tree: Tree, at: int) -> Branch | None:
    here = [b for b in tree.grown if b.parent == 0 and b.at == at and not b.is_growing and len(b.tokens) > 1]

    def same(branch: Branch) -> int:
        pairs = zip(tree.trunk.tokens[at + 1 :], branch.tokens[1:], strict=False)
        return sum(a.id == b.id for a, b in pairs)

    return min(here, key=same, default=None)


def _word(frame: Frame, token_id: int) -> str:
    text = names(frame.trace, [token_id])[0][0]
    return visible(text).removeprefix("·") or "·"


def surest(frame: Frame, tree: Tree) -> dict[str, str]:
    """The place where the model was surest, and its second candidate there."""
    place = min(tree.trunk.places, key=lambda place: place.bits)
    others = [(i, p) for i, p in place.candidates if i != place.token_id]
    second, p = others[0] if others else (place.token_id, place.probability)
    return {
        "sure": _word(frame, place.token_id),
        "p": percent(place.probability, 2),
        "second": _word(frame, second),
        "q": percent(p, 4),
    }


def totals(tree: Tree) -> dict[str, int]:
    """What all branches together needed and did not need. Counted."""
    grown = [branch for branch in tree.grown if branch.ends]
    return {
        "branches": len(grown),
        "tokens": sum(branch.n_passes for branch in grown),
        "copied": sum(branch.n_copied for branch in grown),
        "saved": sum(branch.passes_saved for branch in grown),
        "together": max((branch.batch_size for branch in grown), default=0),
        "longest": max((branch.n_passes for branch in grown), default=0),
        "readings": tree.n_readings,
    }
