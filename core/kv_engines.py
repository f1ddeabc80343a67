"""How many token places an engine really reserves.

The ideal cache holds each token once and forgets what has left a window. Engines round up: llama.cpp reserves
cells in steps of 256 for every slot before the first token arrives, and keeps a window plus one micro-batch
for sliding layers; vLLM hands out blocks of 16 tokens and keeps a window plus one scheduling step; SGLang
keeps one spare page. So the same model and the same text have several true sizes, and a log line is right
about its own engine only.

Each engine answers three questions: places for a layer that keeps everything, places for a layer with a
window, and places for encoder tokens. Sources: llama.cpp `llama-context.cpp` and `llama-kv-cache-iswa.cpp`,
vLLM `kv_cache_interface.py`, SGLang `memory_pool.py`, and the log lines of the test set.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from core.errors import InvalidSettingError
from core.kv_layout import check_count


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


@dataclass(frozen=True)
class Ideal:
    """Every token once; windows forget. The least that the mathematics needs."""

    def full_places(self, n_tokens: int, n_sequences: int) -> int:
        return n_tokens * n_sequences

    def window_places(self, n_tokens: int, n_sequences: int, window: int) -> int:
        return min(n_tokens, window) * n_sequences

    def cross_places(self, n_cross_tokens: int, n_sequences: int) -> int:
        return n_cross_tokens * n_sequences

    def states(self, n_sequences: int) -> int:
        return n_sequences

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                if not isinstance(value, bool):
                    raise InvalidSettingError(
                        name=field.name, value=repr(value)[:40], allowed="true or false"
                    )
            elif value is not None or field.default is not None:
                check_count(field.name, value, low=1)


@dataclass(frozen=True)
class NoWindow(Ideal):
    """Window layers keep everything, as an engine without window support does: the upper bound."""

    def window_places(self, n_tokens: int, n_sequences: int, window: int) -> int:
        return self.full_places(n_tokens, n_sequences)


@dataclass(frozen=True)
class LlamaCpp(Ideal):
    """Cells in steps of 256, reserved per slot when the server starts.

    The context of all sequences together, `n_tokens × n_sequences`, is shared out between `slots` (as many as
    sequences if not given). `swa_full` makes window layers keep everything; `kv_unified` is one pool for all
    slots.
    """

    n_ubatch: int = 512
    slots: int | None = None
    swa_full: bool = False
    kv_unified: bool = False

    def _sharers(self, n_sequences: int) -> int:
        if self.slots is not None and self.slots < n_sequences:
            allowed = f"at least {n_sequences}: a slot for each sequence"
            raise InvalidSettingError(name="slots", value=self.slots, allowed=allowed)
        return self.slots or n_sequences

    def _slots(self, n_sequences: int) -> int:
        return 1 if self.kv_unified else self._sharers(n_sequences)

    def _cells(self, n_tokens: int, n_sequences: int) -> int:
        return round_up(-(-n_tokens * n_sequences // self._slots(n_sequences)), 256)

    def full_places(self, n_tokens: int, n_sequences: int) -> int:
        return self._cells(n_tokens, n_sequences) * self._slots(n_sequences)

    def window_places(self, n_tokens: int, n_sequences: int, window: int) -> int:
        if self.swa_full:
            return self.full_places(n_tokens, n_sequences)
        sharers = self._sharers(n_sequences) if self.kv_unified else 1
        kept = round_up(window * sharers + self.n_ubatch, 256)
        return min(self._cells(n_tokens, n_sequences), kept) * self._slots(n_sequences)

    def states(self, n_sequences: int) -> int:
        return self._sharers(n_sequences)


@dataclass(frozen=True)
class Vllm(Ideal):
    """Blocks of `block_size` tokens; a window layer keeps its window, one scheduling step and one block more."""

    block_size: int = 16
    max_num_batched_tokens: int = 2048

    def full_places(self, n_tokens: int, n_sequences: int) -> int:
        return round_up(n_tokens, self.block_size) * n_sequences

    def window_places(self, n_tokens: int, n_sequences: int, window: int) -> int:
        kept = (
            round_up(min(window - 1 + self.max_num_batched_tokens, n_tokens), self.block_size)
            + self.block_size
        )
        return min(round_up(n_tokens, self.block_size), kept) * n_sequences

    def cross_places(self, n_cross_tokens: int, n_sequences: int) -> int:
        return round_up(n_cross_tokens, self.block_size) * n_sequences


@dataclass(frozen=True)
class Sglang(NoWindow):
    """One pool of token places for all sequences, in pages, and one page to spare. Sliding layers have a pool
    of their own whose size is a setting, so they are counted in full here.
    """

    page_size: int = 1

    def full_places(self, n_tokens: int, n_sequences: int) -> int:
        return round_up(n_tokens, self.page_size) * n_sequences + self.page_size


@dataclass(frozen=True)
class TensorRtLlm(NoWindow):
    """Blocks of `tokens_per_block` tokens, rounded up."""

    tokens_per_block: int = 64

    def full_places(self, n_tokens: int, n_sequences: int) -> int:
        return round_up(n_tokens, self.tokens_per_block) * n_sequences


ENGINES: dict[str, type[Ideal]] = {
    "ideal": Ideal,
    "no_window": NoWindow,
    "llama.cpp": LlamaCpp,
    "vllm": Vllm,
    "sglang": Sglang,
    "tensorrt_llm": TensorRtLlm,
}


def make_engine(name: str, settings: dict[str, object]) -> Ideal:
    """The engine of that name with its settings; unknown names and settings are refused with the known ones
    listed.
    """
    if name not in ENGINES:
        raise InvalidSettingError(
            name="engine", value=repr(name)[:40], allowed="one of " + ", ".join(ENGINES)
        )
    known = [field.name for field in fields(ENGINES[name])]
    for setting in settings:
        if setting not in known:
            allowed = ("one of " + ", ".join(known)) if known else "no settings: this engine has none"
            raise InvalidSettingError(name=f"setting of {name}", value=setting, allowed=allowed)
    return ENGINES[name](**settings)
