"""Texts of candidates before the model is loaded: the recorded vocabulary is the tokenizer's."""

from __future__ import annotations

from core.tokenizer import make_tokens
from pages.views import names


def test_the_recorded_vocabulary_is_the_tokenizers(recorded, tokenizer) -> None:
    ids = range(len(tokenizer))
    assert names.tokens_of(recorded, ids) == make_tokens(tokenizer, ids)
    assert len(tokenizer) == recorded.spec.vocab_size


def test_an_id_beyond_the_vocabulary_is_shown_as_its_number(recorded) -> None:
    assert names.tokens_of(recorded, [10**6])[0].text == "#1000000"
