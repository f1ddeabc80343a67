"""What machine this is: a measured time means little without it.

The same model gives the same tokens everywhere, but not at the same speed. Every recorded run therefore carries the
name of the processor (or the graphics card) and the versions of the libraries that computed it.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_LIBRARIES = ("torch", "transformers", "numpy")


def processor_name() -> str:
    """The processor's name as the system gives it, with the number of cores that this program may use."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        name = next(named, name)
    return f"{name} ({usable_cores()} cores)"


def usable_cores() -> int:
    """Cores that this process is allowed to run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that compute."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in _LIBRARIES}}
