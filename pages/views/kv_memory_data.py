"""What the calculator page sends to the browser, and what it takes back.

The browser computes: it gets every model as its distinct layers and their order, and recomputes all figures
while a slider moves. Python reads configurations and files, checks what comes back, and keeps it in the one
settings object, so that a copied link opens on the same model and the same figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import ExplainerError, InvalidSettingError
from core.kv_codes import layout_code, layout_from_code
from core.kv_configs import config_facts, config_from_text
from core.kv_dtypes import BLOCKS, INDEX_BLOCK, WEIGHT_BLOCKS
from core.kv_gguf import layout_from_gguf_table
from core.kv_memory import KVLayer, KVLayout
from core.spec import ModelSpec
from pages.views import settings
from pages.views.settings import Settings

DATA = Path(__file__).resolve().parents[2] / "assets" / "data"
OWN = ("manual", "custom", "running")  # models that are not presets
DTYPES = [name for name in BLOCKS if name != "fp8_ds_mla"]
MAX_TOKENS, MAX_USERS = 1_000_000_000, 1_000_000
MAX_NAME = 60


@cache
def presets() -> tuple[dict[str, Any], ...]:
    """Published configurations, each with its layout as the browser reads it."""
    entries = json.loads((DATA / "kv_presets.json").read_text(encoding="utf-8"))["presets"]
    return tuple(_preset(entry) for entry in entries)


@cache
def devices() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads((DATA / "kv_devices.json").read_text(encoding="utf-8"))["devices"])


def _preset(entry: Mapping[str, Any]) -> dict[str, Any]:
    facts = config_facts(entry["config"])
    return {
        "id": entry["id"],
        "name": entry["name"],
        "source": entry["source"],
        **model(KVLayout.from_config(entry["config"])),
        "n_heads": facts.n_heads or 0,
        "head_dim": facts.head_dim or 0,
        "max_context": facts.max_context or 0,
        "n_parameters": entry.get("n_parameters", 0),
        "n_cross_tokens": entry.get("n_cross_tokens", 0),
    }


def model(layout: KVLayout) -> dict[str, Any]:
    """A layout for the browser: its distinct layers, and which of them each layer is."""
    layers = [
        replace(layer, index_elements=0) for layer in layout.layers
    ]  # counted by engines on request only
    shapes = list(dict.fromkeys(layers))
    return {"layers": [_layer(layer) for layer in shapes], "order": [shapes.index(layer) for layer in layers]}


def _layer(layer: KVLayer) -> dict[str, Any]:
    return {
        "kind": layer.kind,
        "k": layer.k_elements,
        "v": layer.v_elements,
        "window": layer.window or 0,
        "state": layer.state_elements,
        "heads": layer.kv_heads,
        "parts": layer.state_parts,
    }


def running(spec: ModelSpec) -> dict[str, Any]:
    """The model of the current run."""
    layout = KVLayout.uniform(spec.n_layers, spec.n_kv_heads, spec.head_dim)
    return {
        "id": "running",
        "name": spec.name,
        "source": "",
        **model(layout),
        "n_heads": spec.n_heads,
        "head_dim": spec.head_dim,
        "max_context": spec.max_context,
        "n_parameters": spec.n_parameters,
        "n_cross_tokens": 0,
    }


def custom(chosen: Settings) -> dict[str, Any] | None:
    """The pasted or dropped model, out of the link's own text."""
    code = chosen.get("mem_layers")
    if not code:
        return None
    return {
        "id": "custom",
        "name": chosen.get("mem_name") or "config.json",
        "source": "",
        **model(layout_from_code(code)),
        "n_heads": 0,
        "head_dim": 0,
        "max_context": 0,
        "n_parameters": 0,
        "n_cross_tokens": 0,
    }


# --- settings
# ---------------------------------------------------------------------------------------------------------


def _code(raw: str) -> str:
    if raw:
        try:
            layout_from_code(raw)
        except InvalidSettingError as error:
            raise ValueError(raw[:30]) from error
    return raw


def _numbers(raw: str, count: int, high: int) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})*", raw):  # int() reads 1_0 and ４ too, JavaScript does not
        raise ValueError(raw[:30])
    parts = tuple(int(part) for part in raw.split("-"))
    if len(parts) != count or not all(1 <= part <= high for part in parts):
        raise ValueError(raw[:30])
    return parts


def _shape(raw: str) -> str:
    layers, heads, kv_heads, _ = _numbers(raw, 4, 10_000)
    if layers > 1_000 or heads % kv_heads:
        raise ValueError(raw[:30])
    return raw


def _latent(raw: str) -> str:
    if raw:
        _numbers(raw, 2, 10_000)
    return raw


