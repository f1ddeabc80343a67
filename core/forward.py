"""One forward pass for everything: several sequences, at different stages, packed in one row.

A model does not care where one request ends and the next begins, except in attention. Its large matrix multiplications
work on a table with one row per token. So the new tokens of all sequences are laid side by side in one row,
`[1, N]`, and go through the layers together; the weights are read once for all of them. Only attention has to keep the
sequences apart. It does so here: for each *span* (one sequence and its new tokens), the keys and values of the new
tokens are appended to that sequence's own KV cache, and its queries look at that cache alone.

Everything is a case of this one pass. A whole prompt is one long span (prefill). One token is a short span (decode).
Part of a prompt is a chunk. Spans of different kinds may share a pass (continuous batching). A span of guessed tokens
checks a draft (speculative decoding). An empty cache each time is life without a cache.

While it computes, the pass is recorded: queries, the vector of the last position after each layer, when each layer
began, and the logits over the whole vocabulary.

transformers lets a project register its own attention function and hands it extra keyword arguments of the model call;
nothing in the model's code is changed.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention

from core.errors import UnsupportedModelError
from core.kv_cache import KVCache

if TYPE_CHECKING:
    from core.model import LoadedModel

ATTENTION_NAME = "one_token_at_a_time"


@dataclass(frozen=True)
class Span:
    """The new tokens of one sequence in one pass. Their positions follow what its cache holds already."""

    cache: KVCache
    token_ids: tuple[int, ...]
    all_logits: bool = (
        False  # logits of every position (draft verification, training loss), not only the last
    )


@dataclass(frozen=True, eq=False)
class SpanRecord:
    """What one pass did for one span. Times are `time.perf_counter()` seconds.

    logits `(n_positions, vocab_size)` float32, n_positions = 1 or, with `all_logits`, the span's length;
    residual `(n_layers + 1, hidden_size)` float32, last position, after the embedding and after each layer;
    layer_starts_s `(n_layers + 1,)`, the last entry being the end of the last layer;
    queries `(n_layers, n_heads, n_tokens, head_dim)` float32, after position encoding; None if not recorded.
    """

    first_position: int
    token_ids: tuple[int, ...]
    batch_size: int
    started_s: float
    ended_s: float
    logits: NDArray[np.float32]
    layer_starts_s: NDArray[np.float64] | None = None
    residual: NDArray[np.float32] | None = None
    queries: NDArray[np.float32] | None = None


@dataclass
class _Recorder:
    """Collects tensors during the pass; they are copied out once, at its end."""

    last_rows: torch.Tensor | None  # None: every row is the last of its span
    queries: list[torch.Tensor] = field(default_factory=list)
    residuals: list[torch.Tensor] = field(default_factory=list)
    marks: list[Any] = field(default_factory=list)


class _Packing:
    """The spans of one pass, with views of their caches cut for every layer before the pass begins.

    Thirty sequences in thirty layers are 900 small pieces of attention: a few cuts and copies in Python around each
    would cost more than the attention itself.
    """

    def __init__(self, spans: Sequence[Span], recorder: _Recorder | None) -> None:
        self.recorder = recorder
        self.sizes = [len(span.token_ids) for span in spans]
        rooms = [span.cache.extension(n) for span, n in zip(spans, self.sizes, strict=True)]
        # One entry per layer, each a tuple with one view per span.
        self.new = list(zip(*(r.new_keys for r in rooms), *(r.new_values for r in rooms), strict=True))
        self.cached = [
            tuple(zip(keys, values, strict=True))
            for keys, values in zip(
                zip(*(r.keys for r in rooms), strict=True),
                zip(*(r.values for r in rooms), strict=True),
                strict=True,
            )
        ]

    def store(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Write all spans' new keys and values `(n_kv_heads, N, head_dim)`; returns each span's whole K and V."""
        parts = [part for packed in (key, value) for part in packed.split_with_sizes(self.sizes, dim=1)]
        torch._foreach_copy_(self.new[layer], parts)
        return self.cached[layer]


