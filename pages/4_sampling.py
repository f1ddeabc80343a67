"""How is one token chosen? All scores of one pass, the rules that cut them, and one throw of dice."""

from __future__ import annotations

from pages.views import sampling_lab, sampling_ways, sampling_words
from pages.views.frame import page_frame

frame = page_frame("sampling")
with frame.errors():
    trace = frame.trace
    choice = sampling_lab.choice_at(trace, frame.settings.get("step"))
    words = sampling_words.facts(trace, choice)

    frame.surprise(frame.md(words.surprise_key, **words.values))
    sampling_lab.show(frame, trace, choice)
    frame.myth(frame.md("myth_best", **words.values))
    frame.myth(frame.md("myth_rank"))
    options = [frame.md("predict.token", token=token) for token in (words.first, words.second)]
    options.append(frame.t("predict.other"))
    frame.predict("hot", frame.t("predict.question"), options, 0, frame.md("predict.why", **words.values))
    frame.try_this(frame.md("try", **words.values))
    sampling_ways.section(frame, trace, choice)
    frame.link("branching", frame.t("continue.branching"), icon=":material/call_split:")
frame.next_page()
