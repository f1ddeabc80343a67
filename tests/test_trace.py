"""A recorded run is one file that loads quickly, loses nothing that is shown, and refuses what is not one."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from core.errors import TraceFileError
from core.scheduler import Request, Scheduler
from core.trace import Trace
from tests.conftest import ROOT

RUNS = sorted((ROOT / "assets" / "runs").glob("*.otat"))


@pytest.fixture(scope="module")
def saved(live_trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.otat"
    live_trace.save(path)
    return path


def test_round_trip(live_trace: Trace, saved: Path) -> None:
    again = Trace.load(saved)
    assert again.tokens == live_trace.tokens
    assert again.params == live_trace.params
    assert again.spec == live_trace.spec
    assert again.origin == "recorded"
    assert again.answer_text == live_trace.answer_text
    for name in (
        "prompt",
        "system",
        "chat",
        "from_template",
        "n_prompt",
        "admitted_s",
        "finish_reason",
        "versions",
    ):
        assert getattr(again, name) == getattr(live_trace, name)
    for name in ("queries", "keys", "values"):
        np.testing.assert_allclose(getattr(again, name), getattr(live_trace, name), rtol=1e-3, atol=1e-3)
    for mine, theirs in zip(again.steps, live_trace.steps, strict=True):
        assert (mine.started_s, mine.ended_s, mine.token_id) == (
            theirs.started_s,
            theirs.ended_s,
            theirs.token_id,
        )
        np.testing.assert_allclose(mine.logits, theirs.logits, atol=1e-3)
        np.testing.assert_array_equal(mine.layer_starts_s, theirs.layer_starts_s)
        np.testing.assert_allclose(mine.residual, theirs.residual, rtol=1e-3, atol=1e-3)
        assert int(mine.logits.argmax()) == theirs.token_id  # greedy


def test_foreign_and_damaged_files_are_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    other_archive = tmp_path / "other.zip"
    with zipfile.ZipFile(other_archive, "w") as archive:
        archive.writestr("hello.txt", "hello")
    cases = {
        "empty": b"",
        "text": b"What is gravity?",
        "half": data[: len(data) // 2],
        "flipped": data[:5000] + bytes([data[5000] ^ 255]) + data[5001:],
        "archive": other_archive.read_bytes(),
    }
    for name, content in cases.items():
        path = tmp_path / f"{name}.otat"
        path.write_bytes(content)
        with pytest.raises(TraceFileError, match="make record"):
            Trace.load(path)
    with pytest.raises(TraceFileError, match="No such file"):
        Trace.load(tmp_path / "absent.otat")


def test_a_file_of_another_version_says_so(saved: Path, tmp_path: Path) -> None:
    import io
    import json

    with np.load(saved) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(bytes(arrays["header"]))
    header["version"] = 99
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path = tmp_path / "future.otat"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(TraceFileError, match="version 99"):
        Trace.load(path)


def test_until_is_the_run_as_it_was(recorded: Trace) -> None:
    for n in (0, 1, 5, len(recorded.steps)):
        early = recorded.until(n)
        assert early.n_generated == n
        assert early.n_cached == early.n_traced == (recorded.n_prompt + n - 1 if n else 0)
    assert recorded.until(len(recorded.steps)).answer_text == recorded.answer_text


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_recording_loads_quickly_without_torch(path: Path) -> None:
    """Best of five in one process of its own: the first page waits for this.

    Counted in the processor's time, so that a busy machine does not make it fail.
    """
    import subprocess
    import sys

    code = (
        "import sys, time; from core.trace import Trace; times = []\n"
        "for _ in range(5):\n"
        "    t = time.process_time(); Trace.load(sys.argv[1]); times.append(time.process_time() - t)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules; print(min(times))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert out.returncode == 0, out.stderr
    assert float(out.stdout) < 0.1


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_recording_is_what_the_model_does_now(path: Path, scheduler: Scheduler) -> None:
    """Run again with the recorded settings: the same ids; logits, keys and residuals within the file's precision."""
    old = Trace.load(path)
    request = Request.from_text(
        scheduler.loaded, old.prompt, old.params, chat=old.chat, system=old.system or None
    )
    new = scheduler.submit(request).result(240)
    assert [t.id for t in new.tokens] == [t.id for t in old.tokens]
    assert new.from_template == old.from_template
    assert new.spec == old.spec
    for before, now in zip(old.steps, new.steps, strict=True):
        np.testing.assert_allclose(before.logits, now.logits, atol=5e-3)
    np.testing.assert_allclose(old.keys, new.keys, rtol=2e-3, atol=2e-2)


def test_recordings_stay_small() -> None:
    assert RUNS
    assert sum(path.stat().st_size for path in RUNS) < 8e6
