"""Why decode is slow although the chip is fast: the roofline.

A machine has two limits that matter here: how many bytes per second it reads from memory, and how many operations per
second it computes (FLOP/s). A pass needs some of each. Their ratio, operations per byte, is its *arithmetic intensity*.
Where it is low, the pass waits for memory and computes little; where it is high, memory keeps up and the arithmetic is
the limit. The two limits cross at the ridge. Drawn over intensity, the best possible speed is a slope that becomes a
flat roof, and every measured pass is a point under it.

Decode reads all weights to compute one token: about half an operation per byte in 32-bit. Prefill uses the same bytes
for every token of the prompt. So does a batch: with enough sequences in one pass, decode too leaves the slope.

MBU and MFU say how near a pass comes: bytes per second over the machine's, operations per second over the machine's.
Everything is measured here, on this machine, with the passes that the app itself runs.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from core.prefill import pass_cost
from core.spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from core.model import LoadedModel

Kind = Literal["prefill", "decode"]

PREFILL_LENGTHS = (1, 8, 32, 128, 256)
DECODE_BATCHES = (1, 2, 4, 8, 16, 30)
DECODE_CONTEXT = 64
_REPEATS = 3
_READ_BYTES = 1024**3  # an L3 of 260 MiB was seen: it must not hold a large part of this
_MATMUL_SIZES = {"cpu": 1536, "mps": 4096, "cuda": 8192}


# ---- the machine -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachineLimits:
    """What this machine can do at best, as measured: bytes read per second, operations per second."""

    machine: str
    device: str
    dtype: str
    read_bytes_per_s: float
    flops_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte at which memory and arithmetic are equally the limit."""
        return self.flops_per_s / self.read_bytes_per_s

    def roof(self, intensity: float) -> float:
        """The best possible FLOP/s at an intensity (FLOP per byte)."""
        return min(self.flops_per_s, intensity * self.read_bytes_per_s)


@dataclass(frozen=True)
class PassPoint:
    """One kind of pass as measured. `seconds` is the median; FLOPs and bytes are computed from the model's facts."""

    kind: Kind
    n_sequences: int
    n_tokens: int  # new tokens of each sequence
    n_cached: int
    seconds: float
    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        """Operations per second that the pass reached."""
        return self.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that the pass must have moved at least."""
        return self.bytes / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all sequences per second."""
        return self.n_sequences * self.n_tokens / self.seconds

    def mfu(self, limits: MachineLimits) -> float:
        """Model FLOPs utilization: share of the machine's operations per second."""
        return self.flops_per_s / limits.flops_per_s

    def mbu(self, limits: MachineLimits) -> float:
        """Model bandwidth utilization: share of the machine's bytes per second."""
        return self.bytes_per_s / limits.read_bytes_per_s

    def is_memory_bound(self, limits: MachineLimits) -> bool:
        """True left of the ridge: the roof above this pass is memory."""
        return self.intensity < limits.ridge


def batch_cost(spec: ModelSpec, n_sequences: int, n_tokens: int, n_cached: int) -> tuple[int, int]:
    """(FLOPs, bytes) of one pass of equal sequences: arithmetic and caches for each, the weights once for all."""
    one = pass_cost(spec, n_tokens, n_cached)
    return n_sequences * one.flops, one.weight_bytes + n_sequences * one.cache_bytes


def measure_roofline(
    loaded: LoadedModel, token_ids: Sequence[int], machine: str
) -> Iterator[MachineLimits | PassPoint]:
    """A job for `Scheduler.run_job`: the machine's limits and one point per kind of pass, in turns.

    The limits are the best of all rounds so far. They are measured again between the passes, because a machine that is
    busy with something else for a second would otherwise seem slower than the passes measured after it.
    """
    limits = measure_limits(loaded, machine, rounds=1 + len(PREFILL_LENGTHS) + len(DECODE_BATCHES))
    yield next(limits)
    for length in PREFILL_LENGTHS:
        yield _measure_pass(loaded, token_ids, "prefill", 1, length, 0)
        yield next(limits)
    for batch in DECODE_BATCHES:
        yield _measure_pass(loaded, token_ids, "decode", batch, 1, DECODE_CONTEXT)
        yield next(limits)


