"""What the model reads: text becomes bytes, bytes become tokens, tokens are numbers.

A model never sees letters. The text is written as UTF-8 bytes and cut roughly at words (pre-tokenization).
Inside a word, neighbouring symbols are joined again and again: of all neighbours that stand in the
tokenizer's list of merges, the pair that stands earliest in the list (the lowest rank) goes first. What
remains when no pair is in the list are the tokens. Each has an id, and the id picks one row of the
embedding table. This is byte-level byte-pair encoding.

So a token is neither a word nor a letter. It is a sequence of bytes that was frequent when the list was
made: a whole English word with its space, or a third of one Japanese character. `Token.bytes` is therefore
the truth, `Token.text` only its reading, and `character_groups` says which tokens form whole characters
together.

In a chat, a template puts special tokens around what the learner typed. Typed text is data: inside the
template, "<|im_end|>" typed by a learner is ten ordinary characters and cannot end the turn. Without the
template nothing stands between the learner and the tokenizer, and the same text is read as the special
token, so that the template can be typed by hand.

Functions take the tokenizer as an argument; this module itself imports neither torch nor transformers.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from core.errors import NoChatTemplateError, SystemPromptRefusedError, UnsupportedTokenizerError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

# One well-formed UTF-8 character, or the longest beginning of one that is cut off (Unicode table 3-7).
# A stray byte stands alone.
_UTF8_UNIT = re.compile(
    rb"[\x00-\x7f]"
    rb"|[\xc2-\xdf][\x80-\xbf]?"
    rb"|\xe0(?:[\xa0-\xbf][\x80-\xbf]?)?"
    rb"|[\xe1-\xec\xee\xef](?:[\x80-\xbf]{1,2})?"
    rb"|\xed(?:[\x80-\x9f][\x80-\xbf]?)?"
    rb"|\xf0(?:[\x90-\xbf][\x80-\xbf]{0,2})?"
    rb"|[\xf1-\xf3](?:[\x80-\xbf]{1,3})?"
    rb"|\xf4(?:[\x80-\x8f][\x80-\xbf]{0,2})?"
    rb"|[\x80-\xff]"
)
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_MARKS = {"system": "\ue000system\ue001", "user": "\ue000user\ue001"}


@dataclass(frozen=True)
class Token:
    """One token. `text` is its bytes decoded alone: a part of a character reads as U+FFFD there."""

    id: int
    bytes: bytes
    text: str
    is_special: bool
    position: int


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the model gets it.

    tokens         in order, positions from 0
    from_template  per token: True when the learner typed none of its characters (the template's own text, its
                   default system prompt, special tokens added around the text)
    text           the whole text that was encoded, template included
    spans          per token: (start, stop) characters of `text`; parts of one split character share its span
                   (inside a word that holds bytes without a token, the library's spans are shifted by those)
    """

    tokens: tuple[Token, ...]
    from_template: tuple[bool, ...]
    text: str
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)


@dataclass(frozen=True)
class BpeMerge:
    """One merge: `left` and `right` become one symbol.

    rank      the line of the pair in the list of merges (0 = first)
    boundary  the byte offset in the word at which the two were separated: a merge is one cut removed
    """

    left: bytes
    right: bytes
    rank: int
    boundary: int


@dataclass(frozen=True)
class BpeWord:
    """One pre-token (or one special token) and how it becomes tokens.

    text      the pre-token as the tokenizer sees it
    symbols   what merging starts from: one symbol per byte (a special token is one symbol and has no merges)
    merges    in the order in which they happen
    ids       the final token ids
    unknown   bytes that this vocabulary has no token for: they are dropped, the model never sees them
    whole     True when the vocabulary's own entry for the whole word was taken, so that no merge was needed
    """

    text: str
    symbols: tuple[bytes, ...]
    merges: tuple[BpeMerge, ...]
    ids: tuple[int, ...]
    is_special: bool = False
    unknown: bytes = b""
    whole: bool = False

    def symbols_after(self, n_merges: int) -> tuple[bytes, ...]:
        """The symbols when the first `n_merges` merges are done."""
        if self.whole:
            return (b"".join(self.symbols),)
        joined = {merge.boundary for merge in self.merges[:n_merges]}
        ends = list(itertools.accumulate(len(symbol) for symbol in self.symbols))
        cuts = [0, *(end for end in ends if end not in joined)]
        data = b"".join(self.symbols)
        return tuple(data[start:stop] for start, stop in itertools.pairwise(cuts))


