"""Many learners, one model: who is served in which pass.

A pass through a small model costs almost the same for one sequence as for eight, because most of its time goes into
reading the weights. So a server does not answer one request after another. It packs the next token of every running
request into one pass, and lets requests join and leave between passes. That is continuous batching.

One thread owns the model. It repeats: drop what was cancelled, admit what waits, decide how many tokens of whom go into
the next pass, run it, hand each request its new step. A new request's prompt is read in bounded chunks
(`max_num_batched_tokens` per pass), so that a long prompt does not stop everybody else's stream. The number of running
and of waiting requests is bounded, and a full queue is an answer, not a crash.

Measurements need the model too, and run in the same thread: a second thread that uses torch would slow both. They are
generators: between two passes, each may compute up to its next `yield`. So a race or a benchmark slows the others down
a little, and never stops them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import torch

from core.errors import (
    BusyError,
    EmptyPromptError,
    ExplainerError,
    OutOfMemoryError,
    PromptTooLongError,
    QueueFullError,
    RunFailedError,
    StillRunningError,
)
from core.forward import Span, SpanRecord, packed_forward
from core.kv_cache import KVCache
from core.machine import library_versions, processor_name
from core.model import LoadedModel
from core.sampling import SamplingParams, choose
from core.tokenizer import EncodedPrompt, Token, encode_prompt, make_tokens
from core.trace import FinishReason, Phase, Step, Trace

State = Literal["waiting", "running", "finished", "cancelled", "failed"]


@dataclass(frozen=True, eq=False)
class Request:
    """What one learner asks for.

    prefix: a filled cache of the first positions of `encoded` (a fork of an earlier run); they are not computed again,
    and such a run records no queries, keys or values. first_choice: number of the first choice, so that a continued run
    throws the same dice as the original. keepalive_s: cancel the run if nobody has looked at it for so long.
    ignore_stop: go on after a stop token (measurements of a fixed length).
    """

    encoded: EncodedPrompt
    params: SamplingParams
    prompt: str = ""
    system: str = ""
    chat: bool = False
    prefix: KVCache | None = None
    first_choice: int = 0
    keepalive_s: float | None = None
    ignore_stop: bool = False

    @classmethod
    def from_text(
        cls,
        loaded: LoadedModel,
        prompt: str,
        params: SamplingParams,
        *,
        chat: bool = True,
        system: str | None = None,
        keepalive_s: float | None = None,
    ) -> Request:
        """A request from what a learner typed. system=None takes the chat template's own.

        Raises EmptyPromptError.
        """
        if not prompt.strip():
            raise EmptyPromptError()
        encoded = encode_prompt(loaded.tokenizer, prompt, chat=chat, system=system)
        return cls(encoded, params, prompt, system or "", chat, keepalive_s=keepalive_s)


@dataclass(eq=False)
class _Progress:
    """What the worker thread alone reads and writes about a run."""

    cache: KVCache | None = None
    pending: tuple[int, ...] = ()  # tokens not fed yet
    queries: list[Any] = field(default_factory=list)


class Run:
    """One request on its way. Every attribute may be read from any thread."""

    def __init__(self, request: Request, scheduler: Scheduler) -> None:
        self.request = request
        self.state: State = "waiting"
        self.error: ExplainerError | None = None
        self.finish_reason: FinishReason = "running"
        self.submitted_at = time.perf_counter()
        self.admitted_s: float | None = None
        self.created = datetime.now(UTC).isoformat(timespec="seconds")
        self._scheduler, self._progress = scheduler, _Progress()
        self._steps: tuple[Step, ...] = ()
        self._tokens: tuple[Token, ...] = request.encoded.tokens
        self._trace: Trace | None = None
        self._done = threading.Event()
        self._cancelled = False
        self._seen_at = self.submitted_at

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps so far. Reading them counts as a sign of life (`keepalive_s`)."""
        self.touch()
        return self._steps

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The prompt's tokens and those chosen so far."""
        return self._tokens

    @property
    def queue_position(self) -> int | None:
        """0 for the next to be admitted; None if not waiting."""
        return self._scheduler.queue_position(self)

    @property
    def is_over(self) -> bool:
        """True when no further step will come."""
        return self._done.is_set()

    @property
    def cache(self) -> KVCache | None:
        """The sequence's cache; None before it was admitted. Fork it, never append to it."""
        return self._progress.cache

    def touch(self) -> None:
        """Tell the scheduler that somebody still looks at this run."""
        self._seen_at = time.perf_counter()

    def is_abandoned(self) -> bool:
        """True if nobody has looked for longer than the request allows."""
        limit = self.request.keepalive_s
        return limit is not None and time.perf_counter() - self._seen_at > limit

    def cancel(self) -> None:
        """Stop after the pass that is being computed. What was generated stays."""
        self._cancelled = True
        self._scheduler.wake()

    def peek(self) -> Trace:
        """The run so far. Queries, keys and values are empty until it is over."""
        self.touch()
        return self._trace or self._scheduler.assemble(self)

    def result(self, timeout: float | None = None) -> Trace:
        """Wait for the end. A cancelled run gives what it has. Raises the run's error, or StillRunningError."""
        if not self._done.wait(timeout):
            raise StillRunningError(timeout_s=timeout)
        if self.error is not None:
            raise self.error
        assert self._trace is not None
        return self._trace

    def fork(self, choice: int, token_id: int, params: SamplingParams) -> Request:
        """Another continuation: as if choice number `choice` had been `token_id`.

        The cache of everything before that choice is copied, not computed again. Submit the request that is returned.
        Raises ValueError if the run has made no such choice yet.
        """
        n_prompt = len(self.request.encoded.tokens)
        n_shared = n_prompt + choice
        if self.cache is None or not 0 <= choice < len(self._tokens) - n_prompt or len(self.cache) < n_shared:
            raise ValueError(f"the run has made no choice number {choice}")
        ids = [t.id for t in self._tokens[:n_shared]] + [token_id]
        tokens = make_tokens(self._scheduler.loaded.tokenizer, ids)
        encoded = EncodedPrompt(tokens, tuple(False for _ in ids), "")
        first = self.request.first_choice + choice + 1
        prefix = self.cache.fork(n_shared, capacity=n_shared + 1 + params.max_tokens)
        return Request(
            encoded,
            params,
            self.request.prompt,
            self.request.system,
            self.request.chat,
            prefix,
            first,
            self.request.keepalive_s,
        )


