"""The attention viewer's data: queries and keys of one layer, and where the heads of the whole model look.

The browser computes the maps of the layer itself (see assets/components/attention_view), so what is sent grows with the
number of positions: 1,536 bytes each for the default model. Up to MAX_POSITIONS of prompt and answer together are sent;
a longer prompt is sent whole, as far as it was traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import streamlit as st

from core.head_profile import HeadProfile, head_profile
from pages.views import components, prefill_wave
from pages.views import settings as settings_module
from pages.views.prefill_wave import unbroken
from pages.views.text import escape_markdown, percent, visible

if TYPE_CHECKING:
    from core.trace import Trace
    from pages.views.frame import Frame

KEY = "attention_view"
MAX_POSITIONS = 288  # with it, the page stays under 500 kB for every prompt of up to 256 tokens
_profiles: WeakKeyDictionary[Trace, HeadProfile] = WeakKeyDictionary()


def declare() -> None:
    """The viewer's settings: layer and head, counted from 1 as on screen; 0 leaves the choice to `place`."""
    settings_module.declare("layer", 0, int, settings_module.between(0, 1_000))
    settings_module.declare("head", 0, int, settings_module.between(0, 1_000))


def profile_of(trace: Trace) -> HeadProfile:
    """The heads' profile of a run, computed once as long as the run lives."""
    known = _profiles.get(trace)
    if known is None:
        known = _profiles[trace] = head_profile(trace)
    return known


def place(frame: Frame, trace: Trace) -> tuple[int, int]:
    """(layer, head) to show, 0-based. Without a choice: the layer of the strongest sink, and its most ordinary head."""
    first, layer, head = profile_of(trace).first, frame.settings.get("layer"), frame.settings.get("head")
    layer = layer - 1 if 1 <= layer <= trace.spec.n_layers else profile_of(trace).strongest(first)[0]
    ordinary = int(abs(first[layer] - first.mean()).argmin())
    return layer, head - 1 if 1 <= head <= trace.spec.n_heads else ordinary


def n_shown(trace: Trace) -> int:
    """Positions that are sent."""
    return min(trace.n_traced, max(trace.n_prompt, MAX_POSITIONS))


def vectors(trace: Trace, layer: int) -> dict[str, Any]:
    """Queries and keys of a layer as 16-bit floats, in the guise of whole numbers (Arrow has no halves in JS)."""
    n = n_shown(trace)

    def halves(array: Any) -> Any:
        return np.ascontiguousarray(array[layer, :, :n].astype(np.float16)).view(np.uint16).ravel()

    return {"q": halves(trace.queries), "k": halves(trace.keys)}


def payload(trace: Trace, layer: int, head: int) -> dict[str, Any]:
    """The component's `data` without its texts."""
    spec, n, profile = trace.spec, n_shown(trace), profile_of(trace)
    meta = {
        "layer": layer,
        "head": head,
        "n": n,
        "n_prompt": trace.n_prompt,
        "n_all": trace.n_cached,
        "n_layers": spec.n_layers,
        "n_heads": spec.n_heads,
        "n_kv_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "scale": spec.attention_scale,
        "window": spec.window_of(layer),
        "tokens": prefill_wave.tokens_data(trace, n),
        "sinks": [float(share) for share in profile.first.mean(axis=1)],
        "even": profile.even,
        "run": prefill_wave.run_name(trace),
    }
    return {**vectors(trace, layer), "meta": meta}


def _keep() -> None:
    """The learner chose a layer or a head in the browser: into the settings and the link."""
    view, now = st.session_state[KEY], settings_module.current()
    for name in ("layer", "head"):
        value = view.get(name)  # None but for the one that was just chosen
        if value is not None:
            now.set(name, int(value) + 1)
    settings_module.write_url(now)


@st.fragment
def show(frame: Frame, trace: Trace) -> None:
    """The viewer. A fragment: another layer sends that layer's vectors and redraws nothing else."""
    with frame.errors():
        layer, head = place(frame, trace)
        asked = st.session_state.setdefault("attention_asked", 0)
        # The head to start with must not change with every choice of a head, or all vectors would be sent again.
        start = st.session_state.setdefault("attention_start", {})
        known = (prefill_wave.run_name(trace), layer, asked)
        if start.get("for") != known:
            start.update({"for": known, "head": head})
        data = payload(trace, layer, start["head"])
        data["meta"] |= {
            "ask": asked,
            "lang": frame.lang,
            "text": {**frame.t.group("attention"), "computed": frame.t("kind.computed")},
        }
        components.mount("attention_view", data, KEY, on_layer_change=_keep, on_head_change=_keep)
        _try(frame, trace)


def _take_to(layer: int, head: int) -> None:
    now = settings_module.current()
    now.set("layer", layer + 1)
    now.set("head", head + 1)
    settings_module.write_url(now)
    st.session_state["attention_asked"] += 1


def _try(frame: Frame, trace: Trace) -> None:
    """The head that looks most at the token just before, with its measured share, and a way there."""
    if trace.n_traced < 3:
        return
    profile = profile_of(trace)
    layer, head = profile.strongest(profile.previous)
    share = unbroken(percent(float(profile.previous[layer, head]), 0))
    frame.try_this(frame.t("try_previous", layer=layer + 1, head=head + 1, share=share))
    st.button(
        frame.t("go_there", layer=layer + 1, head=head + 1),
        key="attention_go",
        on_click=_take_to,
        args=(layer, head),
    )


def surprise(frame: Frame, trace: Trace) -> bool:
    """How much of all attention goes to the first token. False, and nothing said, where that is nothing special."""
    if trace.n_traced < 4:
        return False
    profile = profile_of(trace)
    share = float(profile.first.mean())
    if share < 2 * profile.even:
        return False
    token = escape_markdown(visible(trace.tokens[0].text))
    shares = {"share": unbroken(percent(share, 0)), "even": unbroken(percent(profile.even, 0))}
    frame.surprise(frame.t("surprise_sink", token=token, **shares))
    return True