# ---- encoding --------------------------------------------------------------------------------------------


def clean_text(text: str) -> str:
    """The text as UTF-8 can hold it: half a surrogate pair becomes U+FFFD, as in a browser."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encode(tokenizer: Tokenizer, text: str) -> tuple[Token, ...]:
    """The tokens of a text, nothing added. Special tokens written out in the text are recognized."""
    encoding = _backend(tokenizer).encode(clean_text(text), add_special_tokens=False)
    return make_tokens(tokenizer, encoding.ids)


def make_tokens(tokenizer: Tokenizer, ids: Iterable[int], first_position: int = 0) -> tuple[Token, ...]:
    """Tokens for ids that a model gave or a tokenizer made."""
    facts = _facts(tokenizer)
    return tuple(facts.token(int(each), position) for position, each in enumerate(ids, first_position))


def encode_prompt(tokenizer: Tokenizer, prompt: str, *, chat: bool, system: str | None) -> EncodedPrompt:
    """The prompt inside the model's chat template, or raw.

    system: None for the template's own default; any other text replaces it and counts as the learner's (the
    default typed unchanged is still the default). Without the template there is no system prompt: raw text
    gets only what the tokenizer itself adds (a beginning-of-text token in some models, nothing in the
    default one).
    Raises NoChatTemplateError, SystemPromptRefusedError.
    """
    prompt = clean_text(prompt)
    if not chat:
        return _encode_raw(tokenizer, prompt)
    system = None if system is None else clean_text(system)
    if system is not None and system == default_system(tokenizer):
        system = None
    return _encode_parts(tokenizer, _template_parts(tokenizer, prompt, system))


def default_system(tokenizer: Tokenizer) -> str:
    """The system prompt that the chat template puts in when none is given; empty when it puts in none."""
    user = {"role": "user", "content": _MARKS["user"]}
    bare = _render(tokenizer, [user])
    try:
        marked = _render(tokenizer, [{"role": "system", "content": _MARKS["system"]}, user])
    except SystemPromptRefusedError:
        return ""
    before, _, after = marked.partition(_MARKS["system"])
    fits = bare.startswith(before) and bare.endswith(after) and len(bare) >= len(before) + len(after)
    return bare[len(before) : len(bare) - len(after)] if fits else ""


def _encode_raw(tokenizer: Tokenizer, text: str) -> EncodedPrompt:
    encoding = _backend(tokenizer).encode(text)
    added = tuple(bool(flag) for flag in encoding.special_tokens_mask)
    return EncodedPrompt(make_tokens(tokenizer, encoding.ids), added, text, tuple(encoding.offsets))


@dataclass(frozen=True)
class _Part:
    """A stretch of the rendered template: the template's own words, or what the learner typed."""

    text: str
    typed: bool
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.text)


def _template_parts(tokenizer: Tokenizer, prompt: str, system: str | None) -> list[_Part]:
    """Where the learner's text lies in the rendered template.

    The template is rendered a second time with marks in place of the typed texts. So nothing is searched
    for in the learner's text, and a prompt that looks like a template cannot lead the search astray.
    """
    typed = {"user": prompt} if system is None else {"system": system, "user": prompt}
    rendered = _render(tokenizer, [{"role": role, "content": text} for role, text in typed.items()])
    marked = _render(tokenizer, [{"role": role, "content": _MARKS[role]} for role in typed])
    pieces = re.split("(" + "|".join(_MARKS.values()) + ")", marked)
    # Some templates trim what they are given; the right trimming is the one that gives the rendered text
    # again.
    for texts in itertools.product(*([t, t.strip(), t.lstrip(), t.rstrip()] for t in typed.values())):
        fill = {_MARKS[role]: text for role, text in zip(typed, texts, strict=True)}
        parts = list(_parts((fill.get(piece, piece), piece in fill) for piece in pieces))
        if "".join(part.text for part in parts) == rendered:
            return parts
    # This template rewrites the text: nothing can be told apart.
    return [_Part(rendered, typed=False, start=0)]


