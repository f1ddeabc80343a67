"""Runs the rows that were asked for, in order, and prints the table. See the package's docstring."""

from __future__ import annotations

import signal
import sys
import time
import traceback

from tests.bench import app, engine, table
from tests.conftest import ROOT

RESOURCES = {"engine": engine.Engine, "app": app.App}


def main(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and browsers are ended too
    chosen = [r for r in table.ROWS if not words or any(word.lower() in r.name.lower() for word in words)]
    load = table.load_now()
    lines: list[table.Line] = []
    failed = False
    for needs in RESOURCES:
        rows = [r for r in chosen if r.needs == needs]
        if rows:
            with RESOURCES[needs]() as resource:
                for one in rows:
                    failed |= not _run(one, resource, lines)
    text = table.markdown(lines, table.machine_state(load))
    print(f"\n{text}\n")
    if not words:
        table.write_into(ROOT / "README.md", text)
        print("Written into README.md.")
    return int(failed)


def _run(one: table.Row, resource: object, lines: list[table.Line]) -> bool:
    started = time.perf_counter()
    print(f"{one.name} …", flush=True)
    try:
        lines += one.run(resource)
    except Exception as error:  # one row that fails must not cost the others, which took minutes
        traceback.print_exc()
        reason = str(error).partition("\n")[0].replace("|", "/")[:120]
        lines.append(table.Line(one.name, "—", "", None, f"not measured: {reason}"))
        return False
    print(f"    {time.perf_counter() - started:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
