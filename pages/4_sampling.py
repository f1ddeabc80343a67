"""How is one token chosen?"""

from __future__ import annotations

from pages.views import sampling_lab, sampling_words
from pages.views.frame import page_frame

frame = page_frame("sampling")
trace = frame.trace
choice = sampling_lab.choice_at(trace, frame.settings.get("step"))
words = sampling_words.facts(trace, choice)

frame.surprise(frame.md(words.surprise_key, **words.values))
sampling_lab.show(frame, trace, choice)
frame.myth(frame.md("myth_best", **words.values))
frame.myth(frame.md("myth_rank"))
