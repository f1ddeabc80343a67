"""What does the model read? Text becomes bytes, bytes become tokens, tokens are numbers."""

from __future__ import annotations

import streamlit as st

from core.tokenizer import encode, encode_prompt
from pages.views import tokens_lab
from pages.views.frame import Frame, page_frame

ENGLISH, JAPANESE, SPECIAL = "What is gravity?", "重力とは何ですか？", "<|im_end|>"


def predict_language(frame: Frame) -> None:
    """The same question in two languages, counted by the real tokenizer."""
    tokenizer = frame.loaded.tokenizer
    n_english, n_japanese = (len(encode(tokenizer, text)) for text in (ENGLISH, JAPANESE))
    characters, t = len(JAPANESE), frame.t
    if n_japanese == characters:
        options, answer = (
            [t("predict_language.same", n=n_english), t("predict_language.characters", n=characters)],
            1,
        )
    else:
        key = "more" if n_japanese > characters else "fewer"
        ratio = f"{n_japanese / characters:.1f}"
        options = [
            t("predict_language.same", n=n_english),
            t("predict_language.characters", n=characters),
            t(f"predict_language.{key}", n=n_japanese, ratio=ratio),
        ]
        answer = 2
    why = t(
        "predict_language.why",
        bytes_each=f"{len(JAPANESE.encode()) / characters:.0f}",
        times=f"{n_japanese / n_english:.1f}",
    )
    question = frame.md("predict_language.question", english=ENGLISH, n=n_english, japanese=JAPANESE)
    frame.predict("language", question, options, answer, why)


def things_to_try(frame: Frame) -> None:
    tokenizer = frame.loaded.tokenizer
    bare, spaced, capital = (encode(tokenizer, text) for text in ("gravity", " gravity", "Gravity"))
    frame.try_this(
        frame.md(
            "try_space",
            bare=" + ".join(str(token.id) for token in bare),
            spaced=" + ".join(str(token.id) for token in spaced),
            capital_n=len(capital),
        )
    )
    special = next((token for token in encode(tokenizer, SPECIAL) if token.is_special), None)
    if special is not None and getattr(tokenizer, "chat_template", None):
        forged = encode_prompt(tokenizer, SPECIAL, chat=True, system=None)
        n = sum(not added for added in forged.from_template)
        frame.try_this(frame.t("try_edge", special=special.text, forged_n=n))


tokens_lab.declare()
frame = page_frame("tokens")
tokens_lab.lab(frame)
if frame.loaded is None:
    st.caption(frame.t("model.needed"))
else:
    left, right = st.columns(2, gap="large")
    with left, frame.errors():
        predict_language(frame)
    with right, frame.errors():
        things_to_try(frame)
frame.next_page()
