"""A recorded run: everything that happened between a prompt and its answer.

A run is a sequence of passes through the model. The first pass (or the first few, if the prompt is cut in chunks)
reads the prompt; it ends with one chosen token. Each further pass reads exactly one token, the one chosen before, and
ends with the next choice. A `Step` is one pass of one sequence: what went in, what the cache held, when each layer
began, the scores of all possible next tokens, and what was chosen. A `Trace` is all steps of one run, with the keys,
values and queries of its tokens, from which attention can be recomputed.

Nothing in a trace changes after it was made: dataclasses are frozen, arrays read-only. So a page can draw step i
without asking what was drawn before, and going back costs nothing.

A trace can be saved in one file. To keep it small, logits are stored as 16-bit codes between each step's smallest and
largest logit (error below a thousandth), and vectors as 16-bit floats; ids and times are exact.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import TraceFileError
from core.sampling import SamplingParams
from core.spec import ModelSpec
from core.tokenizer import Token

Phase = Literal["prefill", "decode"]
FinishReason = Literal["length", "stop", "cancelled", "running"]
Floats = NDArray[np.floating[Any]]

FILE_FORMAT = "one-token-at-a-time/trace"
FILE_VERSION = 1


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, eq=False)
class Step:
    """One pass through all layers, for this sequence. Times are seconds since the run was submitted.

    token_id is None only for a prefill chunk that is not the last one; u is the uniform number that chose it (None
    for greedy). logits `(vocab_size,)` belong to the last position of the pass. layer_starts_s `(n_layers + 1,)`: when
    each layer began, and when the last one ended. residual `(n_layers + 1, hidden_size)`: the last position's vector
    after the embedding and after each layer. batch_size: sequences that shared the pass.
    """

    index: int
    phase: Phase
    input_ids: tuple[int, ...]
    n_cached_before: int
    token_id: int | None
    u: float | None
    started_s: float
    ended_s: float
    batch_size: int
    logits: Floats
    layer_starts_s: Floats
    residual: Floats

    def __post_init__(self) -> None:
        for name in ("logits", "layer_starts_s", "residual"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    @property
    def n_input(self) -> int:
        """Tokens fed in this pass."""
        return len(self.input_ids)

    @property
    def n_cached_after(self) -> int:
        """Positions in the cache when the pass is over: the chosen token is not among them."""
        return self.n_cached_before + self.n_input

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the pass to its logits."""
        return self.ended_s - self.started_s

    @property
    def is_choice(self) -> bool:
        """True if this pass ended with a chosen token."""
        return self.token_id is not None