def _parts(pieces: Iterable[tuple[str, bool]]) -> Iterator[_Part]:
    start = 0
    for text, typed in pieces:
        yield _Part(text, typed, start)
        start += len(text)


def _render(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise NoChatTemplateError()
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "jinja2":  # only the template's own refusals
            raise
        if messages[0]["role"] == "system":
            raise SystemPromptRefusedError() from error
        raise NoChatTemplateError() from error


def _encode_parts(tokenizer: Tokenizer, parts: Sequence[_Part]) -> EncodedPrompt:
    """Encode the rendered template; only its own special tokens are special."""
    text = "".join(part.text for part in parts)
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    cursor = 0
    for token_id, (start, stop) in [*_template_specials(tokenizer, parts), (-1, (len(text), len(text)))]:
        encoding = _encode_plain(tokenizer, text[cursor:start])
        ids.extend(encoding.ids)
        spans.extend((cursor + a, cursor + b) for a, b in encoding.offsets)
        if token_id >= 0:
            ids.append(token_id)
            spans.append((start, stop))
        cursor = stop
    typed = [(part.start, part.stop) for part in parts if part.typed and part.text]
    from_template = tuple(not any(_touch(span, other) for other in typed) for span in spans)
    return EncodedPrompt(make_tokens(tokenizer, ids), from_template, text, tuple(spans))


def _template_specials(tokenizer: Tokenizer, parts: Sequence[_Part]) -> Iterator[tuple[int, tuple[int, int]]]:
    facts = _facts(tokenizer)
    for part in parts:
        if part.typed:
            continue
        encoding = _backend(tokenizer).encode(part.text, add_special_tokens=False)
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in facts.special:
                start, stop = facts.reach(token_id, part.text, start, stop)
                yield token_id, (part.start + start, part.start + stop)


def _encode_plain(tokenizer: Tokenizer, text: str) -> Any:
    """Encode a text in which nothing is a special token."""
    facts = _facts(tokenizer)
    looks_special = any(content in text for content in facts.special.values())
    backend = facts.plain if looks_special else _backend(tokenizer)
    return backend.encode(text, add_special_tokens=False)


def _touch(span: tuple[int, int], typed: tuple[int, int]) -> bool:
    start, stop = span
    if start == stop:  # some tokenizers trim the span of a token that is only spaces down to its end
        return typed[0] < stop <= typed[1]
    return start < typed[1] and stop > typed[0]


# ---- characters ------------------------------------------------------------------------------------------


def character_groups(tokens: Sequence[Token]) -> tuple[tuple[int, int], ...]:
    """(start, stop) ranges of tokens that form whole characters (code points) together; all tokens, in order.

    Most ranges have length 1. A character spread over three tokens gives one range of length 3; the
    beginning of a character whose rest has not arrived is a range too. A byte that belongs to no character
    joins nothing.
    """
    ends = list(itertools.accumulate(len(token.bytes) for token in tokens))
    inside = _inside_characters(b"".join(token.bytes for token in tokens), ends)
    cuts = [0, *(i for i in range(1, len(tokens)) if ends[i - 1] not in inside), len(tokens)]
    return tuple(itertools.pairwise(cuts)) if tokens else ()


def _inside_characters(data: bytes, offsets: Iterable[int]) -> set[int]:
    """Those byte offsets that cut a character in two."""
    boundaries = {match.start() for match in _UTF8_UNIT.finditer(data)} | {len(data)}
    return {offset for offset in offsets if offset not in boundaries}


# ---- byte-pair encoding, one merge at a time -------------------------------------------------------------


def bpe_merges(tokenizer: Tokenizer, text: str) -> tuple[BpeWord, ...]:
    """How a raw text becomes tokens: its pre-tokens in order, each with its merges.

    The concatenated `ids` are exactly those of `encode(tokenizer, text)`.
    Raises UnsupportedTokenizerError when the tokenizer is not byte-level BPE.
    """
    encoding = _backend(tokenizer).encode(clean_text(text), add_special_tokens=False)
    tokens = make_tokens(tokenizer, encoding.ids)
    return prompt_merges(tokenizer, EncodedPrompt(tokens, (), clean_text(text), tuple(encoding.offsets)))


def prompt_merges(tokenizer: Tokenizer, prompt: EncodedPrompt) -> tuple[BpeWord, ...]:
    """The same for an encoded prompt, template included. The concatenated `ids` are `prompt.ids`."""
    facts = _facts(tokenizer)
    facts.require_byte_level_bpe()
    words: list[BpeWord] = []
    cursor = 0
    for token, (start, stop) in zip(prompt.tokens, prompt.spans, strict=True):
        if token.id in facts.added:
            start, stop = facts.reach(token.id, prompt.text, start, stop)
            words.extend(_merge_words(tokenizer, prompt.text[cursor:start]))
            words.append(BpeWord(token.text, (token.bytes,), (), (token.id,), is_special=True))
            cursor = stop
    words.extend(_merge_words(tokenizer, prompt.text[cursor:]))
    return tuple(words)


def pre_tokenize(tokenizer: Tokenizer, text: str) -> tuple[str, ...]:
    """The pre-tokens of a text without special tokens, in the byte alphabet (one character for each byte)."""
    backend = _backend(tokenizer)
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if not text:
        return ()
    return tuple(piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text))


