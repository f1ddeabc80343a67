"""What the roofline page shows: the machine's limits and passes, named accelerators, the model's facts for the lab.

A machine is measured once: the result is kept in the user's cache folder under the machine's and the model's name, and
every session reads it there. Until then, the recorded machine is shown.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import roofline
from core.errors import TraceFileError
from core.machine import processor_name
from core.model_cache import user_cache_folder
from core.prefill import layer_weights
from core.roofline import MachineLimits, PassPoint
from pages.views import settings as settings_module
from pages.views.cache import RUNS
from pages.views.jobs import Task

if TYPE_CHECKING:
    from core.model import LoadedModel
    from core.spec import ModelSpec
    from pages.views.frame import Frame
    from pages.views.settings import Settings

DATA = Path(__file__).resolve().parents[2] / "assets" / "data" / "accelerators.json"
RECORDED = RUNS / "machine.roofline.json"
WEIGHTS = {
    "float32": (4.0, 4),
    "bfloat16": (2.0, 2),
    "int8": (1.0, 2),
    "int4": (0.5, 2),
}  # per weight, per cached value
CARDS, LINK_US = (1, 2, 4, 8), (1, 5, 10, 50)
MAX_BATCH, MAX_CONTEXT = 512, 8192
Measurement = tuple[MachineLimits, tuple[PassPoint, ...]]


@functools.lru_cache(maxsize=1)
def accelerators() -> tuple[dict[str, Any], ...]:
    """Named accelerators. The text key `source.<id>` says where their figures come from."""
    return tuple(json.loads(DATA.read_text(encoding="utf-8")))


def declare() -> None:
    """The lab's settings and those of the two-cards question, in the URL."""
    devices = ("here", *(a["id"] for a in accelerators()))
    settings_module.declare("rf_device", "here", str, settings_module.one_of(*devices))
    settings_module.declare("rf_weights", "float32", str, settings_module.one_of(*WEIGHTS))
    settings_module.declare("rf_batch", 1, int, settings_module.between(1, MAX_BATCH))
    settings_module.declare("rf_context", 64, int, settings_module.between(0, MAX_CONTEXT))
    linked = [a["id"] for a in accelerators() if a["link_gb_s"]]
    settings_module.declare("rf_card", "h100", str, settings_module.one_of(*linked))
    settings_module.declare("rf_hop", 5, int, lambda us: us in LINK_US)


def keep(settings: Settings, values: dict[str, Any]) -> None:
    """Store what the lab says; what is not allowed stays as it was."""
    for name in ("device", "weights", "batch", "context"):
        if name in values:
            settings.set(f"rf_{name}", values[name])
    settings_module.write_url(settings)


# ---- the measurement -------------------------------------------------------------------------------------------------


def file_of(loaded: LoadedModel) -> Path:
    """Where this machine's measurement with this model is kept."""
    name = f"{processor_name()} {loaded.device} {loaded.spec.name} {loaded.spec.dtype}"
    folder = Path(
        os.environ.get("OTAT_MEASUREMENTS") or user_cache_folder()
    )  # tests must not overwrite one's own
    return folder / f"roofline-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


@functools.lru_cache(maxsize=4)
def _read(path: Path, mtime_ns: int) -> Measurement:
    try:
        return roofline.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceFileError(path=str(path), reason="it is damaged") from error


def shown(loaded: LoadedModel | None) -> tuple[Measurement, bool]:
    """The measurement to show, and whether it is of this machine."""
    own = file_of(loaded) if loaded is not None else None
    if own is not None and own.exists():
        try:
            return _read(own, own.stat().st_mtime_ns), True
        except TraceFileError:
            own.unlink(missing_ok=True)  # it can be measured again
    return _read(RECORDED, RECORDED.stat().st_mtime_ns if RECORDED.exists() else 0), False


def store(loaded: LoadedModel, results: tuple[Any, ...]) -> bool:
    """Keep a measurement that is complete. True if it is new."""
    points = [r for r in results if isinstance(r, PassPoint)]
    limits = [r for r in results if isinstance(r, MachineLimits)]
    if len(points) < len(roofline.PREFILL_LENGTHS) + len(roofline.DECODE_BATCHES):
        return False
    text, path = json.dumps(roofline.to_json(limits[-1], points)), file_of(loaded)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
    return True


def task(loaded: LoadedModel | None) -> Task:
    """The measurement: limits and passes in turns."""
    n_points = len(roofline.PREFILL_LENGTHS) + len(roofline.DECODE_BATCHES)
    about = str(file_of(loaded)) if loaded is not None else ""
    ids = range(100, 400)  # any ordinary tokens: what they say does not change what a pass costs
    return Task(
        "machine",
        about,
        lambda model: roofline.measure_roofline(model, ids, processor_name()),
        2 * n_points + 1,
    )


# ---- the lab ---------------------------------------------------------------------------------------------------------


def model_facts(spec: ModelSpec) -> dict[str, int]:
    """What the lab needs to compute a pass: see core.prefill.pass_cost."""
    return {
        "linear": 2 * spec.n_layers * layer_weights(spec),
        "pair": 4 * spec.n_heads * spec.head_dim * spec.n_layers,
        "vocabulary": 2 * spec.vocab_size * spec.hidden_size,
        "weights": spec.n_parameters - (0 if spec.tied_embeddings else spec.vocab_size * spec.hidden_size),
        "values": 2 * spec.n_layers * spec.n_kv_heads * spec.head_dim,
    }


def devices(frame: Frame, limits: MachineLimits, is_own: bool) -> list[dict[str, Any]]:
    """This machine first, then the named accelerators. Bytes and FLOPs per second."""
    name = frame.t("lab.here" if is_own else "lab.recorded", machine=limits.machine)
    here = {
        "id": "here",
        "name": name,
        "read": limits.read_bytes_per_s,
        "flops": limits.flops_per_s,
        "source": name,
    }
    others = [
        {
            "id": a["id"],
            "name": a["name"],
            "read": a["read_gb_s"] * 1e9,
            "flops": a["tflops"] * 1e12,
            "source": frame.t(f"source.{a['id']}"),
        }
        for a in accelerators()
    ]
    return [here, *others]


def component_data(frame: Frame, measurement: Measurement, is_own: bool) -> dict[str, Any]:
    """The payload of the component `roofline_lab` (see its main.js)."""
    limits, points = measurement
    names = {w: frame.t(f"precision.name_{w}") for w in WEIGHTS}
    kinds = {kind: frame.t(f"kind.{kind}") for kind in ("measured", "computed")}
    return {
        "devices": devices(frame, limits, is_own),
        "points": roofline.to_json(limits, points)["points"],
        "model": model_facts(frame.trace.spec),
        "weights": [{"id": w, "name": names[w], "bytes": b, "cache": c} for w, (b, c) in WEIGHTS.items()],
        "controls": {
            name: frame.settings.get(f"rf_{name}") for name in ("device", "weights", "batch", "context")
        },
        "lang": frame.lang,
        "text": frame.t.group("lab") | kinds,
    }