class Job:
    """A measurement that shares the model with the runs. `results` grows with every `yield` of its generator."""

    def __init__(
        self, name: str, work: Iterator[object], wake: Callable[[], None], keepalive_s: float | None = None
    ) -> None:
        self.name, self._work, self._wake, self._keepalive_s = name, work, wake, keepalive_s
        self._seen_at = time.perf_counter()
        self.results: tuple[Any, ...] = ()
        self.state: State = "waiting"
        self.error: ExplainerError | None = None
        self._done = threading.Event()
        self._cancelled = False

    @property
    def is_over(self) -> bool:
        """True when no further result will come."""
        return self._done.is_set()

    def touch(self) -> None:
        """Tell the scheduler that somebody still waits for this."""
        self._seen_at = time.perf_counter()

    def cancel(self) -> None:
        """Stop before the next piece of work. Results so far stay."""
        self._cancelled = True
        self._wake()

    def wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """All results. Raises the job's error, or StillRunningError."""
        if not self._done.wait(timeout):
            raise StillRunningError(timeout_s=timeout)
        if self.error is not None:
            raise self.error
        return self.results

    def advance(self) -> None:
        """Compute up to the next result (worker thread only)."""
        self.state = "running"
        unseen_s = time.perf_counter() - self._seen_at
        try:
            if self._cancelled or (self._keepalive_s is not None and unseen_s > self._keepalive_s):
                self._work.close()  # type: ignore[attr-defined]
                self._finish("cancelled")
                return
            self.results = (*self.results, next(self._work))
        except StopIteration:
            self._finish("finished")
        except Exception as error:
            self.error = _as_explained(error)
            self._finish("failed")

    def _finish(self, state: State) -> None:
        self.state = state
        self._done.set()