def packed_forward(
    loaded: LoadedModel, spans: Sequence[Span], *, record: bool = True
) -> tuple[SpanRecord, ...]:
    """Run all spans through the model in one pass and append their keys and values to their caches.

    Returns one record per span, in order. `record=False` keeps only the logits. If the pass fails, no cache has grown.
    Raises UnsupportedModelError where the model asks attention for something that it does not do here.
    """
    rows = _keep_rows(spans)
    with torch.inference_mode():
        ids = torch.tensor([[t for s in spans for t in s.token_ids]], device=loaded.device)
        positions = torch.tensor([_positions(spans)], device=loaded.device)
        recorder = _Recorder(_last_rows_tensor(spans, loaded.device)) if record else None
        started = time.perf_counter()
        packing = _Packing(spans, recorder)
        with _watch_layers(loaded, recorder):
            logits = _model_logits(loaded, ids, positions, rows, packing)
        logits_host = logits[0].float().cpu().numpy()  # waits for the device, so the clock below is true
        ended = time.perf_counter()
        for span in spans:
            span.cache.commit(len(span.token_ids))
        return _split(spans, logits_host, recorder, started, ended)


def _positions(spans: Sequence[Span]) -> list[int]:
    return [len(s.cache) + i for s in spans for i in range(len(s.token_ids))]


def _last_rows(spans: Sequence[Span]) -> list[int]:
    lengths = [len(s.token_ids) for s in spans]
    return [int(end) - 1 for end in np.cumsum(lengths)]


def _last_rows_tensor(spans: Sequence[Span], device: torch.device) -> torch.Tensor | None:
    if all(len(s.token_ids) == 1 for s in spans):
        return None
    return torch.tensor(_last_rows(spans), device=device)


def _keep_rows(spans: Sequence[Span]) -> list[int]:
    """Rows of the packed table whose logits are wanted."""
    rows: list[int] = []
    for span, last in zip(spans, _last_rows(spans), strict=True):
        first = last - len(span.token_ids) + 1
        rows.extend(range(first, last + 1) if span.all_logits else [last])
    return rows


def _model_logits(
    loaded: LoadedModel,
    ids: torch.Tensor,
    positions: torch.Tensor,
    rows: list[int],
    packing: _Packing,
) -> torch.Tensor:
    """Logits `[1, len(rows), vocab_size]`."""
    extra: dict[str, Any] = {"packing": packing}
    keep = torch.tensor(rows, device=loaded.device)
    if _takes_logits_to_keep(type(loaded.model).forward):
        # Only the wanted rows meet the vocabulary matrix: the largest one of a small model.
        out = loaded.model(ids, position_ids=positions, use_cache=False, logits_to_keep=keep, **extra)
        return out.logits  # type: ignore[no-any-return]
    return loaded.model(ids, position_ids=positions, use_cache=False, **extra).logits[:, keep]  # type: ignore[no-any-return]


@cache
def _takes_logits_to_keep(forward: Callable[..., Any]) -> bool:
    return "logits_to_keep" in inspect.signature(forward).parameters


# ---- recording -------------------------------------------------------------------------------------------------------


