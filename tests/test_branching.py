"""Branches grown from a copy of the cache say what the model says when it reads everything from the start."""

from __future__ import annotations

import numpy as np
import pytest

from core.branching import branch_request, crossroads, passes_before, reading_request
from core.sampling import SamplingParams, softmax
from core.scheduler import Request


@pytest.fixture(scope="module")
def base(loaded, scheduler):
    run = scheduler.submit(Request.from_text(loaded, "What is gravity?", SamplingParams(max_tokens=12)))
    return run, run.result(timeout=120)


def from_scratch(scheduler, tokens, n: int, **params: object):
    """The same tokens as one long prompt, nothing shared."""
    request = reading_request(tokens)
    whole = Request(request.encoded, SamplingParams(max_tokens=n, **params))  # type: ignore[arg-type]
    return scheduler.submit(whole).result(timeout=120)


@pytest.mark.parametrize("choice", [0, 1, 5, 11])
def test_a_branch_equals_the_same_text_read_from_the_start(loaded, scheduler, base, choice: int) -> None:
    run, trace = base
    before = trace.tokens[: trace.n_prompt + choice]
    second = crossroads(trace.choice_steps[choice].logits, trace.choice_steps[choice].token_id).candidates[1][
        0
    ]
    request = branch_request(loaded, run.cache, before, second, SamplingParams(max_tokens=8), choice=choice)
    branch = scheduler.submit(request).result(timeout=120)
    whole = from_scratch(scheduler, branch.prompt_tokens, 8)
    assert [token.id for token in branch.answer_tokens] == [token.id for token in whole.answer_tokens]
    assert branch.prompt_tokens[-1].id == second
    for ours, theirs in zip(branch.steps, whole.steps, strict=True):
        np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-3)


def test_a_branch_computes_only_the_new_token(loaded, scheduler, base) -> None:
    run, trace = base
    n_shared = trace.n_prompt + 5
    request = branch_request(
        loaded, run.cache, trace.tokens[:n_shared], 260, SamplingParams(max_tokens=3), choice=5
    )
    branch = scheduler.submit(request).result(timeout=120)
    assert [step.n_input for step in branch.steps] == [1] * len(branch.steps)
    assert branch.steps[0].n_cached_before == n_shared
    assert (
        passes_before(trace.steps, n_shared) == 6
    )  # the prefill, and the passes that read five answer tokens
    assert passes_before(trace.steps, trace.n_prompt) == 1
    assert passes_before(trace.steps, trace.n_prompt - 1) == 0


def test_forcing_what_was_chosen_changes_nothing(loaded, scheduler, base) -> None:
    """Also with dice: the branch throws the ones that the original threw."""
    params = SamplingParams(temperature=0.9, seed=7, max_tokens=10)
    run = scheduler.submit(Request.from_text(loaded, "Tell me a story.", params))
    trace = run.result(timeout=120)
    rest = SamplingParams(temperature=0.9, seed=7, max_tokens=6)
    token = trace.answer_tokens[3].id
    request = branch_request(loaded, run.cache, trace.tokens[: trace.n_prompt + 3], token, rest, choice=3)
    branch = scheduler.submit(request).result(timeout=120)
    assert [t.id for t in branch.answer_tokens] == [t.id for t in trace.answer_tokens[4:10]]


def test_a_recorded_run_is_read_once_and_then_forked(loaded, scheduler, recorded) -> None:
    tokens = recorded.tokens[: recorded.n_cached]
    reading = scheduler.submit(reading_request(tokens))
    reading.result(timeout=120)
    assert len(reading.cache) == recorded.n_cached
    assert len(reading.steps) == 1
    n_shared = recorded.n_prompt + 4
    token = recorded.answer_tokens[4].id
    params = SamplingParams(max_tokens=6)
    request = branch_request(loaded, reading.cache, recorded.tokens[:n_shared], token, params, choice=4)
    branch = scheduler.submit(request).result(timeout=120)
    assert [t.id for t in branch.answer_tokens] == [t.id for t in recorded.answer_tokens[5:11]]


def test_a_cache_that_is_too_short_is_refused(loaded, base) -> None:
    run, trace = base
    with pytest.raises(ValueError, match="fork"):
        branch_request(loaded, run.cache, trace.tokens, 260, SamplingParams(), choice=12)


def test_crossroads_by_hand() -> None:
    found = crossroads(np.log([0.25, 0.5, 0.125, 0.125]), 2, n_candidates=3)
    assert found.token_id == 2
    assert found.probability == pytest.approx(0.125)
    assert found.bits == pytest.approx(1.75)
    assert [i for i, _ in found.candidates] == [1, 0, 2]  # of equals the lower id first
    assert dict(found.candidates)[1] == pytest.approx(softmax(np.log([0.25, 0.5, 0.125, 0.125]))[1])
