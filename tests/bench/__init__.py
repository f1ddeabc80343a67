"""`make bench`: what this machine does, as one table.

Each row is a ratio, taken within one process and, where two things are compared, in pairs (one, other, one, other …),
so that a machine that is busy for a moment slows both. The absolute figures stand beside it. A row with a target says
whether it was reached. The table is printed, and written into README.md together with the machine, its load and the
date, so that no figure there is typed by hand.

A new row is one function in `engine.py` (the model) or `app.py` (the running app), decorated with `@row(...)`. Run some
rows only, without touching the README: `make bench ARGS="decode slider"` (words that occur in the rows' names).
"""

import os

import tests.conftest  # noqa: F401 (it sets what the next line takes back)

# The test suite lets waiting threads sleep at once, so that tests and servers on two cores do not starve each other.
# What is measured here must run as it does for a learner. Before torch is imported, which reads this once.
os.environ.pop("OMP_WAIT_POLICY", None)