def _merge_words(tokenizer: Tokenizer, text: str) -> Iterator[BpeWord]:
    facts = _facts(tokenizer)
    for word in pre_tokenize(tokenizer, text):
        yield _merge_word(facts, word)


def _merge_word(facts: _Facts, word: str) -> BpeWord:
    data = _from_byte_alphabet(word)
    text = data.decode("utf-8", "replace")
    known = [character for character in word if character in facts.vocab]
    symbols = tuple(_from_byte_alphabet(character) for character in known)
    if facts.ignore_merges and word in facts.vocab:
        return BpeWord(text, symbols, (), (facts.vocab[word],), whole=True)
    unknown = bytes(BYTE_OF[character] for character in word if character not in facts.vocab)
    ids = [facts.vocab[character] for character in known]
    merges = tuple(_run_merges(facts, ids))  # rewrites ids in place: merged-away places become -1
    return BpeWord(text, symbols, merges, tuple(each for each in ids if each >= 0), unknown=unknown)


def _run_merges(facts: _Facts, ids: list[int]) -> Iterator[BpeMerge]:
    """Join neighbours, lowest rank first, leftmost first among equals.

    A heap of candidate pairs over a linked list; a candidate whose neighbours have changed meanwhile is
    stale and skipped. O(n log n), so that a word of 100,000 letters is fine.
    """
    n = len(ids)
    left, right = list(range(-1, n - 1)), [*range(1, n), -1]
    heap = [entry for place in range(n - 1) if (entry := facts.candidate(ids, place, place + 1))]
    heapq.heapify(heap)
    while heap:
        _, place, new_id = heapq.heappop(heap)
        other = right[place]
        found = facts.merges.get((ids[place], ids[other])) if ids[place] >= 0 and other >= 0 else None
        if found is None or found[1] != new_id:
            continue
        yield BpeMerge(facts.bytes_of(ids[place]), facts.bytes_of(ids[other]), found[0], other)
        ids[place], ids[other] = new_id, -1
        right[place] = right[other]
        if right[other] >= 0:
            left[right[other]] = place
        for a, b in ((left[place], place), (place, right[place])):
            if a >= 0 and b >= 0 and (entry := facts.candidate(ids, a, b)):
                heapq.heappush(heap, entry)


# ---- the same tokenizer somewhere else -------------------------------------------------------------------


