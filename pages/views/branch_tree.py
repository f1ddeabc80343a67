"""The branching page's component: a tree of branches as plain values for the browser, and what the browser asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from core.sampling import SamplingParams
from pages.views import cache, components, forks, sampling_lab
from pages.views import settings as settings_module
from pages.views.names import names

if TYPE_CHECKING:
    from core.trace import Trace
    from pages.views.forks import Branch, Tree
    from pages.views.frame import Frame

NAME = "branch_tree"
EXAMPLE = cache.RUNS / "fork.json"
LENGTH = 24  # tokens of a branch
POLL_S = 0.3


def sources(trace: Trace) -> tuple[str, ...]:
    """What can be forked, the one to open on first: the learner's own run, or the recorded example."""
    if not EXAMPLE.exists():
        return ("run",)
    return ("example", "run") if trace.origin == "recorded" else ("run", "example")


def tree_for(frame: Frame, source: str) -> Tree:
    """This session's tree of this source."""
    if source == "example":
        return forks.tree_from_file("example", EXAMPLE)
    return forks.tree_of("branching", frame.trace, frame.run)


def show(frame: Frame, tree: Tree, source: str) -> None:
    """Mount the component and handle what it sends."""
    data = payload(frame, tree, source)
    components.mount(
        NAME,
        data,
        f"{NAME}_{source}",
        on_grow_change=lambda: _grow(frame, tree, source),
        on_clear_change=tree.clear,
        on_place_change=lambda: _keep_place(tree, source),
    )


def payload(frame: Frame, tree: Tree, source: str) -> dict[str, Any]:
    """The component's data."""
    return {
        "tree": f"{source}.{id(tree)}",
        "prompt": " ".join(tree.asked.split())[-60:],
        "names": _names(frame, tree),
        "branches": [_branch(frame, branch) for branch in tree.branches.values()],
        "select": opening(frame, tree, source),
        "ready": cache.engine().scheduler is not None,
        "room": tree.has_room,
        "lang": frame.lang,
        "text": frame.t.group("tree"),
    }


def opening(frame: Frame, tree: Tree, source: str) -> dict[str, int]:
    """The place to look at first: where the tree parts, else the step of the URL, else the most doubtful one."""
    if tree.grown:
        return {"branch": 0, "at": next((b.at for b in tree.grown if b.parent == 0), 0)}
    step = frame.settings.get("step") if source == "run" else -1
    return {"branch": 0, "at": sampling_lab.choice_at(frame.trace, step).number if source == "run" else 0}


def _branch(frame: Frame, branch: Branch) -> dict[str, Any]:
    return {
        "id": branch.id,
        "parent": branch.parent,
        "at": branch.at,
        "state": branch.state,
        "error": frame.explain(branch.error, markdown=False) if branch.error else None,
        "copied": branch.n_copied,
        "saved": branch.passes_saved,
        "passes": branch.n_passes,
        "batch": branch.batch_size,
        "tokens": [
            [
                p.token_id,
                round(p.probability, 5),
                round(p.bits, 3),
                [[i, round(q, 5)] for i, q in p.candidates],
            ]
            for p in branch.places
        ],
    }


def _names(frame: Frame, tree: Tree) -> dict[str, list[Any]]:
    special, ids = set(), {}
    for branch in tree.branches.values():
        special |= {token.id for token in branch.tokens if token.is_special}
        for place in branch.places:
            ids.update(dict.fromkeys([place.token_id, *(i for i, _ in place.candidates)]))
    texts = names(frame.trace, ids)
    return {str(i): [text, raw, i in special] for i, (text, raw) in zip(ids, texts, strict=True)}


def _sent(source: str, name: str) -> Any:
    return (st.session_state.get(f"{NAME}_{source}") or {}).get(name)


def _grow(frame: Frame, tree: Tree, source: str) -> None:
    wanted = _sent(source, "grow") or {}
    settings = {name: frame.settings.get(name) for name in (*sampling_lab.RULES, "seed")}
    ids = [int(i) for i in wanted.get("ids", [])]
    tree.grow(
        int(wanted.get("branch", 0)),
        int(wanted.get("at", 0)),
        ids,
        SamplingParams(**settings, max_tokens=LENGTH),
    )


def _keep_place(tree: Tree, source: str) -> None:
    """A place on the run itself is a step, the same on every page."""
    place = _sent(source, "place") or {}
    at = int(place.get("at", 0))
    if source == "run" and place.get("branch") == 0 and at < len(tree.trunk.ends):
        settings = settings_module.current()
        n_chunks = len(tree.trunk.ends) - len(
            tree.trunk.tokens
        )  # passes that read a long prompt and chose nothing
        if settings.set("step", at + 1 + n_chunks):
            settings_module.write_url(settings)