def measure_limits(loaded: LoadedModel, machine: str, rounds: int = 4) -> Iterator[MachineLimits]:
    """Read bandwidth and matmul rate of the model's device, in the model's dtype; the best of the rounds so far."""
    dtype, device = loaded.model.dtype, loaded.device
    best_read = best_flops = 0.0
    for _ in range(rounds):
        best_read = max(best_read, read_bandwidth(device))
        best_flops = max(best_flops, matmul_rate(device, dtype))
        yield MachineLimits(machine, str(device), loaded.spec.dtype, best_read, best_flops)


def read_bandwidth(device: torch.device, n_bytes: int = _READ_BYTES) -> float:
    """Bytes per second while adding up a large tensor: every byte is read once, almost nothing is computed."""
    import torch

    data = torch.ones(n_bytes // 4, dtype=torch.float32, device=device)
    data.sum()
    return n_bytes / min(_seconds(device, data.sum) for _ in range(3))


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """FLOP per second of a square matrix product: two operations for each of size³ pairs."""
    import torch

    n = size or _MATMUL_SIZES.get(device.type, 1536)
    a, b = (torch.rand(n, n, device=device).to(dtype) for _ in range(2))
    a @ b
    return 2 * n**3 / min(_seconds(device, lambda: a @ b) for _ in range(3))


def _seconds(device: torch.device, work: Any) -> float:
    import torch

    _wait(device)
    started = time.perf_counter()
    with torch.inference_mode():
        work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _measure_pass(
    loaded: LoadedModel, token_ids: Sequence[int], kind: Kind, n_sequences: int, n_tokens: int, n_cached: int
) -> PassPoint:
    from core.forward import Span, packed_forward

    ids = [token_ids[i % len(token_ids)] for i in range(n_tokens + n_cached)]
    filled = loaded.new_cache(capacity=n_cached)
    if n_cached:
        packed_forward(loaded, [Span(filled, tuple(ids[:n_cached]))], record=False)
    caches = [filled.fork(capacity=n_cached + n_tokens) for _ in range(n_sequences)]
    times = []
    for _ in range(_REPEATS + 1):  # the first one warms up
        spans = [Span(cache, tuple(ids[n_cached:])) for cache in caches]
        record = packed_forward(loaded, spans, record=False)[0]
        times.append(record.ended_s - record.started_s)
        for cache in caches:
            cache.truncate(n_cached)
    flops, moved = batch_cost(loaded.spec, n_sequences, n_tokens, n_cached)
    return PassPoint(kind, n_sequences, n_tokens, n_cached, statistics.median(times[1:]), flops, moved)


# ---- fewer bytes per weight ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrecisionResult:
    """The same greedy answer with weights of another precision.

    weight_bytes: bytes of weights that each decode pass reads. seconds_per_token: median of the decode passes.
    n_same: answer tokens equal to the 32-bit answer before the first difference.
    """

    dtype: str
    weight_bytes: int
    seconds_per_token: float
    token_ids: tuple[int, ...]
    n_same: int

    @property
    def bytes_per_s(self) -> float:
        """Bytes of weights read per second."""
        return self.weight_bytes / self.seconds_per_token


def precisions(device_type: str) -> tuple[str, ...]:
    """Weight precisions that can run on a device. The product of 16-bit vectors and 8-bit weights is the CPU's."""
    import torch

    has_int8 = device_type == "cpu" and hasattr(torch, "_weight_int8pack_mm")
    return ("float32", "bfloat16", *(("int8",) if has_int8 else ()))


def compare_precisions(
    loaded: LoadedModel, prompt_ids: Sequence[int], n_tokens: int = 24
) -> Iterator[PrecisionResult | int]:
    """A job: for each precision, yields the number of tokens so far after each pass, then its result."""
    reference: tuple[int, ...] | None = None
    for dtype in precisions(loaded.device.type):
        model = _with_weights(loaded, dtype)
        ids: list[int] = []
        times: list[float] = []
        for token, seconds in _greedy(model, prompt_ids, n_tokens):
            ids.append(token)
            times.append(seconds)
            yield len(ids)
        reference = reference or tuple(ids)
        same = next((i for i, (a, b) in enumerate(zip(ids, reference, strict=True)) if a != b), len(ids))
        yield PrecisionResult(dtype, _read_per_pass(model), statistics.median(times[1:]), tuple(ids), same)


def _greedy(loaded: LoadedModel, prompt_ids: Sequence[int], n_tokens: int) -> Iterator[tuple[int, float]]:
    from core.forward import Span, packed_forward

    cache = loaded.new_cache(capacity=len(prompt_ids) + n_tokens)
    new = tuple(prompt_ids)
    for _ in range(n_tokens):
        (record,) = packed_forward(loaded, [Span(cache, new)], record=False)
        new = (int(record.logits[-1].argmax()),)
        yield new[0], record.ended_s - record.started_s


def _with_weights(loaded: LoadedModel, dtype: str) -> LoadedModel:
    """The same model with its weights in another precision; a copy, the original stays as it is."""
    import torch

    from core.model import spec_of

    model: Any = copy.deepcopy(loaded.model).to(torch.float32 if dtype == "float32" else torch.bfloat16)
    layers = tuple(model.get_submodule(_name_of(loaded, layer)) for layer in loaded.layers)
    spec = spec_of(model, loaded.spec.name)
    if dtype == "int8":
        _round_to_int8(model)
    return replace(loaded, model=model, spec=spec, layers=layers)


def _name_of(loaded: LoadedModel, wanted: torch.nn.Module) -> str:
    return next(str(name) for name, module in loaded.model.named_modules() if module is wanted)


def _round_to_int8(model: Any) -> None:
    """Replace every linear layer by one that keeps its weights as 8-bit integers."""
    import torch

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, _int8_linear(child))


