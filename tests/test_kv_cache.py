"""The cache holds exactly what was appended, in exactly the bytes of the formula."""

from __future__ import annotations

import pytest
import torch

from core.kv_cache import KVCache
from core.spec import ModelSpec

SPEC = ModelSpec("tiny", "llama", 3, 4, 2, 8, 32, 64, 100, 64)


def fill(cache: KVCache, n_tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(3, 2, n_tokens, 8, generator=generator) for _ in range(2))
    for layer in range(3):
        cache.append(layer, keys[layer], values[layer])
    return keys, values


def test_appended_in_pieces_equals_appended_at_once() -> None:
    whole, pieces = KVCache(SPEC), KVCache(SPEC)
    keys, values = fill(whole, 150)
    for start, stop in [(0, 7), (7, 8), (8, 100), (100, 150)]:
        for layer in range(3):
            pieces.append(layer, keys[layer, :, start:stop], values[layer, :, start:stop])
    assert torch.equal(pieces.keys, whole.keys)
    assert torch.equal(pieces.values, values)
    assert len(pieces) == 150


def test_nbytes_equals_the_formula() -> None:
    cache = KVCache(SPEC)
    assert cache.nbytes == 0
    fill(cache, 33)
    assert cache.nbytes == 2 * 3 * 2 * 8 * 4 * 33 == 33 * SPEC.kv_bytes_per_token


def test_append_returns_the_whole_layer_and_the_length_changes_with_the_last_layer() -> None:
    cache = KVCache(SPEC)
    fill(cache, 5)
    new = torch.ones(2, 1, 8)
    for layer in range(3):
        assert len(cache) == 5
        keys, _ = cache.append(layer, new, new)
        assert keys.shape == (2, 6, 8)
        assert torch.equal(keys[:, 5:], new)
    assert len(cache) == 6


def test_an_extension_counts_only_when_it_is_committed() -> None:
    """What a pass writes for all layers at once is what `append` writes layer by layer."""
    by_layer, at_once = KVCache(SPEC), KVCache(SPEC)
    for n_new, seed in ((5, 0), (1, 1), (70, 2)):
        keys, values = fill(by_layer, n_new, seed)
        room = at_once.extension(n_new)
        for layer in range(3):
            room.new_keys[layer].copy_(keys[layer])
            room.new_values[layer].copy_(values[layer])
            assert torch.equal(room.keys[layer][0], by_layer.keys[layer])
            assert torch.equal(room.values[layer][0], by_layer.values[layer])
        assert len(at_once) == len(by_layer) - n_new
        at_once.commit(n_new)
    assert torch.equal(at_once.keys, by_layer.keys)
    assert torch.equal(at_once.values, by_layer.values)


def test_growing_token_by_token_copies_rarely() -> None:
    cache, rooms = KVCache(SPEC), set()
    for _ in range(300):
        fill(cache, 1)
        rooms.add(cache.reserved_nbytes)
    assert len(rooms) <= 4  # 64, 128, 256, 512 positions


def test_reserve_avoids_all_copies() -> None:
    cache = KVCache(SPEC, capacity=300)
    before = cache.reserved_nbytes
    fill(cache, 300)
    assert cache.reserved_nbytes == before == 300 * SPEC.kv_bytes_per_token


def test_truncate_and_refill() -> None:
    cache = KVCache(SPEC)
    keys, _ = fill(cache, 10)
    cache.truncate(4)
    more, _ = fill(cache, 2, seed=1)
    assert torch.equal(cache.keys, torch.cat([keys[:, :, :4], more], dim=2))
    for wrong in (-1, 7):
        with pytest.raises(ValueError, match="cannot truncate"):
            cache.truncate(wrong)


def test_a_fork_is_independent() -> None:
    cache = KVCache(SPEC)
    keys, _ = fill(cache, 10)
    fork = cache.fork(6)
    fill(fork, 3, seed=1)
    fill(cache, 1, seed=2)
    assert len(fork) == 9
    assert len(cache) == 11
    assert torch.equal(fork.keys[:, :, :6], keys[:, :, :6])
    assert torch.equal(cache.keys[:, :, :10], keys)
    with pytest.raises(ValueError, match="cannot fork"):
        cache.fork(12)


def test_the_running_models_cache_equals_the_formula(loaded, live_trace) -> None:
    """B4: the bytes of the live tensors, not of a formula about them."""
    cache = loaded.new_cache()
    from core.forward import Span, packed_forward

    packed_forward(loaded, [Span(cache, tuple(t.id for t in live_trace.prompt_tokens))])
    tensors = cache.keys.untyped_storage().nbytes(), cache.keys.element_size() * cache.keys.numel()
    assert tensors[1] * 2 == cache.nbytes == len(cache) * 2 * 30 * 3 * 64 * 4
    assert live_trace.keys.nbytes + live_trace.values.nbytes == live_trace.kv_bytes