class Scheduler:
    """Owns the model in one thread and shares it among all learners.

    max_num_seqs: requests that run at the same time. max_num_batched_tokens: tokens of one pass. max_waiting: length of
    the queue. max_prompt_tokens: the longest prompt. max_traced: positions of a run whose queries, keys and values are
    recorded; beyond it a run goes on untraced, and its trace says so (`n_traced < n_cached`).
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 256,
        max_waiting: int = 64,
        max_prompt_tokens: int = 1024,
        max_traced: int = 512,
        max_jobs: int = 8,
    ) -> None:
        self.loaded = loaded
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.max_waiting, self.max_jobs = max_waiting, max_jobs
        self.max_prompt_tokens = min(max_prompt_tokens, loaded.spec.max_context - 1)
        self.max_traced = max_traced
        self._waiting: deque[Run] = deque()
        self._running: list[Run] = []
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._facts = (_device_name(loaded), library_versions())
        self._thread = threading.Thread(target=self._work, name="scheduler", daemon=True)
        self._thread.start()

    # ---- from any thread ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Run:
        """Queue a request. Raises EmptyPromptError, PromptTooLongError or QueueFullError."""
        self._check(request)
        run = Run(request, self)
        with self._changed:
            if len(self._waiting) >= self.max_waiting:
                raise QueueFullError(n_waiting=len(self._waiting))
            self._waiting.append(run)
            self._changed.notify()
        return run

    def run_job(
        self, name: str, make: Callable[[LoadedModel], Iterator[object]], *, keepalive_s: float | None = None
    ) -> Job:
        """Start a measurement. Raises BusyError while one of the same name is under way, or too many are.

        With `keepalive_s` it is cancelled when nobody has called `Job.touch` for so long.
        """
        with self._changed:
            if len(self._jobs) >= self.max_jobs or any(job.name == name for job in self._jobs):
                raise BusyError()
            job = Job(name, make(self.loaded), self.wake, keepalive_s)
            self._jobs.append(job)
            self._changed.notify()
        return job

    @property
    def n_running(self) -> int:
        """Requests that take part in the current pass."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def queue_position(self, run: Run) -> int | None:
        """See Run.queue_position."""
        with self._changed:
            return self._waiting.index(run) if run in self._waiting else None

    def wake(self) -> None:
        """Let the worker look at what has changed."""
        with self._changed:
            self._changed.notify()

    def close(self, timeout: float = 10.0) -> None:
        """Cancel everything and end the worker thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _check(self, request: Request) -> None:
        n_tokens = len(request.encoded.tokens)
        n_cached = len(request.prefix) if request.prefix else 0
        if n_tokens - n_cached < 1:
            raise EmptyPromptError()
        limit = min(self.max_prompt_tokens, self.loaded.spec.max_context - request.params.max_tokens)
        if n_tokens - n_cached > limit or n_tokens + request.params.max_tokens > self.loaded.spec.max_context:
            raise PromptTooLongError(n_tokens=n_tokens, limit=limit, excess=max(1, n_tokens - limit))

    # ---- the worker thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        _step_back()
        while True:
            with self._changed:
                while not (self._closing or self._running or self._waiting or self._jobs):
                    self._changed.wait()
                self._drop_and_admit()
                if self._closing:
                    break
            self._pass(self._plan())
            self._advance_jobs()
        self._abandon_jobs()

    def _drop_and_admit(self) -> None:
        for run in [*self._running, *self._waiting]:
            if run._cancelled or run.is_abandoned() or self._closing:
                try:
                    self._finish(run, "cancelled")
                except Exception as error:  # no memory for its trace, perhaps: the others go on
                    self._fail(run, error)
        while self._waiting and len(self._running) < self.max_num_seqs:
            run = self._waiting.popleft()
            self._running.append(run)  # before anything can fail, so that _fail finds it
            try:
                self._admit(run)
            except Exception as error:
                self._fail(run, error)

    def _admit(self, run: Run) -> None:
        ids, cache = run.request.encoded.ids, run.request.prefix
        if cache is None:
            cache = self.loaded.new_cache(capacity=len(ids) + run.request.params.max_tokens)
        run._progress = _Progress(cache, ids[len(cache) :])
        run.admitted_s = time.perf_counter() - run.submitted_at
        run.state = "running"

    def _plan(self) -> list[tuple[Run, int]]:
        """How many tokens of which run go into the next pass: every decode first, then prompts, first come first."""
        left = self.max_num_batched_tokens
        plan: list[tuple[Run, int]] = []
        prompts_may_be_cut = True  # only the first in line: to cut every prompt would delay every first token
        for run in sorted(self._running, key=lambda r: len(r._progress.pending) > 1):
            wanted = len(run._progress.pending)
            if wanted > left and not (prompts_may_be_cut and left > 0):
                continue
            if wanted > 1:
                prompts_may_be_cut = False
            plan.append((run, min(wanted, left)))
            left -= min(wanted, left)
        return plan

    def _pass(self, plan: list[tuple[Run, int]]) -> None:
        """Run one pass. If it fails, each sequence is tried alone, so that only the guilty one fails."""
        if not plan:
            return
        spans = [Span(_cache_of(run), run._progress.pending[:n]) for run, n in plan]
        try:
            records = packed_forward(self.loaded, spans)
        except Exception as error:
            if len(plan) == 1:
                self._fail(plan[0][0], error)
                return
            for single in plan:
                self._pass([single])
            return
        for (run, _), record in zip(plan, records, strict=True):
            try:
                self._hand_out(run, record)
            except Exception as error:
                self._fail(run, error)

    def _hand_out(self, run: Run, record: SpanRecord) -> None:
        """Turn what a pass did for one run into its next step; choose a token if the prompt has been read."""
        progress, request = run._progress, run.request
        progress.pending = progress.pending[len(record.token_ids) :]
        self._keep_queries(run, record)
        token_id, u = None, None
        if not progress.pending:
            n_chosen = len(run._tokens) - len(request.encoded.tokens)
            previous = [t.id for t in run._tokens]
            token_id, dice = choose(
                record.logits[-1], request.params, request.first_choice + n_chosen, previous
            )
            u = None if request.params.is_greedy else dice
        step = _make_step(run, record, token_id, u)
        if token_id is not None:
            chosen = make_tokens(self.loaded.tokenizer, [token_id], len(run._tokens))
            run._tokens = (*run._tokens, *chosen)
            progress.pending = (token_id,)
        run._steps = (*run._steps, step)
        self._finish_if_over(run, token_id)

    def _keep_queries(self, run: Run, record: SpanRecord) -> None:
        room = self.max_traced - record.first_position
        if run.request.prefix is None and room > 0 and record.queries is not None:
            run._progress.queries.append(record.queries[:, :, :room].copy())

    def _finish_if_over(self, run: Run, token_id: int | None) -> None:
        n_chosen = len(run._tokens) - len(run.request.encoded.tokens)
        if token_id in self.loaded.stop_ids and not run.request.ignore_stop:
            self._finish(run, "stop")
        elif n_chosen >= run.request.params.max_tokens:
            self._finish(run, "length")

    def _finish(self, run: Run, reason: FinishReason) -> None:
        run.finish_reason = reason
        run._trace = self.assemble(run, vectors=True)
        run._progress.queries.clear()
        self._retire(run, "cancelled" if reason == "cancelled" else "finished")

    def _fail(self, run: Run, error: Exception) -> None:
        run.error = _as_explained(error)
        self._retire(run, "failed")

    def _retire(self, run: Run, state: State) -> None:
        if run in self._running:
            self._running.remove(run)
        elif run in self._waiting:
            self._waiting.remove(run)
        run.state = state
        run._done.set()

    def _advance_jobs(self) -> None:
        """One piece of one measurement: the first in line, which then goes to the end of the line."""
        with self._changed:
            job = self._jobs[0] if self._jobs else None
        if job is None:
            return
        job.advance()
        with self._changed:
            self._jobs.popleft()
            if not job.is_over:
                self._jobs.append(job)

    def _abandon_jobs(self) -> None:
        for job in self._jobs:
            job._cancelled = True
            job.advance()

    # ---- traces ------------------------------------------------------------------------------------------------------

    def assemble(self, run: Run, *, vectors: bool = False) -> Trace:
        """A trace of the run as it is now; `vectors` copies out queries, keys and values (worker thread only)."""
        queries, keys, values = self._vectors(run) if vectors else _no_vectors(self.loaded)
        request, (machine, versions) = run.request, self._facts
        steps, tokens = run._steps, run._tokens
        n_chosen = sum(step.is_choice for step in steps)
        return Trace(
            spec=self.loaded.spec, prompt=request.prompt, system=request.system, chat=request.chat,
            tokens=tokens[: len(request.encoded.tokens) + n_chosen], from_template=request.encoded.from_template,
            n_prompt=len(request.encoded.tokens), params=request.params, steps=steps,
            queries=queries, keys=keys, values=values, admitted_s=run.admitted_s or 0.0,
            finish_reason=run.finish_reason, origin="live", device=str(self.loaded.device), machine=machine,
            versions=versions, created=run.created,
        )  # fmt: skip

    def _vectors(self, run: Run) -> tuple[Any, Any, Any]:
        """Queries, keys and values of the first traced positions. On a CPU, keys and values are the cache itself."""
        progress = run._progress
        if not progress.queries or progress.cache is None:
            return _no_vectors(self.loaded)
        queries = np.concatenate(progress.queries, axis=2)
        n_traced = min(queries.shape[2], len(progress.cache))
        keys, values = (
            tensor[:, :, :n_traced].float().cpu().numpy()
            for tensor in (progress.cache.keys, progress.cache.values)
        )
        return queries[:, :, :n_traced], keys, values


def _step_back() -> None:
    """Let everything else go before this thread, and before the helper threads that torch makes for it.

    The model uses every core. Where a page of another session, or the browser on the same laptop, needs one for a
    moment, it should not wait; when nobody does, the model is as fast as before. Only Linux ranks single threads.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):  # a sandbox that forbids it loses courtesy, not the model
            os.setpriority(os.PRIO_PROCESS, thread, max(10, os.getpriority(os.PRIO_PROCESS, thread)))