@dataclass(frozen=True)
class BpeTable:
    """All that another program needs to make the same tokens: the list of merges implies the vocabulary.

    byte_ids   256 token ids, one per byte; -1 for a byte that has no token
    merges     flat: left id, right id, result id of rank 0, then of rank 1, …
    added      (id, text, is_special) of every added token
    """

    byte_ids: tuple[int, ...]
    merges: array[int]
    added: tuple[tuple[int, str, bool], ...]

    @property
    def n_merges(self) -> int:
        return len(self.merges) // 3


@dataclass(frozen=True)
class ChatPart:
    """A stretch of the chat template. `role` is "template", "system" (a system prompt of the learner's) or "user".

    specials: (id, start, stop) of the special tokens in a template stretch. The user's stretch is empty: it is where
    the prompt goes, unchanged.
    """

    text: str
    role: str
    specials: tuple[tuple[int, int, int], ...] = ()


def bpe_table(tokenizer: Tokenizer) -> BpeTable | None:
    """The tokenizer as a table, or None where a table and GPT-2's rule for words are not the whole truth.

    The rule for words (pre-tokenization), in any language of regular expressions that knows Unicode:
    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
    """
    return _facts(tokenizer).table


def chat_parts(tokenizer: Tokenizer, system: str | None) -> tuple[ChatPart, ...] | None:
    """The chat template around any prompt, or None where the template changes the prompt it is given.

    system as in `encode_prompt`. Raises NoChatTemplateError, SystemPromptRefusedError.
    """
    if system is not None and clean_text(system) == default_system(tokenizer):
        system = None
    probe = " x\n"  # a template that trims would change it
    parts = _template_parts(tokenizer, probe, None if system is None else clean_text(system))
    typed = [part.text for part in parts if part.typed]
    if typed != [text for text in (system, probe) if text is not None]:
        return None
    roles = iter(["user"] if system is None else ["system", "user"])
    made = []
    for part in parts:
        role = next(roles) if part.typed else "template"
        specials = tuple(
            (i, a - part.start, b - part.start) for i, (a, b) in _template_specials(tokenizer, [part])
        )
        made.append(ChatPart("" if role == "user" else part.text, role, specials))
    return tuple(made)


# ---- what is read once from a tokenizer ------------------------------------------------------------------


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: each of the 256 bytes as one visible character. Bytes that print keep their own."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()


def _from_byte_alphabet(piece: str) -> bytes:
    return bytes(BYTE_OF[character] for character in piece)