def _int8_linear(linear: torch.nn.Linear) -> torch.nn.Module:
    """Weights as int8 `(out, in)` with one scale per row; they stay int8 until the processor multiplies them."""
    import torch

    class Int8Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = linear.weight.detach().float()
            scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
            self.weight = torch.nn.Parameter(
                (weight / scale[:, None]).round().to(torch.int8), requires_grad=False
            )
            self.scale = torch.nn.Parameter(scale.to(linear.weight.dtype), requires_grad=False)
            self.bias = linear.bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            out = torch._weight_int8pack_mm(rows, self.weight, self.scale).reshape(*x.shape[:-1], -1)
            return out if self.bias is None else out + self.bias

    return Int8Linear()


def _read_per_pass(loaded: LoadedModel) -> int:
    """Bytes of weights that one decode pass reads: all but an embedding of its own, of which it reads one row."""
    import torch

    embedding = loaded.model.get_input_embeddings()
    head = loaded.model.get_output_embeddings()
    tied = isinstance(head, torch.nn.Linear) and head.weight is embedding.weight
    own = 0 if tied else embedding.weight.numel() * embedding.weight.element_size()
    return int(sum(p.numel() * p.element_size() for p in loaded.model.parameters()) - own)


# ---- two cards -------------------------------------------------------------------------------------------------------


def tensor_parallel_token_s(
    spec: ModelSpec,
    n_cards: int,
    read_bytes_per_s: float,
    link_bytes_per_s: float,
    link_latency_s: float,
    n_cached: int = 0,
) -> float:
    """Seconds per decoded token if every matrix is cut across `n_cards` (computed, memory-bound).

    Each card reads its share of weights and cache. Twice per layer all cards must add up one vector of hidden_size
    values (a ring all-reduce moves 2(n-1)/n of it over each link, in 2(n-1) hops). That part does not shrink.
    """
    cost = pass_cost(spec, 1, n_cached)
    reading = cost.bytes / n_cards / read_bytes_per_s
    vector_bytes = spec.hidden_size * spec.dtype_bytes
    hops = 2 * (n_cards - 1)
    one_sum = hops * (link_latency_s + vector_bytes / n_cards / link_bytes_per_s)
    return reading + 2 * spec.n_layers * one_sum


# ---- keeping the measurement -----------------------------------------------------------------------------------------


def to_json(limits: MachineLimits, points: Sequence[PassPoint]) -> dict[str, Any]:
    """Plain values, to be kept in the user's cache folder: a machine is measured once."""
    return {"limits": asdict(limits), "points": [asdict(point) for point in points]}


def from_json(data: dict[str, Any]) -> tuple[MachineLimits, tuple[PassPoint, ...]]:
    """Inverse of `to_json`. Raises KeyError or TypeError for anything else."""
    return MachineLimits(**data["limits"]), tuple(PassPoint(**point) for point in data["points"])
