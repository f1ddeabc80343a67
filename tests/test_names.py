"""Texts of candidates before the model is loaded: the bundled vocabulary is the tokenizer's."""

from __future__ import annotations

from core.tokenizer import make_tokens
from pages.views import names


def test_the_bundled_vocabulary_is_the_tokenizers(recorded, tokenizer) -> None:
    bundled = names.load_vocabulary(names.vocabulary_path(recorded.spec.name))
    assert bundled == tuple(token.bytes for token in make_tokens(tokenizer, range(recorded.spec.vocab_size)))


def test_an_id_beyond_the_vocabulary_is_shown_as_its_number(recorded) -> None:
    assert names.names(recorded, [10**6]) == [("#1000000", "")]
