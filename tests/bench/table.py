"""The rows of the bench: how they are declared, run, printed and written into the README."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from core.machine import processor_name
from tests.conftest import ROOT

BEGIN, END = "<!-- bench: written by `make bench` -->", "<!-- bench: end -->"


@dataclass(frozen=True)
class Target:
    """A bound on a row's figure."""

    limit: float
    at_most: bool
    unit: str = "×"

    def reached(self, figure: float) -> bool:
        return figure <= self.limit if self.at_most else figure >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {_number(self.limit)} {self.unit}"


def at_least(limit: float, unit: str = "×") -> Target:
    return Target(limit, at_most=False, unit=unit)


def at_most(limit: float, unit: str = "×") -> Target:
    return Target(limit, at_most=True, unit=unit)


@dataclass(frozen=True)
class Measured:
    """What a row function returns: its ratio, and the absolute figures behind it in words.

    `judged` is what a target is compared with where that is an absolute figure rather than the ratio.
    """

    figure: float
    details: str
    judged: float | None = None


@dataclass(frozen=True)
class Line:
    """One finished line of the table."""

    name: str
    figure: str
    target: str
    reached: bool | None
    details: str


Result = Measured | Sequence[tuple[str, Measured, Target | None]]


@dataclass(frozen=True)
class Row:
    name: str
    target: Target | None
    measure: Callable[..., Result]
    needs: str

    def run(self, resource: object) -> list[Line]:
        result = self.measure(resource)
        if isinstance(result, Measured):
            return [_line(self.name, result, self.target)]
        return [_line(name, measured, target) for name, measured, target in result]


ROWS: list[Row] = []


Measure = Callable[..., Result]


def row(name: str, target: Target | None = None, *, needs: str) -> Callable[[Measure], Measure]:
    """Declare a row. `needs` names what the function is given: "engine" or "app"."""

    def declare(measure: Measure) -> Measure:
        ROWS.append(Row(name, target, measure, needs))
        return measure

    return declare


def _line(name: str, measured: Measured, target: Target | None) -> Line:
    figure = f"{_number(measured.figure)} ×"
    judged = measured.figure if measured.judged is None else measured.judged
    reached = None if target is None else target.reached(judged)
    return Line(name, figure, "" if target is None else str(target), reached, measured.details)


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(lines: Iterable[Line], state: str) -> str:
    marks = {None: "", True: "yes", False: "**no**"}
    rows = [f"| {x.name} | {x.figure} | {x.target} | {marks[x.reached]} | {x.details} |" for x in lines]
    head = ["| what | figure | target | reached | absolute figures |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([state, "", *head, *rows])


def write_into(readme: Path, table: str) -> None:
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def machine_state(load_before: float | None) -> str:
    """One paragraph: which machine, how busy it was, which versions, when."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "streamlit"))
    busy = "" if load_before is None else f", load {load_before:.1f} before the start"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{processor_name()}, {_memory_gib():.0f} GiB{busy}. "
        f"Python {platform.python_version()}, {packages}; commit {_commit()}; {when}."
    )


def load_now() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _memory_gib() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return float("nan")


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
