"""The README is checked like code: its snippet runs, its tree is the real one, its numbers are those of the code."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import pytest

from core.scheduler import Scheduler
from tests.bench.table import BEGIN, END
from tests.conftest import ROOT
from tools import readme_tree

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


@pytest.mark.slow
def test_the_notebook_snippet_runs_as_it_stands() -> None:
    (snippet,) = blocks("python")
    lines = [line for line in snippet.splitlines() if line and not line.startswith(("from ", "import "))]
    assert len(lines) == 5, "the README promises five lines"
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer, *rest = done.stdout.splitlines()
    assert answer.startswith("Gravity"), answer
    assert any(line.startswith("[[1.") for line in rest), "the first token can look at itself only"
    assert "SamplingRecord" in done.stdout


def test_the_tree_is_the_real_one() -> None:
    written = README.split(readme_tree.BEGIN)[1].split(readme_tree.END)[0]
    assert written.strip().strip("`").strip() == readme_tree.tree(), "run: python tools/readme_tree.py"


def test_the_classroom_numbers_are_the_schedulers() -> None:
    defaults = inspect.signature(Scheduler).parameters
    assert f"Up to {defaults['max_num_seqs'].default} run" in README
    assert f"up to {defaults['max_waiting'].default} wait" in README


def test_the_bench_table_was_written_by_the_bench() -> None:
    table = README.split(BEGIN)[1].split(END)[0]
    assert re.search(r"commit [0-9a-f]{7,}; \d{4}-\d\d-\d\d \d\d:\d\d UTC", table), "run `make bench`"


def test_the_picture_is_there_and_small() -> None:
    for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README):
        path = ROOT / name
        assert path.is_file(), f"{name} is missing"
        assert path.stat().st_size < 500_000


def test_commands_name_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:`|^)make ([a-z]+)\b", README, flags=re.M)):
        assert re.search(rf"^{target}:", makefile, flags=re.M), f"make {target}"
