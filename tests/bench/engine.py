"""Rows about the engine: our traced, shared, packed passes against what `transformers` does by itself."""

from __future__ import annotations

import io
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from core.forward import register
from core.model import load_model
from core.sampling import SamplingParams
from core.scheduler import Request, Scheduler
from core.trace import Trace
from tests.bench.table import Measured, Target, at_least, row

PROMPT = "What is gravity?"
TOPICS = (
    "rain", "iron", "sleep", "the moon", "bread", "a prime number", "jazz", "salt", "a volcano", "chess",
    "the tide", "glass", "honey", "a comet", "steam", "ink", "a glacier", "rust", "an echo", "cotton",
    "thunder", "a bridge", "coral", "a lens", "sand", "a seed", "snow", "a magnet", "a shadow", "yeast",
)  # fmt: skip
PROMPTS = tuple(f"What is {topic}? Explain it in a few words." for topic in TOPICS)


class Engine:
    """One loaded model and its scheduler; `generate()` runs on the same weights with transformers' own attention."""

    def __enter__(self) -> Engine:
        self.loaded = load_model()
        self.scheduler = Scheduler(self.loaded)
        self.answer(PROMPT, 8), self.generate(PROMPT, 8)  # the first passes allocate and warm up
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.scheduler.close()

    def request(self, prompt: str, n_tokens: int) -> Request:
        request = Request.from_text(self.loaded, prompt, SamplingParams(max_tokens=n_tokens))
        return replace(request, ignore_stop=True)  # both sides of a pair must do the same number of passes

    def answer(self, prompt: str, n_tokens: int) -> Trace:
        """A traced run through the scheduler, greedy."""
        return self.scheduler.submit(self.request(prompt, n_tokens)).result(timeout=600)

    def in_its_thread(self, work: Callable[[], Any]) -> Any:
        """Run `work` in the scheduler's thread: torch is slower in a process where two threads use it."""
        return self.scheduler.run_job("bench", lambda _: (work() for _ in range(1))).wait(600)[0]

    def generate(self, prompt: str, n_tokens: int) -> list[float]:
        """The same run through transformers' `generate()`; the times at which its tokens came."""
        return self.in_its_thread(lambda: self._generate(prompt, n_tokens))

    def _generate(self, prompt: str, n_tokens: int) -> list[float]:
        ids = torch.tensor([self.request(prompt, n_tokens).encoded.ids])
        clock = Clock()
        self.loaded.model.set_attn_implementation("sdpa")
        try:
            with torch.inference_mode():
                self.loaded.model.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, streamer=clock,
                    max_new_tokens=n_tokens, min_new_tokens=n_tokens, pad_token_id=0,
                )  # fmt: skip
        finally:
            self.loaded.model.set_attn_implementation(register())
        return clock.times

    def answer_together(self, prompts: tuple[str, ...], n_tokens: int) -> tuple[list[Trace], float]:
        """All prompts submitted at once, each from a thread of its own; their traces and the seconds it took."""
        traces: list[Trace | None] = [None] * len(prompts)
        requests = [self.request(prompt, n_tokens) for prompt in prompts]
        gate = threading.Barrier(len(prompts) + 1)

        def learner(i: int) -> None:
            gate.wait()
            traces[i] = self.scheduler.submit(requests[i]).result(timeout=600)

        threads = [threading.Thread(target=learner, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        gate.wait()
        started = time.perf_counter()
        for thread in threads:
            thread.join()
        return [trace for trace in traces if trace is not None], time.perf_counter() - started


class Clock(BaseStreamer):
    """`generate()` hands over the prompt, then each token; this notes when."""

    def __init__(self) -> None:
        self.times: list[float] = [time.perf_counter()]
        self.prompt_seen = False

    def put(self, value: Any) -> None:
        if self.prompt_seen:
            self.times.append(time.perf_counter())
        self.prompt_seen = True

    def end(self) -> None:
        pass


def decode_s(trace: Trace) -> float:
    """Seconds per token after the first."""
    return (trace.steps[-1].ended_s - trace.choice_steps[0].ended_s) / (trace.n_generated - 1)


@row("traced decode against generate(), tokens/s", at_least(0.97), needs="engine")
def traced_decode(engine: Engine) -> Measured:
    n, pairs = 64, []
    for i in range(7):
        order = ("ours", "theirs") if i % 2 else ("theirs", "ours")
        seconds = {}
        for who in order:
            if who == "ours":
                seconds[who] = decode_s(engine.answer(PROMPT, n))
            else:
                times = engine.generate(PROMPT, n)
                seconds[who] = (times[-1] - times[1]) / (len(times) - 2)
        pairs.append((seconds["ours"], seconds["theirs"]))
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Measured(
        ratio, f"{1 / ours:.1f} against {1 / theirs:.1f} tokens/s; median of {len(pairs)} pairs of {n} tokens"
    )


@row("traced decode, bytes read per second against this machine's read bandwidth", needs="engine")
def bandwidth_used(engine: Engine) -> Measured:
    buffer = engine.in_its_thread(lambda: torch.ones(2**28))  # 1 GiB: far larger than any cache
    ratios, rates, limits = [], [], []
    for _ in range(5):
        trace = engine.answer(PROMPT, 32)
        rate = bytes_per_pass(engine, trace) / decode_s(trace)
        limit = engine.in_its_thread(lambda: read_bandwidth(buffer))
        rates.append(rate), limits.append(limit), ratios.append(rate / limit)
    return Measured(
        statistics.median(ratios),
        f"{statistics.median(rates) / 1e9:.1f} of {statistics.median(limits) / 1e9:.1f} GB/s; "
        f"{bytes_per_pass(engine, trace) / 1e6:.0f} MB a pass (weights once, and the cache)",
    )


def bytes_per_pass(engine: Engine, trace: Trace) -> float:
    """Every weight is read once per pass (tied ones once), and the K and V of the tokens so far (on average)."""
    weights = sum(p.numel() * p.element_size() for p in engine.loaded.model.parameters())
    mean_cached = statistics.mean(step.n_cached_after for step in trace.steps if step.phase == "decode")
    return weights + mean_cached * engine.loaded.spec.kv_bytes_per_token


def read_bandwidth(buffer: torch.Tensor) -> float:
    """Bytes per second of summing a buffer with all threads; the best of three."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - started)
    return buffer.numel() * buffer.element_size() / best


@row("learners at once", needs="engine")
def learners(engine: Engine) -> list[tuple[str, Measured, Target | None]]:
    lines = []
    engine.answer_together(PROMPTS, 4)
    alone = statistics.median(engine.answer(prompt, 4).choice_steps[0].ended_s for prompt in PROMPTS[:8])
    for n_learners, target in ((1, None), (8, None), (30, at_least(9))):
        rounds = [_together(engine, PROMPTS[:n_learners]) for _ in range(1 if n_learners == 30 else 3)]
        who = f"{n_learners} learner{'s' * (n_learners > 1)} at once against generate() one after another"
        lines.append((f"{who}, all tokens/s", _ratio(rounds, "all", "prompts read in that time"), target))
    # Reading prompts is limited by arithmetic and gains little from company; this is what batching itself brings.
    lines.append(("30 learners, decode passes alone, tokens/s", _ratio(rounds, "decode", "prompts apart"), None))
    alone_s, pass_s = engine.in_its_thread(lambda: linear_s(engine, 30)), 30 / rounds[0].decode[0]
    lines.append(
        (
            "30 learners, a decode pass's matrix multiplications alone against the whole pass",
            Measured(alone_s / pass_s, f"{alone_s * 1e3:.0f} of {pass_s * 1e3:.0f} ms"),
            None,
        )
    )
    half = statistics.median(rounds[0].first_s)
    lines.append(
        (
            "time to first token of the 30, median, against one alone",
            Measured(
                half / alone,
                f"{half:.2f} s (first {min(rounds[0].first_s):.2f}, last {max(rounds[0].first_s):.2f}) "
                f"against {alone:.3f} s",
            ),
            None,
        )
    )
    return lines


N_ANSWER = 32


@dataclass(frozen=True)
class Together:
    """The same prompts answered one after another by `generate()` and all at once by the scheduler, tokens/s."""

    all: tuple[float, float]  # ours, theirs: answers' tokens over all the time, reading the prompts included
    decode: tuple[float, float]  # passes in which everybody decodes, against generate()'s after its first token
    first_s: list[float]


def _together(engine: Engine, prompts: tuple[str, ...]) -> Together:
    n, gaps = len(prompts), []
    started = time.perf_counter()
    for prompt in prompts:
        times = engine.generate(prompt, N_ANSWER)
        gaps.append((times[-1] - times[1]) / (len(times) - 2))
    theirs = n * N_ANSWER / (time.perf_counter() - started)
    traces, seconds = engine.answer_together(prompts, N_ANSWER)
    ends = [step.ended_s for step in traces[0].steps if step.phase == "decode" and step.batch_size == n]
    full = statistics.median(later - earlier for earlier, later in pairwise(ends))
    return Together(
        all=(n * N_ANSWER / seconds, theirs),
        decode=(n / full, 1 / statistics.median(gaps)),
        first_s=[trace.choice_steps[0].ended_s for trace in traces],
    )


def linear_s(engine: Engine, n_rows: int) -> float:
    """Seconds that the weights' matrix multiplications of a pass over so many rows take, and nothing else."""
    layers = [module for module in engine.loaded.model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = {layer.in_features: torch.randn(n_rows, layer.in_features) for layer in layers}
    seconds = []
    with torch.inference_mode():
        for _ in range(9):
            started = time.perf_counter()
            for layer in layers:
                layer(inputs[layer.in_features])
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _ratio(rounds: list[Together], name: str, what: str) -> Measured:
    pairs = [getattr(one, name) for one in rounds]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Measured(
        statistics.median(a / b for a, b in pairs),
        f"{ours:.0f} against {theirs:.1f} tokens/s, {N_ANSWER} tokens each, {what}",
    )


@row("trace in memory against its file, bytes per token", needs="engine")
def trace_bytes(engine: Engine) -> Measured:
    trace = engine.answer(PROMPT, 64)
    arrays = [trace.queries, trace.keys, trace.values]
    arrays += [
        getattr(step, name) for step in trace.steps for name in ("logits", "residual", "layer_starts_s")
    ]
    held = sum(array.nbytes for array in arrays) / len(trace.tokens)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.otat"
        trace.save(path)
        stored = path.stat().st_size / len(trace.tokens)
        data = io.BytesIO(path.read_bytes())
        started = time.perf_counter()
        Trace.load(path)
        seconds = time.perf_counter() - started
    return Measured(
        held / stored,
        f"{held / 1e3:.0f} kB and {stored / 1e3:.0f} kB per token; a file of {len(trace.tokens)} tokens is "
        f"{data.getbuffer().nbytes / 1e6:.1f} MB and loads in {seconds * 1e3:.0f} ms",
    )
