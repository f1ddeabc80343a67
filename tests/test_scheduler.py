"""Sharing the model changes who waits, never what is said.

The oracle is transformers' `generate()`, greedy, one prompt at a time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import core.scheduler as scheduler_module
from core.errors import (
    BusyError,
    EmptyPromptError,
    OutOfMemoryError,
    PromptTooLongError,
    QueueFullError,
    RunFailedError,
    StillRunningError,
)
from core.forward import Span, packed_forward
from core.model import LoadedModel
from core.sampling import SamplingParams
from core.scheduler import Request, Run, Scheduler
from core.trace import Trace

PROMPTS = [
    "What is gravity?",
    "今日は",
    "Write a haiku about rain.",
    "def fibonacci(n):",
    "1, 2, 3, 4,",
    "Why is the sky blue? Answer in one sentence.",
    "Translate to French: good morning",
    "🙂",
    "a",
    "List three colours.",
    "The capital of Japan is",
    "Explain what a cache is to a child, slowly and with an example from the kitchen.",
    "مرحبا",
    "SELECT name FROM users WHERE",
    "Once upon a time",
    "What is 17 times 3?",
    "  leading and trailing spaces  ",
    "Name a prime number larger than 100.",
    "HELLO!!! ANSWER IN CAPITALS",
    "What did the fox say? " * 12,
]
GREEDY = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> list[tuple[list[int], list[np.ndarray]]]:
    """Greedy ids and logits of `generate()` for every prompt."""
    traced_attention = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("sdpa")
    try:
        return [_generate(loaded, prompt) for prompt in PROMPTS]
    finally:
        loaded.model.set_attn_implementation(traced_attention)


def _generate(loaded: LoadedModel, prompt: str) -> tuple[list[int], list[np.ndarray]]:
    ids = torch.tensor([request_of(loaded, prompt).encoded.ids])
    out = loaded.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=GREEDY.max_tokens, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return out.sequences[0, ids.shape[1] :].tolist(), [row[0].numpy() for row in out.logits]


def request_of(loaded: LoadedModel, prompt: str, params: SamplingParams = GREEDY) -> Request:
    return Request.from_text(loaded, prompt, params)


def answer_ids(trace: Any) -> list[int]:
    return [token.id for token in trace.answer_tokens]


def assert_same(trace: Any, expected: tuple[list[int], list[np.ndarray]]) -> None:
    ids, logits = expected
    assert answer_ids(trace) == ids
    for step, row in zip(trace.choice_steps, logits, strict=True):
        np.testing.assert_allclose(step.logits, row, atol=1e-4)


@pytest.fixture
def own(loaded: LoadedModel) -> Iterator[Any]:
    """Makes schedulers with other limits, and closes them."""
    made: list[Scheduler] = []

    def make(**limits: int) -> Scheduler:
        made.append(Scheduler(loaded, **limits))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_alone_equals_generate(scheduler: Scheduler, expected: Any) -> None:
    for prompt, answer in zip(PROMPTS, expected, strict=True):
        assert_same(scheduler.submit(request_of(scheduler.loaded, prompt)).result(120), answer)


def test_together_joining_and_leaving_equals_generate(own: Any, expected: Any, loaded: LoadedModel) -> None:
    """Twenty prompts of different lengths, at most seven at a time, small passes: all mixtures occur."""
    scheduler = own(max_num_seqs=7, max_num_batched_tokens=48)
    runs = [scheduler.submit(request_of(loaded, prompt)) for prompt in PROMPTS]
    traces = [run.result(300) for run in runs]
    for trace, answer in zip(traces, expected, strict=True):
        assert_same(trace, answer)
    sizes = {step.batch_size for trace in traces for step in trace.steps}
    assert len(sizes) > 2
    assert max(sizes) <= 7


def test_seven_token_chunks_equal_generate(own: Any, expected: Any, loaded: LoadedModel) -> None:
    scheduler = own(max_num_batched_tokens=7)
    for prompt, answer in zip(PROMPTS, expected, strict=True):
        trace = scheduler.submit(request_of(loaded, prompt)).result(300)
        assert_same(trace, answer)
        prefill = [step for step in trace.steps if step.phase == "prefill"]
        assert [step.token_id is None for step in prefill] == [True] * (len(prefill) - 1) + [False]
        assert sum(step.n_input for step in prefill) == trace.n_prompt


def test_without_a_cache_equals_generate(loaded: LoadedModel, expected: Any) -> None:
    """Everything computed again for every token: the same tokens, the same logits."""
    for prompt, (answer, logits) in list(zip(PROMPTS, expected, strict=True))[::4]:
        ids = list(request_of(loaded, prompt).encoded.ids)
        for token, row in zip(answer, logits, strict=True):
            (record,) = packed_forward(loaded, [Span(loaded.new_cache(), tuple(ids))], record=False)
            np.testing.assert_allclose(record.logits[0], row, atol=1e-4)
            assert int(record.logits[0].argmax()) == token
            ids.append(token)


def test_thirty_threads_get_what_each_would_get_alone(scheduler: Scheduler, loaded: LoadedModel) -> None:
    params = [SamplingParams(temperature=0.8, top_p=0.9, seed=i, max_tokens=6) for i in range(30)]
    requests = [request_of(loaded, f"{PROMPTS[i % len(PROMPTS)]} {i}", p) for i, p in enumerate(params)]
    alone = [answer_ids(scheduler.submit(request).result(120)) for request in requests]
    together: dict[int, list[int]] = {}

    def learner(i: int) -> None:
        together[i] = answer_ids(scheduler.submit(requests[i]).result(300))

    threads = [threading.Thread(target=learner, args=(i,)) for i in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert [together[i] for i in range(30)] == alone


def test_the_steps_tell_one_story(live_trace: Any) -> None:
    """Cache lengths, positions and times fit together, and the last choice has no keys and values yet."""
    trace, cached = live_trace, 0
    assert trace.n_cached == trace.n_traced == trace.n_prompt + trace.n_generated - 1
    assert trace.finish_reason == "length"
    for before, step in zip([None, *trace.steps], trace.steps, strict=False):
        assert step.n_cached_before == cached
        cached = step.n_cached_after
        assert step.phase == ("decode" if before else "prefill")
        assert step.input_ids == ((before.token_id,) if before else tuple(t.id for t in trace.prompt_tokens))
        assert step.started_s <= step.layer_starts_s[0] <= step.layer_starts_s[-1] <= step.ended_s
        assert before is None or before.ended_s <= step.started_s
    assert 0 <= trace.admitted_s <= trace.steps[0].started_s
    assert trace.first_token_s == trace.steps[0].ended_s
    assert [t.id for t in trace.answer_tokens] == [s.token_id for s in trace.steps]


def test_a_step_cannot_be_changed(live_trace: Any) -> None:
    for array in (live_trace.steps[0].logits, live_trace.keys, live_trace.queries):
        with pytest.raises(ValueError, match="read-only"):
            array.flat[0] = 1.0


def test_a_run_can_be_watched_while_it_goes_on(scheduler: Scheduler, loaded: LoadedModel) -> None:
    run = scheduler.submit(request_of(loaded, "What is gravity?", SamplingParams(max_tokens=16)))
    lengths = []
    while not run.is_over:
        so_far = run.peek()
        assert len(so_far.tokens) == so_far.n_prompt + sum(step.is_choice for step in so_far.steps)
        assert so_far.finish_reason == "running" or run.is_over
        lengths.append(len(so_far.steps))
        time.sleep(0.02)
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 2
    assert run.peek().n_generated == 16


def test_cancelling_keeps_what_was_said(scheduler: Scheduler, loaded: LoadedModel) -> None:
    run = scheduler.submit(request_of(loaded, "Once upon a time", SamplingParams(max_tokens=200)))
    while len(run.steps) < 3:
        time.sleep(0.01)
    run.cancel()
    trace = run.result(10)
    assert run.state == trace.finish_reason == "cancelled"
    assert 3 <= trace.n_generated < 200
    assert trace.n_traced == trace.n_cached


def test_a_learner_who_goes_away_is_cancelled(scheduler: Scheduler, loaded: LoadedModel) -> None:
    request = Request.from_text(loaded, "Once upon a time", SamplingParams(max_tokens=250), keepalive_s=0.3)
    run = scheduler.submit(request)
    assert run._done.wait(20)
    assert run.state == "cancelled"
    watched = scheduler.submit(
        Request.from_text(loaded, "Hi", SamplingParams(max_tokens=20), keepalive_s=0.5)
    )
    while not watched.is_over:
        assert len(watched.steps) <= 20
        time.sleep(0.05)
    assert watched.state == "finished"


def test_a_cancelled_run_that_cannot_be_kept_fails_alone(own: Any, loaded: LoadedModel) -> None:
    """Copying a trace takes memory, of which there may be none."""
    scheduler = own()
    unlucky = scheduler.submit(request_of(loaded, "Once upon a time", SamplingParams(max_tokens=200)))
    while not unlucky.steps:
        time.sleep(0.005)
    whole = scheduler.assemble

    def assemble(run: Run, *, vectors: bool = False) -> Trace:
        if run is unlucky and vectors:
            raise MemoryError
        return whole(run, vectors=vectors)

    scheduler.assemble = assemble
    unlucky.cancel()
    assert unlucky._done.wait(20)
    assert unlucky.state == "failed"
    after = scheduler.submit(request_of(loaded, "Once", SamplingParams(max_tokens=2)))
    assert after.result(20).n_generated == 2


def test_a_measurement_that_nobody_waits_for_is_stopped(own: Any) -> None:
    scheduler = own()

    def work(loaded: LoadedModel) -> Iterator[int]:
        for i in range(100_000):
            time.sleep(0.005)
            yield i

    watched = scheduler.run_job("watched", work, keepalive_s=0.3)
    left = scheduler.run_job("left", work, keepalive_s=0.3)
    for _ in range(500):
        watched.touch()
        time.sleep(0.02)
        if left.is_over:
            break
    assert (left.state, watched.is_over) == ("cancelled", False)
    watched.cancel()
    watched.wait(10)
    assert scheduler.run_job("left", lambda loaded: iter([1])).wait(10) == (1,)


def test_a_full_queue_is_an_answer(own: Any, loaded: LoadedModel) -> None:
    scheduler = own(max_num_seqs=1, max_waiting=2)
    long = SamplingParams(max_tokens=100)
    running = scheduler.submit(request_of(loaded, "Once", long))
    while running.state == "waiting":
        time.sleep(0.005)
    waiting = [scheduler.submit(request_of(loaded, "Once", long)) for _ in range(2)]
    assert [run.queue_position for run in waiting] == [0, 1]
    assert (running.queue_position, scheduler.n_waiting, scheduler.n_running) == (None, 2, 1)
    with pytest.raises(QueueFullError, match="2 runs are already waiting"):
        scheduler.submit(request_of(loaded, "Once", long))
    waiting[0].cancel()
    assert waiting[0].result(30).n_generated == 0
    assert waiting[1].queue_position == 0
    with pytest.raises(StillRunningError, match="has not finished"):
        running.result(0.01)


def test_flooding_leaves_the_scheduler_working(own: Any, loaded: LoadedModel) -> None:
    scheduler, refused, runs = own(max_num_seqs=4, max_waiting=8), [], []

    def flood() -> None:
        for _ in range(10):
            try:
                runs.append(scheduler.submit(request_of(loaded, "a", SamplingParams(max_tokens=1))))
            except QueueFullError:
                refused.append(1)

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) + len(refused) == 80
    assert refused
    assert all(run.result(60).n_generated == 1 for run in runs)


def test_prompts_that_are_empty_or_too_long(scheduler: Scheduler, loaded: LoadedModel) -> None:
    for empty in ("", "  \n"):
        with pytest.raises(EmptyPromptError):
            Request.from_text(loaded, empty, GREEDY)
    with pytest.raises(PromptTooLongError, match=r"can take 1024\. Shorten it by \d+ tokens"):
        scheduler.submit(request_of(loaded, "word " * 3000))


def test_one_run_fails_alone(own: Any, expected: Any, loaded: LoadedModel) -> None:
    """A token id outside the vocabulary breaks the shared pass; the neighbour's answer is as if nothing happened."""
    from core.tokenizer import EncodedPrompt, Token

    scheduler = own()
    bad = EncodedPrompt((Token(10**6, b"?", "?", False, 0),), (False,), "?")
    good = scheduler.submit(request_of(loaded, PROMPTS[0]))
    broken = scheduler.submit(Request(bad, GREEDY))
    assert_same(good.result(60), expected[0])
    with pytest.raises(RunFailedError, match="IndexError"):
        broken.result(60)
    assert broken.state == "failed"
    assert_same(scheduler.submit(request_of(loaded, PROMPTS[1])).result(60), expected[1])


