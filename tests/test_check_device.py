"""The device check finds nothing wrong on a processor, and says so when something is."""

from __future__ import annotations

import pytest

from core.scheduler import Scheduler
from core.trace import Trace
from tools import check_device


def test_a_processor_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check_device, "PROMPTS", check_device.PROMPTS[:2])
    monkeypatch.setattr(check_device, "N_TOKENS", 4)
    assert check_device.main("cpu") == 0
    said = capsys.readouterr().out
    assert "all answers equal" in said
    assert "(measured)" in said


def test_a_wrong_answer_is_reported(
    monkeypatch: pytest.MonkeyPatch, scheduler: Scheduler, live_trace: Trace
) -> None:
    monkeypatch.setattr(check_device, "PROMPTS", check_device.PROMPTS[:1])
    monkeypatch.setattr(check_device, "generated", lambda loaded, prompt: ([1, 2, 3], 1.0))
    monkeypatch.setattr(check_device, "traced", lambda scheduler, prompts: ([live_trace], 1.0))
    wrong = check_device.differences(scheduler.loaded, scheduler)
    assert len(wrong) == 2
    assert "not the one of generate()" in wrong[0]
