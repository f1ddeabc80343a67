"""The texts of tokens that a run did not choose.

A trace holds the texts of its own tokens. Its candidates are only ids: what the other 49,147 tokens are called is known
to the tokenizer, which comes with the model. For a recorded run, drawn before the model is there, the same names lie in
`assets/data/vocabulary-<model>.gz`: the bytes of each token in hex, one line per id.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pages.views import cache

if TYPE_CHECKING:
    from core.trace import Trace

DATA = Path(__file__).resolve().parents[2] / "assets" / "data"

Name = tuple[str, str]  # text (parts of a character read as U+FFFD), bytes in hex


def vocabulary_path(model: str) -> Path:
    """Where the bundled names of a model are, whether or not they are there."""
    return DATA / f"vocabulary-{model.replace('/', '_')}.gz"


def save_vocabulary(tokenizer: Any, n_tokens: int, path: Path) -> None:
    """Write the names of all tokens (`make record` does so for the recorded runs' model)."""
    from core.tokenizer import make_tokens

    lines = "\n".join(token.bytes.hex() for token in make_tokens(tokenizer, range(n_tokens)))
    path.write_bytes(gzip.compress(lines.encode("ascii"), compresslevel=9, mtime=0))


def load_vocabulary(path: Path) -> tuple[bytes, ...]:
    """The bytes of every token, by id."""
    lines = gzip.decompress(path.read_bytes()).decode("ascii").split("\n")
    return tuple(bytes.fromhex(line) for line in lines)


def names(trace: Trace, ids: Iterable[int]) -> list[Name]:
    """Text and bytes (hex) of any token ids of the model that made this run."""
    wanted = [int(i) for i in ids]
    loaded = cache.engine().loaded
    if loaded is not None and loaded.spec.name == trace.spec.name:
        from core.tokenizer import make_tokens

        return [(token.text, token.bytes.hex()) for token in make_tokens(loaded.tokenizer, wanted)]
    path = vocabulary_path(trace.spec.name)
    known = {token.id: (token.text, token.bytes.hex()) for token in trace.tokens}
    table = cache.vocabulary(str(path)) if path.exists() else ()
    return [known.get(i) or _named(table, i) for i in wanted]


def _named(table: tuple[bytes, ...], token_id: int) -> Name:
    if token_id >= len(table):
        return (f"#{token_id}", "")
    return (table[token_id].decode("utf-8", errors="replace"), table[token_id].hex())