def declare() -> None:
    """The page's settings. Their names are the parameters of its links."""
    known = [preset["id"] for preset in presets()]
    say = settings.declare
    say("mem_model", "llama-3.1-8b", str, settings.one_of(*known, *OWN))
    say("mem_shape", "32-32-8-128", _shape, lambda raw: bool(_shape(raw)))
    say("mem_window", 0, int, settings.between(0, MAX_TOKENS))
    say("mem_pattern", 0, int, settings.between(0, 1_000))
    say("mem_mla", "", _latent, lambda raw: _latent(raw) == raw)
    say("mem_layers", "", _code, lambda raw: _code(raw) == raw)
    say("mem_name", "", str, lambda name: len(name) <= MAX_NAME)
    say("mem_tokens", 4096, int, settings.between(1, MAX_TOKENS))
    say("mem_users", 1, int, settings.between(1, MAX_USERS))
    say("mem_cross", 0, int, settings.between(0, MAX_TOKENS))
    say("mem_k", "f16", str, settings.one_of(*DTYPES))
    say("mem_v", "", str, settings.one_of("", *DTYPES))
    say("mem_tp", 1, int, settings.between(1, 1_024))
    say("mem_ubatch", 512, int, settings.between(1, 1_000_000))
    say("mem_block", 16, int, settings.between(1, 1_000_000))
    say("mem_batched", 2048, int, settings.between(1, 10_000_000))
    say("mem_card", "rtx-5090-32", str, settings.one_of(*(device["id"] for device in devices())))
    say("mem_gib", 0.0, check=settings.between(0, 1_000_000))
    say("mem_params", 0.0, check=settings.between(0, 1_000_000))
    say("mem_weights", "bf16", str, settings.one_of(*WEIGHT_BLOCKS))
    say("mem_over", 1.0, check=settings.between(0, 100_000))


NAMES = """
    model shape window pattern mla layers name tokens users cross k v tp ubatch block batched card gib params
    weights over
""".split()  # noqa: SIM905  they stand in the order of the page


def view(chosen: Settings) -> dict[str, Any]:
    """The settings as the browser knows them: without their prefix."""
    values = {name: chosen.get(f"mem_{name}") for name in NAMES}
    if values["model"] == "custom" and not values["layers"]:
        values["model"] = "manual"
    return values


def take_view(chosen: Settings, sent: object) -> None:
    """Store what the browser sent. What it may not send is left out: anybody can send anything."""
    if not isinstance(sent, Mapping):
        return
    for name in NAMES:
        if name in sent:
            value = sent[name]
            if name in ("gib", "params", "over") and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is type(chosen.get(f"mem_{name}")):  # true is no number of tokens
                chosen.set(f"mem_{name}", value)


def take_model(chosen: Settings, layout: KVLayout, name: str) -> None:
    """Make `layout` the page's model."""
    chosen.set("mem_layers", layout_code(layout))
    name = name.encode("utf-8", "replace").decode()  # JSON can hold half a surrogate pair
    chosen.set("mem_name", " ".join(name.split())[:MAX_NAME])
    chosen.set("mem_model", "custom")


def take_config(chosen: Settings, text: str, name: str = "") -> None:
    """A pasted or dropped config.json. Raises ExplainerError with the reason why not."""
    config = config_from_text(text)
    layout = KVLayout.from_config(config)
    told = config.get("_name_or_path")
    take_model(chosen, layout, name or (told if isinstance(told, str) else "") or layout.family)


def take_file(chosen: Settings, sent: object) -> None:
    """A file that the browser has read: {"text"} of a config.json, or {"table"} of a GGUF file. Raises
    ExplainerError.
    """
    if not isinstance(sent, Mapping):
        return
    name = sent.get("name") if isinstance(sent.get("name"), str) else ""
    if isinstance(sent.get("table"), Mapping):
        take_model(chosen, layout_from_gguf_table(sent["table"]), str(name))
    elif isinstance(sent.get("text"), str):
        take_config(chosen, sent["text"], str(name))


def layout_of(chosen: Settings, spec: ModelSpec) -> KVLayout:
    """The layout that the page shows now, as Python sees it. Raises ExplainerError."""
    values = view(chosen)
    if values["model"] == "custom":
        return layout_from_code(values["layers"])
    if values["model"] == "running":
        return KVLayout.uniform(spec.n_layers, spec.n_kv_heads, spec.head_dim)
    if values["model"] == "manual":
        return manual(values)
    return preset_layout(values["model"])


def preset_layout(name: str) -> KVLayout:
    """The layout of a published configuration."""
    found = next(entry for entry in presets() if entry["id"] == name)
    return KVLayout(tuple(_back(found["layers"][i]) for i in found["order"]))


def manual(values: Mapping[str, Any]) -> KVLayout:
    """The layout of the sliders."""
    layers, _, kv_heads, width = _numbers(values["shape"], 4, 10_000)
    if values["mla"]:
        return KVLayout.latent(layers, *_numbers(values["mla"], 2, 10_000))
    return KVLayout.uniform(layers, kv_heads, width, values["window"] or None, values["pattern"] or None)


def _back(layer: Mapping[str, Any]) -> KVLayer:
    return KVLayer(
        layer["kind"],
        layer["k"],
        layer["v"],
        layer["window"] or None,
        layer["state"],
        layer["heads"],
        layer["parts"],
    )


def component(chosen: Settings, spec: ModelSpec) -> dict[str, Any]:
    """The data of the component `kv_calculator`, without language and texts."""
    models = [*presets(), running(spec)]
    try:
        own = custom(chosen)
    except ExplainerError:
        own = None
    return {
        "models": models + ([own] if own else []),
        "devices": list(devices()),
        "dtypes": {name: list(BLOCKS[name]) for name in DTYPES},
        "weight_dtypes": {name: list(size) for name, size in WEIGHT_BLOCKS.items()},
        "index_block": list(INDEX_BLOCK),
        "settings": view(chosen),
        "limits": {"tokens": MAX_TOKENS, "users": MAX_USERS},
    }
