"""Home: why does a language model answer one token at a time?

Run it with `make run`, or `streamlit run app.py`.
"""

from __future__ import annotations

from pages.views.frame import page_frame

frame = page_frame("home")
