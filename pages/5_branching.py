"""What if it had said something else? Other tokens in one place of a run, and where they lead."""

from __future__ import annotations

import streamlit as st

from pages.views import branch_tree, branch_words, controls, settings
from pages.views.forks import Tree
from pages.views.frame import Frame, page_frame

settings.declare("fork_of", "", str, settings.one_of("", "example", "run"))


def living_tree(frame: Frame, tree: Tree, source: str, timed: bool) -> None:
    """The tree and what is counted on it. Drawn again by a timer while something grows."""
    tree.advance()
    if tree.is_growing != timed:
        st.rerun()  # once, so that the timer starts or stops
    with frame.errors():
        at = branch_tree.opening(frame, tree, source)["at"]
        words = branch_words.opposites if source == "example" else branch_words.surprise
        frame.surprise(words(frame, tree) if source == "example" else words(frame, tree, at))
        branch_tree.show(frame, tree, source)
        counted = branch_words.totals(tree)
        if counted["branches"]:
            figures = ("tokens", "longest", "copied", "together")
            frame.figures([(frame.t(f"figure.{name}"), f"{counted[name]:,}", "measured") for name in figures])
            frame.myth(frame.md("myth_parallel", **counted))
        if counted["readings"]:
            st.markdown(f":small[{frame.t('readings', n=counted['readings'])}]")


frame = page_frame("branching")
with frame.errors():
    choices = branch_tree.sources(frame.trace)
    source = controls.select(frame, "fork_of", choices) if len(choices) > 1 else choices[0]
    tree = branch_tree.tree_for(frame, source)
    growing = tree.is_growing
    st.fragment(living_tree, run_every=branch_tree.POLL_S if growing else None)(frame, tree, source, growing)

    n_shared = len(tree.prompt) + branch_tree.opening(frame, tree, source)["at"]
    options = [frame.t("predict.all", n=n_shared), frame.t("predict.one"), frame.t("predict.none")]
    frame.predict(
        "again", frame.t("predict.question", n=n_shared), options, 2, frame.md("predict.why", n=n_shared)
    )
    frame.try_this(frame.md("try", **branch_words.surest(frame, tree)))
frame.next_page()
