"""The roofline's arithmetic by hand, its measurements against others taken beside them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from core.machine import processor_name
from core.model import LoadedModel
from core.prefill import pass_cost
from core.roofline import (
    DECODE_BATCHES,
    PREFILL_LENGTHS,
    MachineLimits,
    PassPoint,
    PrecisionResult,
    batch_cost,
    compare_precisions,
    from_json,
    measure_roofline,
    precisions,
    read_bandwidth,
    tensor_parallel_token_s,
    to_json,
)
from core.scheduler import Scheduler
from core.spec import ModelSpec

LIMITS = MachineLimits("test", "cpu", "float32", read_bytes_per_s=10e9, flops_per_s=100e9)


def test_the_roof() -> None:
    assert LIMITS.ridge == 10
    assert LIMITS.roof(1) == 10e9
    assert LIMITS.roof(10) == LIMITS.roof(1000) == 100e9


def test_a_point_under_the_roof() -> None:
    point = PassPoint("decode", 1, 1, 0, seconds=0.1, flops=250_000_000, bytes=500_000_000)
    assert point.intensity == 0.5
    assert point.mbu(LIMITS) == pytest.approx(0.5)
    assert point.mfu(LIMITS) == pytest.approx(0.025)
    assert point.is_memory_bound(LIMITS)
    assert point.tokens_per_s == 10


def test_decode_is_not_always_memory_bound(loaded: LoadedModel) -> None:
    """C1: with enough sequences the same pass is limited by arithmetic; computed, with real facts of the model."""
    bound = {n: batch_intensity(loaded.spec, n) < LIMITS.ridge for n in (1, 8, 30, 64)}
    assert bound == {1: True, 8: True, 30: False, 64: False}
    assert batch_intensity(loaded.spec, 1) == pytest.approx(0.5, abs=0.02)  # two operations per 4-byte weight


def batch_intensity(spec: ModelSpec, n_sequences: int) -> float:
    flops, moved = batch_cost(spec, n_sequences, 1, 64)
    return flops / moved


def test_a_batch_reads_the_weights_once(loaded: LoadedModel) -> None:
    one, eight = batch_cost(loaded.spec, 1, 1, 64), batch_cost(loaded.spec, 8, 1, 64)
    assert eight[0] == 8 * one[0]
    caches = pass_cost(loaded.spec, 1, 64).cache_bytes
    assert eight[1] - one[1] == 7 * caches == 7 * 65 * loaded.spec.kv_bytes_per_token


def test_two_cards_do_not_halve_one_answer(loaded: LoadedModel) -> None:
    """C7, by hand: reading halves; 60 sums of a vector, each two hops of 10 µs and 1,152 bytes, are added."""
    spec = loaded.spec
    read = pass_cost(spec, 1).bytes / 1e12
    assert tensor_parallel_token_s(spec, 1, 1e12, 50e9, 10e-6) == pytest.approx(read)
    two = tensor_parallel_token_s(spec, 2, 1e12, 50e9, 10e-6)
    assert two == pytest.approx(read / 2 + 60 * 2 * (10e-6 + 1152 / 50e9))
    assert two > read / 2


def test_measurements_survive_a_file() -> None:
    points = (PassPoint("prefill", 1, 32, 0, 0.05, 10, 20), PassPoint("decode", 8, 1, 64, 0.07, 30, 40))
    assert from_json(to_json(LIMITS, points)) == (LIMITS, points)
    with pytest.raises((KeyError, TypeError)):
        from_json({"limits": {}, "points": []})


def test_the_measured_machine(scheduler: Scheduler) -> None:
    """Every kind of pass is measured, and no pass beats the roof by more than the noise of a shared machine."""
    job = scheduler.run_job("roofline", lambda m: measure_roofline(m, range(100, 400), processor_name()))
    results = job.wait(280)
    limits = [r for r in results if isinstance(r, MachineLimits)][-1]
    points = [r for r in results if isinstance(r, PassPoint)]
    assert [p.n_tokens for p in points if p.kind == "prefill"] == list(PREFILL_LENGTHS)
    assert [p.n_sequences for p in points if p.kind == "decode"] == list(DECODE_BATCHES)
    assert 1e8 < limits.read_bytes_per_s < 1e13
    assert all(p.flops_per_s < 3 * limits.roof(p.intensity) for p in points)
    intensities = [p.intensity for p in points if p.kind == "decode"]
    assert intensities == sorted(intensities)
    one, many = (next(p for p in points if p.kind == "decode" and p.n_sequences == n) for n in (1, 30))
    assert many.tokens_per_s > 2 * one.tokens_per_s


def test_read_bandwidth_agrees_with_numpy() -> None:
    """Within 30 % of numpy's maximum of arrays in as many threads, in turns in one run.

    The best of each counts, since anything else on the machine only makes a measurement slower. The number of rounds is
    fixed: to stop as soon as the two agree would make them agree. Not numpy's sum: its arithmetic is the limit there
    (the maximum of the same arrays is found half as fast again). Both read 1 GiB, so that no L3 helps.
    """
    arrays = [
        np.ones(2**28 // torch.get_num_threads(), dtype=np.float32) for _ in range(torch.get_num_threads())
    ]
    mine = theirs = 0.0
    for _ in range(8):
        mine = max(mine, read_bandwidth(torch.device("cpu")))
        threads = [threading.Thread(target=array.max) for array in arrays]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        theirs = max(theirs, sum(array.nbytes for array in arrays) / (time.perf_counter() - started))
    print(f"ratio {mine / theirs:.2f}")
    assert 0.7 < mine / theirs < 1.3, f"{mine / 1e9:.1f} against {theirs / 1e9:.1f} GB/s"


def test_precision_changes_bytes_and_not_the_model_in_use(scheduler: Scheduler, live_trace) -> None:
    prompt = [t.id for t in live_trace.prompt_tokens]
    before = {name: weight.data_ptr() for name, weight in scheduler.loaded.model.named_parameters()}
    job = scheduler.run_job("precision", lambda m: compare_precisions(m, prompt, 8))
    results = {r.dtype: r for r in job.wait(280) if isinstance(r, PrecisionResult)}
    assert list(results) == list(precisions("cpu"))
    full = results["float32"]
    assert full.token_ids == tuple(t.id for t in live_trace.answer_tokens)
    assert full.weight_bytes == scheduler.loaded.spec.weight_bytes
    assert results["bfloat16"].weight_bytes * 2 == full.weight_bytes
    if "int8" in results:
        assert 0.25 <= results["int8"].weight_bytes / full.weight_bytes < 0.26  # and a scale per row
    for result in results.values():
        same = result.n_same
        assert result.token_ids[:same] == full.token_ids[:same]
        assert same == 8 or result.token_ids[same] != full.token_ids[same]
    after = {name: weight.data_ptr() for name, weight in scheduler.loaded.model.named_parameters()}
    assert after == before
