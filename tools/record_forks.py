"""Record the fork that the branching page opens on.

One question, and the five likeliest first tokens of the answer, each continued by the model. The full scores of five
runs would take megabytes; the page needs the tokens, the five candidates of each place, and what was counted. So those
are kept, as JSON, with the settings and versions. A test runs the fork again and compares. `make record` makes the
recorded run; this is called as `python -m tools.record_forks`.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from core.model import LoadedModel, load_model
from core.sampling import SamplingParams
from core.scheduler import Request, Scheduler

PATH = Path(__file__).resolve().parent.parent / "assets" / "runs" / "fork.json"
PROMPT, LENGTH = "Can I trust you?", 24  # asked so, this model can answer "No" as well as "Absolutely"


def record(loaded: LoadedModel, scheduler: Scheduler) -> dict[str, object]:
    """The fork as plain values, through the same code as the page."""
    from pages.views import forks

    params = SamplingParams(max_tokens=LENGTH)
    run = scheduler.submit(Request.from_text(loaded, PROMPT, params))
    trace = run.result(600)
    tree = forks.from_trace(trace, run)
    tree.grow(0, 0, [token_id for token_id, _ in tree.trunk.places[0].candidates], params)
    forks.finish(tree, SimpleNamespace(loaded=loaded, scheduler=scheduler))
    about = {"machine": trace.machine, "versions": trace.versions, "created": trace.created}
    return {"about": about, **forks.to_plain(tree)}


def main() -> None:
    loaded = load_model()
    scheduler = Scheduler(loaded)
    PATH.write_text(json.dumps(record(loaded, scheduler), ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{PATH.name}: {PATH.stat().st_size:,} bytes")
    scheduler.close()


if __name__ == "__main__":
    main()
