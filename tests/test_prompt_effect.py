"""The long-prompt measurement: what its rows say on worked passes, and one short real one through the
scheduler."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from core.errors import BusyError, InvalidSettingError, TraceFileError
from core.prompt_effect import (
    LENGTHS,
    PromptPass,
    RecordedEffect,
    effects,
    expected_slowdown,
    measure_prompt_effect,
    n_passes,
    slower_by,
)
from tests.conftest import ROOT


def passes(n_prompt: int, prefill: list[float], decode: list[float]) -> list[PromptPass]:
    return [PromptPass(n_prompt, "prefill", d, 0) for d in prefill] + [
        PromptPass(n_prompt, "decode", d, n_prompt) for d in decode
    ]


def test_rows_of_worked_passes() -> None:
    seen = passes(1000, [1.0, 0.8], [0.05, 0.06, 0.07]) + passes(10, [0.1], [0.05, 0.04, 0.5])
    short, long = effects(seen, kv_bytes_per_token=100)
    assert (short.n_prompt, short.prefill_s, short.median_itl_s, short.kv_bytes) == (10, 0.1, 0.05, 1000)
    assert (long.n_prompt, long.prefill_s, long.median_itl_s, long.n_decoded) == (
        1000,
        pytest.approx(1.8),
        0.06,
        3,
    )
    assert slower_by((short, long)) == pytest.approx((18.0, 1.2))
    assert expected_slowdown((short, long), weight_bytes=1_000_000) == pytest.approx(1.1 / 1.001)


def test_nothing_is_said_before_it_is_measured() -> None:
    assert effects([], 100) == ()
    assert effects(passes(10, [0.1], []), 100) == ()
    assert slower_by(effects(passes(10, [0.1], [0.1]), 100)) is None
    assert expected_slowdown((), 1) is None


def test_impossible_lengths_are_refused() -> None:
    for arguments in (((), 3), ((0,), 3), ((5,), 0)):
        with pytest.raises(InvalidSettingError):
            measure_prompt_effect(*arguments)


def test_a_real_measurement_takes_turns_and_can_be_seen_growing(scheduler: Any) -> None:
    job = scheduler.run_job("prompt_effect", measure_prompt_effect((8, 200), 4))
    with pytest.raises(BusyError):
        scheduler.run_job("prompt_effect", measure_prompt_effect((8,), 1))
    seen = job.wait(120)
    assert len(seen) == n_passes((8, 200), 4) == 1 + 4 + 8
    assert [p.n_prompt for p in seen if p.phase == "decode"] == [8, 200] * 4
    assert [p.n_cached for p in seen if p.phase == "decode"] == [8, 200, 9, 201, 10, 202, 11, 203]
    rows = effects(seen, scheduler.loaded.spec.kv_bytes_per_token)
    assert rows[1].prefill_s > rows[0].prefill_s
    assert rows[1].kv_bytes == 200 * 46_080


def test_it_can_be_cancelled_within_one_pass(scheduler: Any) -> None:
    job = scheduler.run_job("prompt_effect", measure_prompt_effect((64, 600), 50))
    while len(job.results) < 2:
        time.sleep(0.005)
    job.cancel()
    n = len(job.results)
    job.wait(30)
    assert job.state == "cancelled"
    assert len(job.results) <= n + 1


def test_its_budget_ends_it(scheduler: Any) -> None:
    seen = scheduler.run_job("prompt_effect", measure_prompt_effect((8, 9), 500, budget_s=0.0)).wait(60)
    assert len(seen) == 2 + 2


def test_another_run_goes_on_beside_it(scheduler: Any) -> None:
    from core.sampling import SamplingParams
    from core.scheduler import Request

    job = scheduler.run_job("prompt_effect", measure_prompt_effect((64, 300), 12))
    run = scheduler.submit(Request.from_text(scheduler.loaded, "Hello", SamplingParams(max_tokens=6)))
    assert run.result(60).n_generated >= 1
    job.cancel()
    job.wait(30)


# ---- recorded ----


def test_a_recorded_measurement_survives_its_file(tmp_path: Path) -> None:
    rows = effects(passes(1000, [1.0], [0.05]) + passes(10, [0.1], [0.05]), 100)
    made = RecordedEffect(rows, 7, "m", "machine", "2026-11-29")
    made.save(tmp_path / "effect.json")
    assert RecordedEffect.load(tmp_path / "effect.json") == made


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"rows": [{}]}', '{"rows": 3}', '{"rows": [], "other": 1}']
)
def test_a_damaged_one_is_refused_in_words(content: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(content, encoding="utf-8")
    with pytest.raises(TraceFileError, match="Record it again"):
        RecordedEffect.load(tmp_path / "bad.json")
    with pytest.raises(TraceFileError):
        RecordedEffect.load(tmp_path / "none.json")


def test_the_bundled_measurement_says_what_the_bytes_say() -> None:
    made = RecordedEffect.load(ROOT / "assets" / "runs" / "prompt_effect.json")
    assert tuple(row.n_prompt for row in made.rows) == LENGTHS
    prefill, token = slower_by(made.rows)
    expected = expected_slowdown(made.rows, made.weight_bytes)
    assert prefill > 10
    assert token == pytest.approx(expected, rel=0.1)
