"""The data of the tokens lab: what the browser needs to run the tokenizer itself, and one row of the embedding table.

Tokens must follow each key stroke, for thirty learners at once. So the tokenizer goes to the browser: a list of merges
of about 200 kB, sent once. Python hears of a text when the learner pauses; it then keeps it in the URL and looks up the
embedding row of the selected token. Where a tokenizer is more than a list of merges, or is not loaded yet, Python
sends the tokens instead (`given`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from core.errors import ExplainerError, SystemPromptRefusedError, UnsupportedTokenizerError
from core.tokenizer import (
    BpeTable,
    BpeWord,
    EncodedPrompt,
    Token,
    bpe_table,
    chat_parts,
    clean_text,
    encode_prompt,
    make_tokens,
    prompt_merges,
)
from pages.views import cache, components, live, settings

if TYPE_CHECKING:
    from core.model import LoadedModel
    from core.tokenizer import Tokenizer
    from core.trace import Trace
    from pages.views.frame import Frame

KEY = "tokens_lab"
MAX_CHARACTERS = 100_000
MAX_GIVEN = 600  # tokens sent by Python; the rest is counted
MAX_DRAWN = 400  # tokens drawn by the component, as its main.js says
EXAMPLES = (
    ("word", "antidisestablishmentarianism"),
    ("number", "1234567890"),
    ("japanese", "今日は"),
    ("emoji", "👩\u200d👩\u200d👧"),
    ("code", 'for i in range(10):\n    print(i, "done")'),
    ("spaces", "Once upon a time   "),
    ("berry", "strawberry"),
    ("special", "Bye<|im_end|>"),
)


def declare() -> None:
    """The settings of the tokens page: its own text (None: the run's prompt), selected token, merges done."""
    settings.declare("text", None, str, lambda text: text is None or len(text) <= MAX_CHARACTERS)
    settings.declare("token", -1, int, settings.between(-1, MAX_CHARACTERS * 4))
    settings.declare("merge", 0, int, settings.between(0, MAX_CHARACTERS * 4))


def lab(frame: Frame) -> None:
    """Mount the lab. What the learner does in it re-runs this part only."""
    loaded = frame.loaded
    table = bpe_table(loaded.tokenizer) if loaded else None
    with st.container(gap=None):
        st.fragment(_lab)(frame, loaded, chosen(frame))
        if table is not None:
            components.mount("tokens_store", table_data(table), key="tokens_table")


def _lab(frame: Frame, loaded: LoadedModel | None, first: Chosen) -> None:
    with frame.errors():
        now = chosen(frame)
        data, prompt = lab_data(frame, loaded, now, first)
        components.mount("tokens_lab", data, key=KEY, on_lab_change=_commit)
        if loaded is not None and prompt is not None and prompt.tokens:
            token = prompt.tokens[selected(prompt, now.token)]
            components.mount("tokens_store", row_data(loaded, token), key="tokens_row")


@dataclass(frozen=True)
class Chosen:
    """What the learner chose in the lab, and the number of the last message that said so."""

    typed: str
    chat: bool
    token: int
    merge: int
    seq: int


def chosen(frame: Frame) -> Chosen:
    """The settings now. The text in the box is the learner's own, else the prompt of the run."""
    own, get = frame.settings.get("text"), frame.settings.get
    typed = clean_text(frame.trace.prompt if own is None else own)
    return Chosen(
        typed, bool(get("chat")), get("token"), get("merge"), st.session_state.get("otat_tokens_seq", 0)
    )


def _commit() -> None:
    value = st.session_state[KEY].get("lab")
    if not isinstance(value, Mapping):
        return
    kept = settings.current()
    typed, default = value.get("typed"), _default_text()
    if isinstance(typed, str):
        kept.set("text", None if typed == default else typed)
    for name in ("chat", "token", "merge"):
        kind = bool if name == "chat" else int
        if isinstance(value.get(name), int):
            kept.set(name, kind(value[name]))
    if isinstance(value.get("seq"), int):
        st.session_state["otat_tokens_seq"] = value["seq"]
    settings.write_url(kept)


def _default_text() -> str:
    return clean_text((live.finished_trace() or cache.recorded_trace()).prompt)


# ---- data ------------------------------------------------------------------------------------------------------------


def lab_data(
    frame: Frame, loaded: LoadedModel | None, now: Chosen, first: Chosen | None = None
) -> tuple[dict[str, Any], EncodedPrompt | None]:
    """What the component gets (see its main.js), and the encoded prompt where there is a tokenizer.

    Where the browser runs the tokenizer, the data stay those of the page's `first` drawing: the browser knows better
    by then, and Streamlit does not send again what has not changed (a component's data travel with its whole script).
    """
    tokenizer: Any = loaded.tokenizer if loaded else None
    system = frame.settings.get("system") or None
    parts, has_template = _parts(tokenizer, system)
    table = bpe_table(tokenizer) if tokenizer else None
    here = table is not None and (parts is not None or not has_template)
    chat = now.chat and has_template
    prompt = _encode(tokenizer, now.typed, chat, system) if tokenizer else None
    given = (
        None
        if here
        else _given_by_model(tokenizer, prompt, now.typed, chat)
        if prompt
        else _given_by_run(frame, now.typed, chat)
    )
    shown = first if here and first is not None else now
    spec = loaded.spec if loaded else frame.trace.spec
    data = {
        "typed": shown.typed,
        "chat": shown.chat and has_template,
        "token": shown.token,
        "merge": shown.merge,
        "seq": shown.seq,
        "parts": parts if parts is not None else ([] if has_template else None),
        "table": _table_key() if here else None,
        "given": given,
        "examples": [[frame.t(f"examples.{name}"), example] for name, example in EXAMPLES],
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "n_merges": table.n_merges if table else 0,
        "lang": frame.lang,
        "text": frame.t.group("lab") | {"myth": frame.t("myth")},
    }
    return data, prompt


def _table_key() -> str:
    return f"table:{cache.engine().source or 'default'}"


def _parts(tokenizer: Tokenizer | None, system: str | None) -> tuple[list[dict[str, Any]] | None, bool]:
    """The chat template's parts, and whether there is a template at all (assumed while nothing is loaded)."""
    if tokenizer is None:
        return None, True
    try:
        made = chat_parts(tokenizer, system)
    except SystemPromptRefusedError:
        made = chat_parts(tokenizer, None)
    except ExplainerError:
        return None, False
    if made is None:
        return None, True
    return [{"text": p.text, "role": p.role, "specials": [list(s) for s in p.specials]} for p in made], True


def _encode(tokenizer: Tokenizer, typed: str, chat: bool, system: str | None) -> EncodedPrompt:
    try:
        return encode_prompt(tokenizer, typed, chat=chat, system=system)
    except SystemPromptRefusedError:
        return encode_prompt(tokenizer, typed, chat=chat, system=None)


def table_data(table: BpeTable) -> dict[str, Any]:
    """The list of merges for the tokens store. Ids below 65,536 travel in two bytes.

    Most tokenizers number the results of their merges in order; then the results need not travel.
    """
    flat = np.asarray(table.merges).reshape(-1, 3)
    first = int(flat[0, 2]) if len(flat) else 0
    in_order = bool(np.array_equal(flat[:, 2], first + np.arange(len(flat))))
    columns = flat[:, :2] if in_order else flat
    kind = np.uint16 if not len(flat) or int(columns.max()) < 65_536 else np.uint32
    meta = {
        "key": _table_key(),
        "width": columns.shape[1],
        "first_id": first,
        "byte_ids": list(table.byte_ids),
        "added": [list(entry) for entry in table.added],
    }
    return {"values": np.ascontiguousarray(columns, dtype=kind).ravel(), "meta": meta}


def row_data(loaded: LoadedModel, token: Token) -> dict[str, Any]:
    """One row of the embedding table and the tokens whose rows are nearest, for the tokens store."""
    from core.embedding import embedding_row, nearest_rows

    row = embedding_row(loaded, token.id)
    near = nearest_rows(loaded, token.id)
    tokens = make_tokens(loaded.tokenizer, [each.token_id for each in near])
    shown = [
        [each.token_id, other.bytes.hex(), round(each.cosine, 4), other.is_special]
        for each, other in zip(near, tokens, strict=True)
    ]
    meta = {
        "key": f"row{token.id}",
        "id": token.id,
        "low": float(row.min()),
        "high": float(row.max()),
        "near": shown,
    }
    return {"values": row, "meta": meta}


def selected(prompt: EncodedPrompt, position: int) -> int:
    """The selected position; without one the longest typed token, as the component chooses it too."""
    if 0 <= position < len(prompt.tokens):
        return position
    yours = [t for t, added in zip(prompt.tokens, prompt.from_template, strict=True) if not added]
    plain = [t for t in yours if not t.is_special and t.position < MAX_DRAWN]
    return max(plain, key=lambda t: len(t.bytes)).position if plain else yours[0].position if yours else 0


def _given_by_model(tokenizer: Tokenizer, prompt: EncodedPrompt, typed: str, chat: bool) -> dict[str, Any]:
    try:
        words: Sequence[BpeWord] | None = prompt_merges(tokenizer, prompt)
    except UnsupportedTokenizerError:
        words = None
    return _given(prompt.tokens, prompt.from_template, words, typed, chat)


def _given_by_run(frame: Frame, typed: str, chat: bool) -> dict[str, Any] | None:
    trace: Trace = frame.trace
    if typed != clean_text(trace.prompt) or chat != trace.chat:
        return None
    return _given(trace.tokens[: trace.n_prompt], trace.from_template, None, typed, chat)


def _given(
    tokens: Sequence[Token],
    from_template: Sequence[bool],
    words: Sequence[BpeWord] | None,
    typed: str,
    chat: bool,
) -> dict[str, Any]:
    shown = [
        [token.id, token.bytes.hex(), token.is_special, not added]
        for token, added in list(zip(tokens, from_template, strict=True))[:MAX_GIVEN]
    ]
    return {
        "typed": typed,
        "chat": chat,
        "n_tokens": len(tokens),
        "n_yours": sum(not added for added in from_template),
        "tokens": shown,
        "words": None if words is None else [_word(word) for word in words[:MAX_GIVEN]],
    }


def _word(word: BpeWord) -> dict[str, Any]:
    return {
        "hex": b"".join(word.symbols).hex(),
        "unknown": word.unknown.hex(),
        "special": word.is_special,
        "ids": list(word.ids),
        "merges": [[merge.boundary, merge.rank] for merge in word.merges],
    }