@contextmanager
def _watch_layers(loaded: LoadedModel, recorder: _Recorder | None) -> Iterator[None]:
    """Note time and the last positions' vectors whenever a layer begins, and once when the last one ends."""
    if recorder is None:
        yield
        return

    def note(hidden: torch.Tensor) -> None:
        recorder.marks.append(_mark(loaded.device))
        rows = recorder.last_rows
        recorder.residuals.append(hidden[0] if rows is None else hidden[0, rows])

    def before(_module: Any, args: Any, kwargs: Any) -> None:
        note(args[0] if args else kwargs["hidden_states"])

    def after(_module: Any, _args: Any, output: Any) -> None:
        note(output[0] if isinstance(output, tuple) else output)

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in loaded.layers]
    hooks.append(loaded.layers[-1].register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mark(device: torch.device) -> Any:
    """A point in time on the device. GPUs run behind the program, so they stamp an event themselves."""
    if device.type == "cpu":
        return time.perf_counter()
    kind: Any = torch.cuda.Event if device.type == "cuda" else torch.mps.Event
    event = kind(enable_timing=True)
    event.record()
    return event


def _mark_times(marks: list[Any], started: float) -> NDArray[np.float64]:
    if isinstance(marks[0], float):
        return np.array(marks)
    return started + np.array([marks[0].elapsed_time(mark) / 1000 for mark in marks])


def _split(
    spans: Sequence[Span],
    logits: NDArray[np.float32],
    recorder: _Recorder | None,
    started: float,
    ended: float,
) -> tuple[SpanRecord, ...]:
    """Cut what was recorded for the packed row back into one record per span."""
    if recorder is not None:
        layer_starts = _mark_times(recorder.marks, started)
        residuals = (
            torch.stack(recorder.residuals).float().cpu().numpy()
        )  # (n_layers + 1, n_spans, hidden_size)
        queries = torch.stack(recorder.queries).float().cpu().numpy()  # (n_layers, n_heads, N, head_dim)
    records, token_row, logit_row = [], 0, 0
    for i, span in enumerate(spans):
        n_tokens = len(span.token_ids)
        n_logits = n_tokens if span.all_logits else 1
        traced: dict[str, Any] = {}
        if recorder is not None:
            traced = {
                "layer_starts_s": layer_starts,
                "residual": residuals[:, i],
                "queries": queries[:, :, token_row : token_row + n_tokens],
            }
        records.append(
            SpanRecord(
                first_position=len(span.cache) - n_tokens,
                token_ids=span.token_ids,
                batch_size=len(spans),
                started_s=started,
                ended_s=ended,
                logits=logits[logit_row : logit_row + n_logits],
                **traced,
            )
        )
        token_row, logit_row = token_row + n_tokens, logit_row + n_logits
    return tuple(records)


# ---- attention -------------------------------------------------------------------------------------------------------


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packing: _Packing | None = None,
    sliding_window: int | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls once per layer.

    query `[1, n_heads, N, head_dim]`, key and value `[1, n_kv_heads, N, head_dim]` of all N packed tokens. Returns
    `[1, N, n_heads, head_dim]`.
    """
    packing = _refuse_what_we_cannot_do(module, asked, packing)
    if packing.recorder is not None:
        packing.recorder.queries.append(query[0])
    cached = packing.store(int(module.layer_idx), key[0], value[0])  # type: ignore[arg-type]
    # Query heads that share a KV head lie side by side, one row per token: `(N, n_kv_heads, n_heads / n_kv_heads, d)`.
    _, n_heads, n_rows, head_dim = query.shape
    n_kv_heads = key.shape[1]
    grouped = query[0].transpose(0, 1).reshape(n_rows, n_kv_heads, n_heads // n_kv_heads, head_dim)
    outputs = [
        _attend(rows, keys, values, scaling, sliding_window)
        for rows, (keys, values) in zip(grouped.split_with_sizes(packing.sizes), cached, strict=True)
    ]
    together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return together.reshape(1, n_rows, n_heads, value.shape[-1]), None


def _attend(
    grouped: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    """Queries of the newest positions over one sequence's whole cache, looking backwards only.

    grouped `(n_new, n_kv_heads, n_heads / n_kv_heads, head_dim)`, and so is the result; keys and values
    `(1, n_kv_heads, n_all, head_dim)`.
    """
    n_new, n_all = grouped.shape[0], keys.shape[2]
    if window is not None and n_all <= window:
        window = None
    if n_new == 1 and window is None:
        # One query may look at everything. Query heads that share a KV head go in as if they were several queries of
        # that head: the same numbers, without copying the cache once per query head.
        return scaled_dot_product_attention(grouped, keys, values, scale=scaling)
    causal = n_new == n_all and window is None
    mask = None if causal else _looking_back(n_new, n_all, window, grouped.device)
    query = grouped.flatten(1, 2).transpose(0, 1)[None]
    out = scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(*grouped.shape[:3], values.shape[-1])


def _looking_back(n_new: int, n_all: int, window: int | None, device: torch.device) -> torch.Tensor:
    """True where query row i (position n_all - n_new + i) may see key column j."""
    position = torch.arange(n_all - n_new, n_all, device=device)[:, None]
    column = torch.arange(n_all, device=device)[None, :]
    visible = column <= position
    return visible if window is None else visible & (column > position - window)


_UNSUPPORTED = {
    "softcap": "soft-capped attention scores",
    "s_aux": "attention sinks with learned scores",
    "position_bias": "learned position biases",
    "cu_seq_lens_q": "its own packing of sequences",
}


def _refuse_what_we_cannot_do(
    module: torch.nn.Module, asked: dict[str, Any], packing: _Packing | None
) -> _Packing:
    config = getattr(module, "config", None)
    family = str(getattr(config, "model_type", "unknown"))
    for key, reason in _UNSUPPORTED.items():
        if asked.get(key) is not None:
            raise UnsupportedModelError(family=family, reason=reason)
    if asked.get("is_causal", True) is False or not getattr(module, "is_causal", True):
        raise UnsupportedModelError(family=family, reason="attention that looks forwards")
    if packing is None:
        raise UnsupportedModelError(family=family, reason="attention that does not pass our arguments on")
    return packing


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """Each span masks for itself, so the model need not build a mask for the packed row."""
    return


def register() -> str:
    """Tell transformers about our attention; returns the name to load or switch a model with. Safe to call twice."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(ATTENTION_NAME, packed_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
    return ATTENTION_NAME