@dataclass(frozen=True, eq=False)
class Trace:
    """One run from prompt to answer. `tokens` are the prompt's, then the chosen ones.

    queries `(n_layers, n_heads, n_traced, head_dim)`; keys and values `(n_layers, n_kv_heads, n_traced, head_dim)`: the
    first n_traced positions, which may be fewer than were cached (a stated bound), and are none while a run goes on.
    """

    spec: ModelSpec
    prompt: str
    system: str
    chat: bool
    tokens: tuple[Token, ...]
    from_template: tuple[bool, ...]
    n_prompt: int
    params: SamplingParams
    steps: tuple[Step, ...]
    queries: Floats
    keys: Floats
    values: Floats
    admitted_s: float
    finish_reason: FinishReason
    origin: Literal["recorded", "live"]
    device: str
    machine: str
    versions: dict[str, str]
    created: str

    def __post_init__(self) -> None:
        for name in ("queries", "keys", "values"):
            object.__setattr__(self, name, _read_only(getattr(self, name)))

    @property
    def n_generated(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_cached(self) -> int:
        """Positions in the cache after the last pass: the last chosen token has no K and V."""
        return self.steps[-1].n_cached_after if self.steps else 0

    @property
    def n_traced(self) -> int:
        """Positions whose queries, keys and values are recorded."""
        return int(self.keys.shape[2])

    @property
    def choice_steps(self) -> tuple[Step, ...]:
        """The steps that chose a token, one per answer token."""
        return tuple(step for step in self.steps if step.is_choice)

    @property
    def prompt_tokens(self) -> tuple[Token, ...]:
        """Tokens that were given."""
        return self.tokens[: self.n_prompt]

    @property
    def answer_tokens(self) -> tuple[Token, ...]:
        """Tokens that were chosen."""
        return self.tokens[self.n_prompt :]

    @property
    def answer_text(self) -> str:
        """The answer; bytes that do not complete a character are shown as �."""
        spoken = b"".join(token.bytes for token in self.answer_tokens if not token.is_special)
        return spoken.decode("utf-8", errors="replace")

    @property
    def first_token_s(self) -> float | None:
        """When the first answer token was chosen (seconds since submitted)."""
        return next((step.ended_s for step in self.steps if step.is_choice), None)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache after the last pass, by the formula."""
        return self.n_cached * self.spec.kv_bytes_per_token

    def save(self, path: Path | str) -> None:
        """Write the trace to one file. Raises ValueError if a logit would lose more than a thousandth."""
        Path(path).write_bytes(_to_bytes(self))

    @staticmethod
    def load(path: Path | str) -> Trace:
        """Read a file written by `save`. Raises TraceFileError, saying why, for anything else."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise TraceFileError(path=str(path), reason=error.strerror or "it cannot be opened") from error
        try:
            return _from_bytes(data)
        except _Foreign as error:
            raise TraceFileError(path=str(path), reason=str(error)) from error
        except (zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError, EOFError, OSError) as error:
            raise TraceFileError(path=str(path), reason="it is damaged or no recorded run") from error
        except Exception as error:  # zlib.error and others that a damaged archive can raise
            raise TraceFileError(path=str(path), reason="it is damaged") from error

    def until(self, n_steps: int) -> Trace:
        """The same run as it was after its first `n_steps` steps."""
        steps = self.steps[:n_steps]
        n_chosen = sum(step.is_choice for step in steps)
        n_cached = steps[-1].n_cached_after if steps else 0
        return replace(
            self,
            steps=steps,
            tokens=self.tokens[: self.n_prompt + n_chosen],
            queries=self.queries[:, :, :n_cached],
            keys=self.keys[:, :, :n_cached],
            values=self.values[:, :, :n_cached],
        )


# ---- the file --------------------------------------------------------------------------------------------------------


class _Foreign(Exception):
    """Readable, but not ours, or of a version we do not know."""


def _to_bytes(trace: Trace) -> bytes:
    low, codes, step_size = _encode_logits([step.logits for step in trace.steps], trace.spec.vocab_size)
    header = {
        "format": FILE_FORMAT,
        "version": FILE_VERSION,
        "spec": trace.spec.to_dict(),
        "params": asdict(trace.params),
        "tokens": [[t.id, t.bytes.hex(), t.text, t.is_special] for t in trace.tokens],
        "steps": [_step_header(step) for step in trace.steps],
        **{name: getattr(trace, name) for name in _PLAIN},
    }
    arrays: dict[str, NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), dtype=np.uint8),
        "logits_low": low,
        "logits_step": step_size,
        "logits": _shuffled(codes),
        "layer_starts_s": np.array([s.layer_starts_s for s in trace.steps], dtype=np.float64),
        "residual": _shuffled(np.array([s.residual for s in trace.steps], dtype=np.float16)),
        **{name: _shuffled(getattr(trace, name).astype(np.float16)) for name in _VECTORS},
        **{f"{name}_shape": np.array(getattr(trace, name).shape) for name in _VECTORS},
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


_PLAIN = (
    "prompt",
    "system",
    "chat",
    "from_template",
    "n_prompt",
    "admitted_s",
    "finish_reason",
    "device",
    "machine",
    "versions",
    "created",
)
_VECTORS = ("queries", "keys", "values")


