"""The text of any token of the vocabulary, before and after the model is loaded.

The vocabulary of the default model lies beside the recorded runs, so that a page can name the candidates of a recorded
run at once. For any other model the loaded tokenizer is asked. Nobody waits: a token without a known text is shown by
its id until the tokenizer is there.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterable
from typing import TYPE_CHECKING

from core.tokenizer import Token, make_tokens
from pages.views import cache

if TYPE_CHECKING:
    from core.trace import Trace

FILE = cache.RUNS / "vocabulary.txt.gz"


@functools.lru_cache(maxsize=1)
def _recorded_vocabulary() -> tuple[str, ...]:
    return tuple(gzip.decompress(FILE.read_bytes()).decode().split("\n")) if FILE.exists() else ()


@functools.lru_cache(maxsize=1)
def _recorded_model() -> str:
    return cache.recorded_trace().spec.name


def tokens_of(trace: Trace, ids: Iterable[int]) -> tuple[Token, ...]:
    """The tokens with these ids, in this order (positions 0, 1, …), as the model of `trace` reads them."""
    wanted = [int(token_id) for token_id in ids]
    if trace.spec.name == _recorded_model() and _recorded_vocabulary():
        return tuple(_from_line(token_id, position) for position, token_id in enumerate(wanted))
    loaded = cache.engine().loaded
    if loaded is not None:
        return make_tokens(loaded.tokenizer, wanted)  # type: ignore[arg-type]
    known = {token.id: token for token in trace.tokens}
    return tuple(known.get(token_id) or _unknown(token_id) for token_id in wanted)


def _from_line(token_id: int, position: int) -> Token:
    lines = _recorded_vocabulary()
    if not 0 <= token_id < len(lines):
        return _unknown(token_id)
    data = bytes.fromhex(lines[token_id].lstrip("!"))
    return Token(token_id, data, data.decode("utf-8", "replace"), lines[token_id].startswith("!"), position)


def _unknown(token_id: int) -> Token:
    text = f"#{token_id}"
    return Token(token_id, text.encode(), text, False, 0)
