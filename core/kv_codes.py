"""A layout as one short line of text, so that it travels in a link.

First the distinct layers, then their order as letters (`a` is the first) with how often each follows itself:

    code   = layer ("_" layer)* "-" (letter [count])+          F1024.1024.8_W1024.1024.8w512-b5ab5a
    layer  = kind k "." v "." heads [extra]*
    kind   = F full · W window · S state · C cross · N none
    extra  = "w" window · "s" state values · "p" parts of the state · "i" index values

Anybody may write a link, so reading is strict.
"""

from __future__ import annotations

import re
from itertools import groupby
from string import ascii_letters

from core.errors import ExplainerError, InvalidSettingError
from core.kv_layout import MAX_LAYERS, KVLayer, KVLayout

_KINDS = {"F": "full", "W": "window", "S": "state", "C": "cross", "N": "none"}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_EXTRAS = {"w": "window", "s": "state_elements", "p": "state_parts", "i": "index_elements"}
_LAYER = re.compile(r"([FWSCN])(\d{1,15})\.(\d{1,15})\.(\d{1,7})((?:[wspi]\d{1,15})*)", re.ASCII)
_ORDER = re.compile(r"(?:[a-zA-Z]\d{0,5})+", re.ASCII)
MAX_CODE = 5_000


def layout_code(layout: KVLayout) -> str:
    """The line that `layout_from_code` reads. The family's name is not in it. Up to 52 distinct layers."""
    shapes = list(dict.fromkeys(layout.layers))
    if len(shapes) > len(ascii_letters):
        raise InvalidSettingError(
            name="layers", value=len(shapes), allowed="at most 52 distinct layers in a link"
        )
    runs = [(ascii_letters[shapes.index(layer)], len(list(run))) for layer, run in groupby(layout.layers)]
    order = "".join(letter + (str(n) if n > 1 else "") for letter, n in runs)
    return "_".join(map(_layer_code, shapes)) + "-" + order


def _layer_code(layer: KVLayer) -> str:
    extras = "".join(
        f"{letter}{getattr(layer, name)}" for letter, name in _EXTRAS.items() if getattr(layer, name)
    )
    return f"{_LETTERS[layer.kind]}{layer.k_elements}.{layer.v_elements}.{layer.kv_heads}{extras}"


def layout_from_code(code: str) -> KVLayout:
    """Raises InvalidSettingError where the line is not one that `layout_code` could have written."""
    try:
        if len(code) > MAX_CODE:
            raise ValueError(code)
        shapes, order = code.split("-")
        if not _ORDER.fullmatch(order):
            raise ValueError(order)
        return KVLayout(tuple(_ordered([_read_layer(shape) for shape in shapes.split("_")], order)))
    except (ValueError, IndexError, ExplainerError) as error:
        shown = repr(code[:30])
        raise InvalidSettingError(
            name="layers", value=shown, allowed="a layout written by this page"
        ) from error


def _ordered(shapes: list[KVLayer], order: str) -> list[KVLayer]:
    layers: list[KVLayer] = []
    for letter, count in re.findall(r"([a-zA-Z])(\d*)", order):
        n = int(count or 1)
        if n + len(layers) > MAX_LAYERS:
            raise ValueError(order)
        layers += [shapes[ascii_letters.index(letter)]] * n
    return layers


def _read_layer(text: str) -> KVLayer:
    match = _LAYER.fullmatch(text)
    if match is None:
        raise ValueError(text)
    kind, k, v, heads, extras = match.groups()
    more = {_EXTRAS[letter]: int(digits) for letter, digits in re.findall(r"([wspi])(\d+)", extras)}
    layer = KVLayer(_KINDS[kind], int(k), int(v), kv_heads=int(heads), **more)
    if layer.kv_heads and (layer.k_elements % layer.kv_heads or layer.v_elements % layer.kv_heads):
        raise ValueError(text)
    if layer.state_parts and layer.state_elements % layer.state_parts:
        raise ValueError(text)
    return layer
