"""Check that this machine's device gives the right numbers: `python -m tools.check_device cuda` (or mps, or cpu).

The test suite runs on a processor, because that is what every machine has. A graphics card adds up in another order,
so its numbers differ in the last digits. This compares, on the real model: greedy answers with transformers'
`generate()` on the same device, alone and eight at a time; logits with the processor's; that each pass's layers began
in order; that the cache holds exactly the bytes of the formula; and how fast a traced decode is beside `generate()`.
It prints what it finds and ends with an error if something is wrong.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import torch

from core.forward import Span, packed_forward, register
from core.model import LoadedModel, load_model
from core.sampling import SamplingParams
from core.scheduler import Request, Scheduler
from core.trace import Trace

PROMPTS = (
    "What is gravity?",
    "Write a haiku about rain.",
    "def fibonacci(n):",
    "今日は",
    "Why is the sky blue?",
    "List three colours.",
    "Once upon a time",
    "1, 2, 3, 4,",
)
N_TOKENS, LOGITS_APART = 24, 0.05


def generated(loaded: LoadedModel, prompt: str) -> tuple[list[int], float]:
    """Greedy ids of transformers' own loop on this device, and its seconds."""
    ids = torch.tensor(
        [Request.from_text(loaded, prompt, SamplingParams()).encoded.ids], device=loaded.device
    )
    loaded.model.set_attn_implementation("sdpa")
    started = time.perf_counter()
    options = {"max_new_tokens": N_TOKENS, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    out = loaded.model.generate(ids, **options)[0, ids.shape[1] :].tolist()
    seconds = time.perf_counter() - started
    loaded.model.set_attn_implementation(register())
    return out, seconds


def traced(scheduler: Scheduler, prompts: tuple[str, ...]) -> tuple[list[Trace], float]:
    """The same prompts through the scheduler, together, and the seconds for all."""
    requests = [Request.from_text(scheduler.loaded, p, SamplingParams(max_tokens=N_TOKENS)) for p in prompts]
    started = time.perf_counter()
    traces = [run.result(300) for run in [scheduler.submit(request) for request in requests]]
    return traces, time.perf_counter() - started


def differences(loaded: LoadedModel, scheduler: Scheduler) -> list[str]:
    """Everything that is wrong, in words."""
    # A generator, so that it runs in the scheduler's thread (a list would be made here).
    job = scheduler.run_job("generate", lambda model: (generated(model, prompt)[0] for prompt in PROMPTS))
    expected = job.wait(600)
    wrong = []
    alone = [traced(scheduler, (prompt,))[0][0] for prompt in PROMPTS]
    together, _ = traced(scheduler, PROMPTS)
    for name, traces in (("alone", alone), ("together", together)):
        for prompt, trace, ids in zip(PROMPTS, traces, expected, strict=True):
            if [t.id for t in trace.answer_tokens] != ids:
                wrong.append(f"{prompt!r}, {name}: the answer is not the one of generate()")
            if trace.keys.nbytes + trace.values.nbytes != trace.n_traced * loaded.spec.kv_bytes_per_token:
                wrong.append(f"{prompt!r}, {name}: the cache does not hold the bytes of the formula")
            if any((np.diff(step.layer_starts_s) < 0).any() for step in trace.steps):
                wrong.append(f"{prompt!r}, {name}: layers did not begin in order")
    return wrong


def logits_apart(loaded: LoadedModel) -> float:
    """Largest difference from the processor's logits after the first prompt."""
    here = load_model(device="cpu")
    ids = Request.from_text(here, PROMPTS[0], SamplingParams()).encoded.ids
    pairs = [packed_forward(m, [Span(m.new_cache(), ids)])[0].logits[-1] for m in (here, loaded)]
    return float(np.abs(pairs[0] - pairs[1]).max())


def speed(loaded: LoadedModel, scheduler: Scheduler, rounds: int = 5) -> tuple[float, float]:
    """Traced runs' speed as a share of `generate()`'s, measured in turns and in the same thread; and that of eight."""
    one, many = [], []
    for _ in range(rounds):
        job = scheduler.run_job("generate", lambda model: (generated(model, p) for p in PROMPTS[:1]))
        _, plain_s = job.wait(300)[0]
        one.append(plain_s / traced(scheduler, PROMPTS[:1])[1])
        many.append(len(PROMPTS) * plain_s / traced(scheduler, PROMPTS)[1])
    return statistics.median(one), statistics.median(many)


def main(device: str = "auto") -> int:
    """Run every check; the number of things that are wrong."""
    loaded = load_model(device=device)
    scheduler = Scheduler(loaded)
    print(f"{loaded.spec.name}, {loaded.spec.dtype}, on {loaded.device}")
    wrong = differences(loaded, scheduler)
    apart = logits_apart(loaded)
    if apart > LOGITS_APART:
        wrong.append(f"logits differ from the processor's by {apart:.3g}")
    print(f"logits against the processor: at most {apart:.2e} apart (measured)")
    one, many = speed(loaded, scheduler)
    print(f"traced decode against generate(): {one:.2f}; eight at once: {many:.1f} (measured)")
    print(
        "\n".join(f"WRONG: {sentence}" for sentence in wrong)
        or "all answers equal, layers in order, bytes exact"
    )
    scheduler.close()
    return len(wrong)


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:2])))
