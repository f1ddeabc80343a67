"""One pass for everything: whatever way tokens are packed, the numbers are those of transformers.

The oracle is transformers' own eager attention on the same weights, and `generate()` for whole answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.errors import UnsupportedModelError
from core.forward import Span, packed_forward
from core.model import LoadedModel, wrap
from tests.tiny import FAMILIES, REFUSED, NoTokenizer, tiny_model

TOLERANCE = 1e-4


@pytest.fixture(params=list(FAMILIES))
def tiny(request: pytest.FixtureRequest) -> tuple[LoadedModel, Any]:
    """A traced model and an untouched twin with the same weights."""
    settings = FAMILIES[request.param]
    return wrap(tiny_model(request.param, settings), NoTokenizer()), tiny_model(request.param, settings)


def eager(model: Any, ids: list[int] | tuple[int, ...], **options: Any) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([list(ids)]), use_cache=False, **options)


def ids_of(n: int, seed: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(1, 60, n))


def test_whole_chunks_and_single_tokens_equal_eager(tiny: tuple[LoadedModel, Any]) -> None:
    loaded, twin = tiny
    ids = ids_of(13, 1)
    expected = eager(twin, ids).logits[0].numpy()
    for sizes in ([13], [1] * 13, [5, 5, 3], [12, 1], [1, 12]):
        cache, rows, start = loaded.new_cache(), [], 0
        for size in sizes:
            (record,) = packed_forward(loaded, [Span(cache, ids[start : start + size], all_logits=True)])
            assert record.first_position == start
            rows.append(record.logits)
            start += size
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=TOLERANCE)


def test_a_mixed_batch_equals_each_sequence_alone(tiny: tuple[LoadedModel, Any]) -> None:
    """Prefill, chunk and decode in one pass; sequences join and leave."""
    loaded, twin = tiny
    a, b, c = ids_of(9, 2), ids_of(6, 3), ids_of(4, 4)
    caches = [loaded.new_cache() for _ in range(3)]
    packed_forward(loaded, [Span(caches[0], a[:8]), Span(caches[1], b[:2])])
    records = packed_forward(loaded, [Span(caches[0], a[8:]), Span(caches[1], b[2:]), Span(caches[2], c)])
    for record, ids in zip(records, (a, b, c), strict=True):
        np.testing.assert_allclose(record.logits[0], eager(twin, ids).logits[0, -1].numpy(), atol=TOLERANCE)
        assert record.batch_size == 3


def test_a_rejected_draft_leaves_no_mark(tiny: tuple[LoadedModel, Any]) -> None:
    loaded, twin = tiny
    ids, cache = ids_of(8, 5), loaded.new_cache()
    packed_forward(loaded, [Span(cache, ids[:5])])
    packed_forward(loaded, [Span(cache, (3, 3, 3), all_logits=True)])
    cache.truncate(5)
    (record,) = packed_forward(loaded, [Span(cache, ids[5:])])
    np.testing.assert_allclose(record.logits[0], eager(twin, ids).logits[0, -1].numpy(), atol=TOLERANCE)


def test_the_residual_stream_is_transformers_hidden_states(tiny: tuple[LoadedModel, Any]) -> None:
    loaded, twin = tiny
    ids = ids_of(7, 6)
    (record,) = packed_forward(loaded, [Span(loaded.new_cache(), ids)])
    hidden = eager(twin, ids, output_hidden_states=True).hidden_states
    # transformers gives the last one after the final norm, so it is compared up to the layer before.
    for mine, theirs in zip(record.residual[:-1], hidden[:-1], strict=True):
        np.testing.assert_allclose(mine, theirs[0, -1].numpy(), atol=TOLERANCE)
    assert record.residual.shape == (loaded.spec.n_layers + 1, loaded.spec.hidden_size)
    assert record.layer_starts_s.shape == (loaded.spec.n_layers + 1,)
    assert (np.diff([record.started_s, *record.layer_starts_s, record.ended_s]) >= 0).all()


def test_the_residual_stream_of_decoding_together_is_that_of_each_alone(tiny: tuple[LoadedModel, Any]) -> None:
    """With one token per span every row is a last one, and no row is picked out."""
    loaded, twin = tiny
    prompts = [ids_of(n, 20 + n) for n in (3, 6)]
    caches = [loaded.new_cache() for _ in prompts]
    packed_forward(loaded, [Span(c, ids[:-1]) for c, ids in zip(caches, prompts, strict=True)])
    records = packed_forward(loaded, [Span(c, ids[-1:]) for c, ids in zip(caches, prompts, strict=True)])
    for record, ids in zip(records, prompts, strict=True):
        hidden = eager(twin, ids, output_hidden_states=True).hidden_states
        for mine, theirs in zip(record.residual[:-1], hidden[:-1], strict=True):
            np.testing.assert_allclose(mine, theirs[0, -1].numpy(), atol=TOLERANCE)


def test_what_is_recorded_and_what_is_not(tiny: tuple[LoadedModel, Any]) -> None:
    loaded, _ = tiny
    spans = [Span(loaded.new_cache(), ids_of(4, 7)), Span(loaded.new_cache(), ids_of(2, 8))]
    first, second = packed_forward(loaded, spans)
    spec = loaded.spec
    assert first.queries.shape == (spec.n_layers, spec.n_heads, 4, spec.head_dim)
    assert second.queries.shape == (spec.n_layers, spec.n_heads, 2, spec.head_dim)
    (plain,) = packed_forward(loaded, [Span(loaded.new_cache(), ids_of(4, 7))], record=False)
    assert plain.queries is None
    assert plain.residual is None
    np.testing.assert_array_equal(plain.logits[0].shape, first.logits[0].shape)


def test_a_failing_pass_leaves_the_caches_as_they_were(tiny: tuple[LoadedModel, Any]) -> None:
    loaded, twin = tiny
    ids, cache = ids_of(6, 9), loaded.new_cache()
    packed_forward(loaded, [Span(cache, ids[:4])])
    with pytest.raises(IndexError):
        packed_forward(loaded, [Span(cache, (ids[4],)), Span(loaded.new_cache(), (10_000,))])
    assert len(cache) == 4
    (record,) = packed_forward(loaded, [Span(cache, ids[4:])])
    np.testing.assert_allclose(record.logits[0], eager(twin, ids).logits[0, -1].numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("family", list(REFUSED))
def test_models_that_would_be_traced_wrongly_are_refused_by_name(family: str) -> None:
    with pytest.raises(UnsupportedModelError, match=family):
        wrap(tiny_model(family, REFUSED[family]), NoTokenizer())


# ---- the real model --------------------------------------------------------------------------------------------------


def test_attention_maps_equal_the_eager_weights(loaded: LoadedModel, live_trace) -> None:
    """All heads of several layers, ≤ 1e-5, over prompt and answer."""
    from core.attention import attention_map, attention_rows, layer_maps

    ids = [t.id for t in live_trace.tokens][: live_trace.n_traced]
    traced_attention = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    try:
        weights = eager(loaded.model, ids, output_attentions=True).attentions
    finally:
        loaded.model.set_attn_implementation(traced_attention)
    for layer in (0, 7, 15, 29):
        expected = weights[layer][0].numpy()
        np.testing.assert_allclose(layer_maps(live_trace, layer), expected, atol=1e-5)
        np.testing.assert_allclose(attention_map(live_trace, layer, 8), expected[8], atol=1e-5)
        np.testing.assert_allclose(attention_rows(live_trace, layer, 11), expected[:, 11, :12], atol=1e-5)


def test_packed_logits_of_the_real_model_equal_its_own(loaded: LoadedModel, live_trace) -> None:
    ids = tuple(t.id for t in live_trace.prompt_tokens)
    traced_attention = loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    try:
        expected = eager(loaded.model, ids).logits[0].numpy()
    finally:
        loaded.model.set_attn_implementation(traced_attention)
    (record,) = packed_forward(loaded, [Span(loaded.new_cache(), ids, all_logits=True)])
    np.testing.assert_allclose(record.logits, expected, atol=TOLERANCE)
    np.testing.assert_allclose(live_trace.steps[0].logits, expected[-1], atol=TOLERANCE)


@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "granite"])
def test_attention_maps_honour_windows_and_scales(family: str) -> None:
    """Maps recomputed from Q and K equal eager weights where a family changes the mask or the factor."""
    from dataclasses import replace

    from core.attention import layer_maps

    settings = FAMILIES[family]
    loaded, twin = wrap(tiny_model(family, settings), NoTokenizer()), tiny_model(family, settings)
    ids, cache = ids_of(11, 10), loaded.new_cache()
    (record,) = packed_forward(loaded, [Span(cache, ids)])
    trace = replace(
        _empty_trace(loaded), queries=record.queries, keys=cache.keys.numpy(), values=cache.values.numpy()
    )
    weights = eager(twin, ids, output_attentions=True).attentions
    for layer in range(loaded.spec.n_layers):
        np.testing.assert_allclose(layer_maps(trace, layer), weights[layer][0].numpy(), atol=1e-5)


def _empty_trace(loaded: LoadedModel) -> Any:
    from core.sampling import SamplingParams
    from core.trace import Trace

    nothing = np.zeros((1, 1, 0, 1), dtype=np.float32)
    return Trace(
        loaded.spec, "", "", False, (), (), 0, SamplingParams(), (), nothing, nothing, nothing, 0.0, "length", "live",
        "cpu", "", {}, "",
    )  # fmt: skip