def _cache_of(run: Run) -> KVCache:
    assert run._progress.cache is not None
    return run._progress.cache


def _make_step(run: Run, record: SpanRecord, token_id: int | None, u: float | None) -> Step:
    assert record.layer_starts_s is not None
    assert record.residual is not None
    already_answering = bool(run._steps) and run._steps[-1].is_choice
    one_after_a_fork = run.request.prefix is not None and len(record.token_ids) == 1
    phase: Phase = "decode" if already_answering or one_after_a_fork else "prefill"
    return Step(
        index=len(run._steps), phase=phase, input_ids=record.token_ids, n_cached_before=record.first_position,
        token_id=token_id, u=u, started_s=record.started_s - run.submitted_at,
        ended_s=record.ended_s - run.submitted_at, batch_size=record.batch_size, logits=record.logits[-1].copy(),
        layer_starts_s=record.layer_starts_s - run.submitted_at, residual=record.residual.copy(),
    )  # fmt: skip


def _no_vectors(loaded: LoadedModel) -> tuple[Any, Any, Any]:
    spec = loaded.spec
    queries = np.zeros((spec.n_layers, spec.n_heads, 0, spec.head_dim), dtype=np.float32)
    keys = np.zeros((spec.n_layers, spec.n_kv_heads, 0, spec.head_dim), dtype=np.float32)
    return queries, keys, keys


def _device_name(loaded: LoadedModel) -> str:
    if loaded.device.type == "cuda":
        return torch.cuda.get_device_name(loaded.device)
    return processor_name()


def _as_explained(error: Exception) -> ExplainerError:
    """Any failure as one sentence with its remedy."""
    if isinstance(error, ExplainerError):
        return error
    text = str(error).lower()
    if isinstance(error, MemoryError) or "out of memory" in text or "not enough memory" in text:
        return OutOfMemoryError()
    return RunFailedError(reason=f"{type(error).__name__}: {error}"[:300])