def test_running_out_of_memory_is_said_in_words(
    own: Any, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = own()

    def no_memory(*_: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory")

    monkeypatch.setattr(scheduler_module, "packed_forward", no_memory)
    run = scheduler.submit(request_of(loaded, "a"))
    with pytest.raises(OutOfMemoryError, match="ran out of memory"):
        run.result(30)
    monkeypatch.undo()
    assert scheduler.submit(request_of(loaded, "a", SamplingParams(max_tokens=1))).result(30).n_generated == 1


def test_a_fork_continues_as_a_fresh_run_would(scheduler: Scheduler, loaded: LoadedModel) -> None:
    """Branching from the cache and computing everything again give the same continuation, with the same dice."""
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=10)
    run = scheduler.submit(request_of(loaded, "Tell me a story", params))
    trace = run.result(60)
    other = int(np.argsort(trace.steps[4].logits)[-2])
    rest = SamplingParams(temperature=0.9, seed=5, max_tokens=5)
    forked = scheduler.submit(run.fork(4, other, rest)).result(60)
    ids = [t.id for t in trace.tokens[: trace.n_prompt + 4]] + [other]
    assert [t.id for t in forked.prompt_tokens] == ids
    assert [step.n_input for step in forked.steps] == [1] * 5
    assert forked.steps[0].n_cached_before == trace.n_prompt + 4
    from core.tokenizer import EncodedPrompt, make_tokens

    fresh_prompt = EncodedPrompt(make_tokens(loaded.tokenizer, ids), (False,) * len(ids), "")
    fresh = scheduler.submit(Request(fresh_prompt, rest, first_choice=5)).result(60)
    assert answer_ids(forked) == answer_ids(fresh)
    # taking the same token again at the fork gives the original answer
    same = scheduler.submit(run.fork(4, trace.steps[4].token_id, rest)).result(60)
    assert answer_ids(same) == answer_ids(trace)[5:10]
    with pytest.raises(ValueError, match="no choice number 10"):
        run.fork(10, 1, rest)


def test_beyond_the_traced_positions_a_run_goes_on_untraced(own: Any, loaded: LoadedModel) -> None:
    scheduler = own(max_traced=40, max_num_batched_tokens=16)
    trace = scheduler.submit(request_of(loaded, PROMPTS[11])).result(60)
    assert trace.n_cached > 40
    assert trace.n_traced == trace.queries.shape[2] == trace.keys.shape[2] == 40
    whole = own().submit(request_of(loaded, PROMPTS[11])).result(60)
    assert answer_ids(trace) == answer_ids(whole)
    np.testing.assert_allclose(trace.queries, whole.queries[:, :, :40], atol=1e-3)


def test_measurements_share_the_model(scheduler: Scheduler, loaded: LoadedModel) -> None:
    def work(_: LoadedModel) -> Iterator[int]:
        for i in range(20):
            time.sleep(0.01)
            yield i

    run = scheduler.submit(request_of(loaded, "What is gravity?"))
    job = scheduler.run_job("count", work)
    with pytest.raises(BusyError, match="Another measurement"):
        scheduler.run_job("count", work)
    assert job.wait(60) == tuple(range(20))
    assert run.result(60).n_generated == 12
    again = scheduler.run_job("count", work)
    while not again.results:
        time.sleep(0.002)
    again.cancel()
    assert len(again.wait(10)) < 20
    assert again.state == "cancelled"


def test_a_failing_measurement_fails_alone(scheduler: Scheduler, loaded: LoadedModel) -> None:
    def work(_: LoadedModel) -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("nothing to divide")

    job = scheduler.run_job("broken", work)
    with pytest.raises(RunFailedError, match="nothing to divide"):
        job.wait(30)
    assert job.results == (1,)
    assert scheduler.submit(request_of(loaded, "a", SamplingParams(max_tokens=1))).result(30).n_generated == 1


def test_closing_ends_everything(loaded: LoadedModel) -> None:
    scheduler = Scheduler(loaded)
    runs = [scheduler.submit(request_of(loaded, "Once", SamplingParams(max_tokens=200))) for _ in range(3)]
    scheduler.close()
    assert not scheduler._thread.is_alive()
    assert all(isinstance(run, Run) and run.state == "cancelled" for run in runs)


def test_stop_tokens_end_an_answer(scheduler: Scheduler, loaded: LoadedModel) -> None:
    params = SamplingParams(max_tokens=120)
    run = scheduler.submit(request_of(loaded, "Say only the word: yes", params)).result(120)
    assert run.finish_reason == "stop"
    assert run.answer_tokens[-1].id in loaded.stop_ids
    assert run.answer_tokens[-1].is_special
    assert "<|" not in run.answer_text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ranks single threads")
def test_pages_go_before_the_model(scheduler: Scheduler) -> None:
    """The thread of the model steps back; the threads that run pages do not."""
    model_thread = scheduler._thread.native_id
    assert model_thread is not None
    here = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert os.getpriority(os.PRIO_PROCESS, model_thread) == max(here, 10)