@dataclass(frozen=True, eq=False)
class _Facts:
    """A tokenizer's own tables, read from the JSON form in which it describes itself."""

    vocab: dict[str, int]
    pieces: dict[int, str]
    added: dict[int, str]  # id -> text of every added token
    special: dict[int, str]  # those of them that are special
    strips: dict[int, tuple[bool, bool]]  # those that swallow the spaces on their (left, right)
    ignore_merges: bool
    byte_level: bool  # pieces are written in the byte alphabet
    portable: bool  # words are cut by GPT-2's rule and by nothing else
    obstacle: str | None  # why the merges cannot be followed, if they cannot
    source: Any

    @cached_property
    def merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(left id, right id) -> (rank, id of the result)."""
        lines = json.loads(self.source.to_str())["model"]["merges"]
        pairs = (line.split(" ", 1) if isinstance(line, str) else line for line in lines)
        vocab = self.vocab
        return {(vocab[a], vocab[b]): (rank, vocab[a + b]) for rank, (a, b) in enumerate(pairs)}

    @cached_property
    def table(self) -> BpeTable | None:
        if self.obstacle is not None or not self.portable:
            return None
        byte_ids = {
            BYTE_OF[piece]: each for piece, each in self.vocab.items() if len(piece) == 1 and piece in BYTE_OF
        }
        lines = sorted((rank, left, right, result) for (left, right), (rank, result) in self.merges.items())
        flat = array("I", (number for line in lines for number in line[1:]))
        added = tuple((each, content, each in self.special) for each, content in self.added.items())
        return BpeTable(tuple(byte_ids.get(byte, -1) for byte in range(256)), flat, added)

    @cached_property
    def plain(self) -> Any:
        """A copy that recognizes no special tokens (other threads would see a switch on the shared one)."""
        copy = type(self.source).from_str(self.source.to_str())
        copy.encode_special_tokens = True
        return copy

    def reach(self, token_id: int, text: str, start: int, stop: int) -> tuple[int, int]:
        """The characters an added token stands for, with the spaces that it swallows."""
        leftwards, rightwards = self.strips[token_id]
        if leftwards:
            start = len(text[:start].rstrip())
        if rightwards:
            stop = len(text) - len(text[stop:].lstrip())
        return start, stop

    def candidate(self, ids: list[int], place: int, other: int) -> tuple[int, int, int] | None:
        found = self.merges.get((ids[place], ids[other]))
        return None if found is None else (found[0], place, found[1])

    def token(self, token_id: int, position: int) -> Token:
        data = self.bytes_of(token_id)
        return Token(token_id, data, data.decode("utf-8", "replace"), token_id in self.special, position)

    def bytes_of(self, token_id: int) -> bytes:
        """The exact bytes of a token. Ids beyond the vocabulary (padding rows of some models) have none."""
        if token_id in self.added:
            return self.added[token_id].encode()
        piece = self.pieces.get(token_id, "")
        if self.byte_level and all(character in BYTE_OF for character in piece):
            return _from_byte_alphabet(piece)
        match = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()

    def require_byte_level_bpe(self) -> None:
        if self.obstacle is not None:
            raise UnsupportedTokenizerError(reason=self.obstacle)


_facts_of: WeakKeyDictionary[Any, _Facts] = WeakKeyDictionary()


def _facts(tokenizer: Tokenizer) -> _Facts:
    facts = _facts_of.get(tokenizer)
    if facts is None:
        facts = _facts_of[tokenizer] = _read_facts(_backend(tokenizer))
    return facts


def _backend(tokenizer: Tokenizer) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedTokenizerError(reason="it is not a “fast” tokenizer and cannot be looked into")
    return backend


def _read_facts(backend: Any) -> _Facts:
    description = json.loads(backend.to_str())
    model, added = description["model"], description["added_tokens"]
    vocab = backend.get_vocab(with_added_tokens=False)
    byte_level = "ByteLevel" in _step_types(description["pre_tokenizer"])
    return _Facts(
        vocab=vocab,
        pieces={token_id: piece for piece, token_id in vocab.items()},
        added={entry["id"]: entry["content"] for entry in added},
        special={entry["id"]: entry["content"] for entry in added if entry["special"]},
        strips={entry["id"]: (entry["lstrip"], entry["rstrip"]) for entry in added},
        ignore_merges=bool(model.get("ignore_merges")),
        byte_level=byte_level,
        portable=_is_portable(description),
        obstacle=_obstacle(model, byte_level),
        source=backend,
    )


def _is_portable(description: dict[str, Any]) -> bool:
    step, model = description["pre_tokenizer"] or {}, description["model"]
    plain_bytes = (
        step.get("type") == "ByteLevel" and step.get("use_regex") and not step.get("add_prefix_space")
    )
    odd = (
        entry[flag] for entry in description["added_tokens"] for flag in ("lstrip", "rstrip", "single_word")
    )
    return bool(
        plain_bytes and not description["normalizer"] and not model.get("ignore_merges") and not any(odd)
    )


def _step_types(step: dict[str, Any] | None) -> set[str]:
    """The kinds of steps in a tokenizer's pre-tokenizer, nested sequences included."""
    if step is None:
        return set()
    nested = (_step_types(inner) for inner in step.get("pretokenizers", []))
    return {step["type"]}.union(*nested)


def _obstacle(model: dict[str, Any], byte_level: bool) -> str | None:
    if model.get("type") != "BPE":
        return f"its kind is {model.get('type')}"
    if not byte_level:
        return "its symbols are characters, not bytes"
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "it marks or drops parts of words"
    return None
