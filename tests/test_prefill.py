"""Prefill: the arithmetic by hand, the two measurements on the real model, the heads' profile, the logit lens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.attention import attention_map, attention_rows
from core.errors import NotTracedError
from core.head_profile import head_profile, unmasked_share
from core.logit_lens import read_layers
from core.prefill import (
    MAX_RACE_TOKENS,
    LengthTime,
    attention_pairs,
    crossing_length,
    layer_weights,
    medians,
    mlp_matrices,
    one_by_one,
    pass_cost,
    times_by_length,
)
from core.spec import ModelSpec

SMALL = ModelSpec(
    name="small", family="llama", n_layers=3, n_heads=2, n_kv_heads=1, head_dim=4, hidden_size=8,
    intermediate_size=16, vocab_size=10, max_context=64, n_parameters=3 * (576 + 16) + 80 + 8, tied_embeddings=True,
)  # fmt: skip


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 34, 1000])
def test_attention_pairs_are_the_cells_of_the_triangle(n_tokens: int) -> None:
    assert attention_pairs(n_tokens) == n_tokens * (n_tokens + 1) // 2 == int(np.tri(n_tokens).sum())


def test_a_thousand_tokens_make_500500_pairs_in_one_pass_or_in_a_thousand() -> None:
    assert attention_pairs(1000) == 500_500
    assert sum(attention_pairs(1, n_cached=i) for i in range(1000)) == 500_500


@pytest.mark.parametrize("cut", [1, 7, 33])
def test_chunks_need_the_same_pairs(cut: int) -> None:
    assert attention_pairs(cut) + attention_pairs(34 - cut, n_cached=cut) == 34 * 35 // 2


def test_a_window_bounds_what_each_token_sees() -> None:
    assert attention_pairs(5, window=2) == 1 + 2 + 2 + 2 + 2
    assert attention_pairs(2, n_cached=10, window=4) == 8
    assert attention_pairs(5, window=99) == attention_pairs(5)


def test_the_cost_of_a_small_pass_by_hand() -> None:
    """Q and output 8×8 each, K and V 8×4 each, three matrices of 8×16: 64+64+32+32+384 = 576 weights a layer."""
    assert layer_weights(SMALL) == 576
    cost = pass_cost(SMALL, n_tokens=3)
    assert cost.linear == 2 * 576 * 3 * 3  # 2 FLOPs a weight, 3 layers, 3 tokens
    assert cost.attention == 6 * 2 * 3 * (
        2 * 4 + 2 * 4
    )  # 6 pairs, 2 heads, 3 layers, a score and a weighted sum of 4
    assert cost.vocabulary == 2 * 10 * 8
    assert cost.flops == 10_368 + 576 + 160
    assert cost.weight_bytes == SMALL.n_parameters * 4
    assert cost.cache_bytes == 3 * (2 * 3 * 1 * 4 * 4)


def test_twice_the_tokens_are_twice_the_linear_and_almost_four_times_the_attention() -> None:
    one, two = pass_cost(SMALL, 500), pass_cost(SMALL, 1000)
    assert two.linear == 2 * one.linear
    assert two.attention / one.attention == pytest.approx(4, rel=0.002)


def test_an_embedding_of_its_own_is_read_by_rows() -> None:
    untied = replace(SMALL, tied_embeddings=False, n_parameters=SMALL.n_parameters + 80)
    assert pass_cost(untied, 1).weight_bytes == (SMALL.n_parameters + 8) * 4


def test_the_default_model_counts_its_own_weights(loaded) -> None:
    spec = loaded.spec
    counted = sum(p.numel() for p in loaded.layers[0].parameters() if p.dim() == 2)
    assert layer_weights(spec) == counted
    assert mlp_matrices(spec) == 3
    assert crossing_length(spec) == 6143
    at, beyond = pass_cost(spec, 6143), pass_cost(spec, 6144)
    assert at.attention <= at.linear
    assert beyond.attention > beyond.linear


def test_gpt2_has_an_mlp_of_two_matrices() -> None:
    gpt2 = ModelSpec(
        "gpt2", "gpt2", 12, 12, 12, 64, 768, 3072, 50257, 1024, 124_439_808, tied_embeddings=True
    )
    assert mlp_matrices(gpt2) == 2


# ---- measurements ----------------------------------------------------------------------------------------------------


def test_one_by_one_gives_the_same_logits_and_more_passes(scheduler, recorded) -> None:
    ids = [token.id for token in recorded.prompt_tokens]
    races = scheduler.run_job("test-race", lambda loaded: one_by_one(loaded, ids)).wait(timeout=120)
    assert [race.n_fed for race in races] == list(range(len(ids) + 1))
    last = races[-1]
    assert last.max_difference is not None
    assert last.max_difference < 1e-3
    assert last.same_choice is True
    assert last.ratio > 2
    assert all(race.max_difference is None for race in races[:-1])


def test_one_token_and_too_many(loaded) -> None:
    *_, last = one_by_one(loaded, [1])
    assert (last.n_tokens, last.n_fed) == (1, 1)
    assert last.max_difference == 0.0
    assert next(one_by_one(loaded, [5] * 1024)).n_tokens == MAX_RACE_TOKENS


def test_times_by_length(scheduler) -> None:
    job = scheduler.run_job(
        "test-lengths", lambda loaded: times_by_length(loaded, [1, 2, 3], [4, 64], repeats=2)
    )
    times = job.wait(timeout=120)
    assert [t.n_tokens for t in times] == [4, 4, 64, 64]
    four, sixty_four = medians(times)
    assert 0 < four.seconds < sixty_four.seconds


def test_medians() -> None:
    times = [LengthTime(8, 3.0), LengthTime(4, 1.0), LengthTime(8, 1.0), LengthTime(8, 2.0)]
    assert medians(times) == (LengthTime(4, 1.0), LengthTime(8, 2.0))


# ---- heads -----------------------------------------------------------------------------------------------------------


def test_the_profile_is_the_mean_of_the_maps(recorded) -> None:
    profile = head_profile(recorded)
    assert profile.n_rows == recorded.n_traced - 1
    for layer, head in [(0, 0), (16, 0), (29, 8)]:
        one = attention_map(recorded, layer, head)
        assert profile.first[layer, head] == pytest.approx(one[1:, 0].mean(), abs=1e-6)
        assert profile.previous[layer, head] == pytest.approx(np.diagonal(one, -1).mean(), abs=1e-6)
        assert profile.itself[layer, head] == pytest.approx(np.diagonal(one)[1:].mean(), abs=1e-6)


def test_the_first_token_is_a_sink_in_the_recorded_run(recorded) -> None:
    profile = head_profile(recorded)
    assert profile.first.mean() > 5 * profile.even
    layer, head = profile.strongest(profile.first)
    assert attention_rows(recorded, layer, recorded.n_traced - 1)[head, 0] > 0.99


def test_a_single_token_looks_at_itself_only(recorded) -> None:
    alone = replace(recorded.until(1), queries=recorded.queries[:, :, :1], keys=recorded.keys[:, :, :1])
    profile = head_profile(alone)
    assert np.allclose(profile.first, 1)
    assert profile.even == 1
    assert unmasked_share(alone) == 0


def test_without_the_mask_attention_would_go_to_later_tokens(recorded) -> None:
    assert 0.2 < unmasked_share(recorded) < 0.8
    assert unmasked_share(recorded, 1) == 0


def test_nothing_traced_is_said_so(recorded) -> None:
    with pytest.raises(NotTracedError):
        unmasked_share(replace(recorded, queries=recorded.queries[:, :, :0], keys=recorded.keys[:, :, :0]))


# ---- the logit lens --------------------------------------------------------------------------------------------------


def test_the_last_layer_of_the_lens_is_the_pass_itself(loaded, live_trace) -> None:
    for step in live_trace.steps[:3]:
        lens = read_layers(loaded, step)
        assert lens.last_difference < 1e-3
        assert lens.answer_id == step.token_id  # the run was greedy
        last = lens.answers[-1]
        assert last.rank == 1
        assert last.top_ids[0] == step.token_id
        assert last.p == pytest.approx(last.top_p[0])


def test_a_recorded_pass_is_read_within_the_precision_of_its_file(loaded, recorded) -> None:
    lens = read_layers(loaded, recorded.steps[0], n_top=3)
    assert lens.last_difference < 0.05
    assert len(lens.answers) == recorded.spec.n_layers + 1
    assert 0 < lens.first_layer <= lens.settled_layer <= recorded.spec.n_layers
    assert all(len(answer.top_ids) == 3 for answer in lens.answers)
    assert all(answer.rank == 1 for answer in lens.answers[lens.settled_layer :])
