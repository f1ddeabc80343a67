"""Write down the text of every token of the default model.

A recorded run is on screen before the model and its tokenizer are loaded, and its candidates (tokens that were possible
but not chosen) must have names. So the bytes of all tokens are kept beside the recordings: one line of hexadecimal per
id, gzip-compressed. A test compares the file with the tokenizer.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from core.model import load_tokenizer
from core.tokenizer import make_tokens

PATH = Path(__file__).resolve().parent.parent / "assets" / "runs" / "vocabulary.txt.gz"


def main() -> None:
    tokenizer = load_tokenizer()
    tokens = make_tokens(tokenizer, range(len(tokenizer)))  # type: ignore[arg-type]
    lines = "\n".join(("!" if token.is_special else "") + token.bytes.hex() for token in tokens)
    # mtime=0: recording again gives the same file
    PATH.write_bytes(gzip.compress(lines.encode(), compresslevel=9, mtime=0))
    print(f"{PATH.name}: {len(tokens):,} tokens, {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
