"""Home: why does a language model answer one token at a time?

It opens on a recorded real run and lets a learner make their own. Start it with `make run`, or `streamlit run app.py`.
"""

from __future__ import annotations

import streamlit as st

from pages.views import ask, live, run_stage
from pages.views.frame import Frame, page_frame, path_of_pages


def stage(frame: Frame, step: int) -> None:
    """The run stage with what belongs to it. Drawn again by a timer while a run goes on."""
    run, over = frame.run, not live.is_active()
    if st.session_state.get("home_was_active") and over:
        st.session_state["home_was_active"] = False
        st.rerun()  # the run has just ended: everything else on the page may now look at it
    st.session_state["home_was_active"] = not over
    # Places of their own: a line that comes and goes above must not move the stage to another element of the page.
    above, middle, below = st.container(), st.container(), st.container()
    with frame.errors():
        trace = run_stage.current_trace(frame, run)
        with above:
            ask.line_above(frame, lambda: run_stage.surprise(frame, trace))
        with middle:
            run_stage.show(frame, run_stage.current(frame, run, step), on_step=run_stage.keep_step)
        with below:
            run_stage.figures(frame, trace)


frame = page_frame("home")
ask.prompt_row(frame)
st.fragment(stage, run_every=live.poll_s() if live.is_active() else None)(frame, frame.settings.get("step"))
path_of_pages(frame)