def _step_header(step: Step) -> dict[str, Any]:
    names = [
        "index",
        "phase",
        "input_ids",
        "n_cached_before",
        "token_id",
        "u",
        "started_s",
        "ended_s",
        "batch_size",
    ]
    return {name: getattr(step, name) for name in names}


def _from_bytes(data: bytes) -> Trace:
    if not data.startswith(b"PK"):
        raise _Foreign("it is not a file of this program")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        if "header" not in file.files:
            raise _Foreign("it is not a file of this program")
        header = json.loads(bytes(file["header"]))
        if header.get("format") != FILE_FORMAT:
            raise _Foreign("it is not a file of this program")
        if header.get("version") != FILE_VERSION:
            raise _Foreign(
                f"it has version {header.get('version')}, this program reads version {FILE_VERSION}"
            )
        arrays = {name: file[name] for name in file.files if name != "header"}
    return _assemble(header, arrays)


def _assemble(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Trace:
    spec = ModelSpec.from_dict(header["spec"])
    n_steps = len(header["steps"])
    codes = _unshuffled(arrays["logits"], np.uint16, (n_steps, spec.vocab_size))
    residual = _unshuffled(arrays["residual"], np.float16, (n_steps, spec.n_layers + 1, spec.hidden_size))
    steps = tuple(
        Step(
            **{**values, "input_ids": tuple(values["input_ids"])},
            logits=_decode_logits(codes[i], arrays["logits_low"][i], arrays["logits_step"][i]),
            layer_starts_s=arrays["layer_starts_s"][i],
            residual=residual[i],
        )
        for i, values in enumerate(header["steps"])
    )
    vectors: dict[str, Any] = {
        name: _unshuffled(arrays[name], np.float16, tuple(arrays[f"{name}_shape"])) for name in _VECTORS
    }
    plain: dict[str, Any] = {name: header[name] for name in _PLAIN}
    plain["from_template"] = tuple(plain["from_template"])
    return Trace(
        spec=spec,
        params=SamplingParams(**header["params"]),
        tokens=_tokens(header["tokens"]),
        steps=steps,
        origin="recorded",
        **plain,
        **vectors,
    )


def _tokens(rows: Sequence[Sequence[Any]]) -> tuple[Token, ...]:
    return tuple(
        Token(id=row[0], bytes=bytes.fromhex(row[1]), text=row[2], is_special=row[3], position=position)
        for position, row in enumerate(rows)
    )


def _encode_logits(
    rows: Sequence[Floats], vocab_size: int
) -> tuple[NDArray[np.float64], NDArray[np.uint16], NDArray[np.float64]]:
    logits = np.array(rows, dtype=np.float64).reshape(len(rows), vocab_size)
    low = logits.min(axis=1) if len(rows) else np.zeros(0)
    high = logits.max(axis=1) if len(rows) else np.zeros(0)
    step = (high - low) / 65535
    if (step >= 1e-3).any():
        raise ValueError("the logits span too wide a range for 16-bit codes")
    safe = np.where(step > 0, step, 1.0)
    codes = np.rint((logits - low[:, None]) / safe[:, None]).astype(np.uint16)
    return low, codes, step


def _decode_logits(codes: NDArray[np.uint16], low: float, step: float) -> NDArray[np.float32]:
    return (codes * np.float32(step) + np.float32(low)).astype(np.float32)


def _shuffled(array: NDArray[Any]) -> NDArray[np.uint8]:
    """All first bytes, then all second bytes: neighbours become alike, so the archive packs them better."""
    return np.ascontiguousarray(np.ascontiguousarray(array).view(np.uint8).reshape(-1, 2).T)


def _unshuffled(stored: NDArray[np.uint8], dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ascontiguousarray(stored.T).reshape(-1).view(dtype).reshape(shape)
