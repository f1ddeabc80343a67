"""Families of models, and how each turns its configuration into layers.

Most families are plain: some number of equal layers, each with K and V for every KV head. The rest of this
file is the ways in which models save memory: windows (Gemma, Mistral, gpt-oss), latents (DeepSeek), layers
that borrow (Gemma 3n), recurrent layers (Jamba, Qwen3-Next, Nemotron-H), encoders (Whisper, T5). A family
that is not in `FAMILIES` is refused.

`class_defaults` are the values that the family's configuration class in the transformers library gives to
absent keys (version 5.24). They count only inside a nested text configuration, which is saved as a difference
from its class; a top-level file lists its keys, and one without them is damaged. `defaults` hold in both
places: keys younger than the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from core.kv_layout import MAX_LAYERS, KVLayer, sliding_layers
from core.kv_reader import Reader

Layers = list[KVLayer]
Kinds = Mapping[Sequence[str], KVLayer | None]
NOTHING = KVLayer("none")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
MAX_WINDOW = 10**9
HIDDEN = ("hidden_size", "n_embd", "d_model")

# Names of layer types in published files, by what the layer keeps. "hybrid" keeps both and is left to its
# family.
FULL_TYPES = (
    "full_attention",
    "attention",
    "global_attention",
    "global",
    "full",
    "indexed_attention",
    "minimax_m3_sparse",
)
WINDOW_TYPES = ("sliding_attention", "sliding_window", "local_attention", "local", "sliding_window_attention")
CHUNK_TYPES = ("chunked_attention",)
STATE_TYPES = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "short_conv", "linear")
EMPTY_TYPES = ("moe", "mlp", "none")


@dataclass(frozen=True)
class Family:
    """How to read one family. `class_defaults`, `defaults`: see the module's docstring."""

    read: Callable[[Reader], Layers]
    class_defaults: Mapping[str, object] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)


# --- shapes -----------------------------------------------------------------------------------------------
# ------------


def count_layers(r: Reader) -> int:
    return r.need(*LAYERS, high=MAX_LAYERS)


def kv_heads(r: Reader, n_heads: int | None, own: bool = False) -> int:
    """KV heads; absent means as many as query heads, except where `own` says that the family's class says
    otherwise.
    """
    found = r.number("num_key_value_heads")
    if found is None and (own or n_heads is None):
        return r.need(HEADS[0] if n_heads is None and not own else "num_key_value_heads")
    heads = found or n_heads or 0
    if n_heads is not None and n_heads % heads:
        raise r.refuse("num_key_value_heads", f"is {heads}, which does not divide the {n_heads} query heads")
    return heads


def head_width(r: Reader, n_heads: int | None, keys: Sequence[str] = ("head_dim",)) -> int:
    """The width of a head: its own key if there is one, else hidden size / heads."""
    width = r.number(*keys)
    if width is None:
        heads, hidden = n_heads or r.need(HEADS[0]), r.need(*HIDDEN)
        if hidden % heads:
            raise r.refuse(keys[0], f"is missing, and {hidden} / {heads} heads is not whole", "Add the key.")
        width = hidden // heads
    for other in ("head_dim", "kv_channels", "attention_head_dim", "v_head_dim"):
        if r.config.get(other) == width:
            r.ignore(other)  # says the same
    return width


def full(heads: int, width: int, v_width: int | None = None) -> KVLayer:
    return KVLayer("full", heads * width, heads * (width if v_width is None else v_width), kv_heads=heads)


def sliding(window: int, heads: int, width: int, v_width: int | None = None) -> KVLayer:
    v = heads * (width if v_width is None else v_width)
    return KVLayer("window", heads * width, v, window=window, kv_heads=heads)


def typed_layers(r: Reader, types: Sequence[object], kinds: Kinds) -> Layers:
    """Layers from a list of type names. A name that `kinds` lacks, or for which it has None, is refused."""
    table = {name: layer for names, layer in kinds.items() for name in names}
    out = []
    for name in types:
        layer = table.get(name) if isinstance(name, str) else None
        if layer is None:
            raise r.refuse(
                "layer_types", f"has the entry “{str(name)[:40]}”, which this family does not explain"
            )
        out.append(layer)
    return out


# --- plain attention, with and without windows
# ------------------------------------------------------------------------


def plain(r: Reader, own: bool = False) -> Layers:
    """Equal layers that keep everything."""
    n, heads = count_layers(r), r.number(*HEADS)
    layer = full(kv_heads(r, heads, own), head_width(r, heads))
    types = r.sequence("layer_types", n)
    if r.config.get("use_sliding_window") is False:
        r.ignore("sliding_window", "max_window_layers")
    if r.config.get("num_kv_heads") == layer.kv_heads:
        r.ignore("num_kv_heads")
    if all(mark == 1 for mark in r.numbers("attn_type_list", 0, 1, n) or []):
        r.ignore("attn_type_list")
    else:
        raise r.refuse(
            "attn_type_list", "names layers without softmax attention, which this family does not have"
        )
    return [layer] * n if types is None else typed_layers(r, types, {FULL_TYPES: layer})


def derived_width(r: Reader) -> Layers:
    """Plain; `"head_dim": null` means hidden size / heads, while without the key it is the class's own number."""
    r.null_means_derived("head_dim")
    return plain(r, own=True)


def multi_head(r: Reader) -> Layers:
    """Layers in which every query head has its own KV head (SantaCoder, a GPT-2 by name, has one for all)."""
    n, heads = count_layers(r), r.need(*HEADS)
    sort = r.get("attention_head_type")
    if sort not in (None, "multihead", "multiquery"):
        raise r.refuse("attention_head_type", "is neither multihead nor multiquery")
    if sort == "multiquery":
        return [full(1, head_width(r, heads))] * n
    if r.number("num_key_value_heads") not in (None, heads):
        raise r.refuse(
            "num_key_value_heads", f"is not {heads}, but every query head has its own KV head in this family"
        )
    return [full(heads, head_width(r, heads))] * n


def bloom(r: Reader) -> Layers:
    """BLOOM's files call the hidden size `n_embed`, and have it win over `hidden_size`."""
    n, heads, hidden = count_layers(r), r.need(*HEADS), r.need("n_embed", "hidden_size")
    if hidden % heads:
        raise r.refuse("n_embed", f"is {hidden}, which {heads} heads do not divide", "Correct the value.")
    return [full(heads, hidden // heads)] * n


def windowed(r: Reader, pattern: int | None = None, own: bool = False, first_full: bool = False) -> Layers:
    """Layers with a window: the types listed, else a pattern key, else every `pattern`-th layer full
    (`first_full`: counted from the first), else all layers slide. Without a window all are full.
    """
    n, heads = count_layers(r), r.number(*HEADS)
    kv, width = kv_heads(r, heads, own), head_width(r, heads)
    window = read_window(r)
    slides = None if window is None else sliding(window, kv, width)
    types, told = r.sequence("layer_types", n), r.get("sliding_window_pattern", "_sliding_window_pattern")
    if types is not None:
        return typed_layers(r, types, {FULL_TYPES: full(kv, width), WINDOW_TYPES: slides})
    if slides is None:
        return [full(kv, width)] * n
    if first_full and told is None and pattern is not None:
        return [full(kv, width) if i % pattern == 0 else slides for i in range(n)]
    marks = _pattern(r, n, pattern if told is None else told)
    return [slides if mark else full(kv, width) for mark in marks]


def read_window(r: Reader) -> int | None:
    window = r.number("sliding_window", "sliding_window_size", high=MAX_WINDOW)
    return window if r.flag("use_sliding_window", default=True) else None


def _pattern(r: Reader, n_layers: int, pattern: object) -> tuple[bool, ...]:
    """Which layers slide. With letters the last layer is full whatever its letter (EXAONE 4)."""
    key = "sliding_window_pattern"
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise r.refuse(key, "has letters other than L and G", "Correct the value.")
        return (*sliding_layers(n_layers, pattern)[:-1], False)
    if isinstance(pattern, list) and pattern and all(mark in (0, 1) for mark in pattern):
        return sliding_layers(n_layers, pattern)
    return sliding_layers(n_layers, None if pattern is None else r.check(key, pattern))


def switched_window(r: Reader, own: bool = False) -> Layers:
    """Qwen: a window that counts only if `use_sliding_window` is true, and then from layer
    `max_window_layers` on. Qwen3-MoE's class lets all layers slide, Qwen2-MoE's every second one.
    """
    r.ignore("max_window_layers")
    if not r.flag("use_sliding_window"):
        r.ignore("sliding_window")
        return plain(r, own)
    n, heads = count_layers(r), r.number(*HEADS)
    kv, width = kv_heads(r, heads, own), head_width(r, heads)
    window, start = r.need("sliding_window", high=MAX_WINDOW), r.number("max_window_layers", low=0)
    types = r.sequence("layer_types", n)
    slides = sliding(window, kv, width)
    if types is not None:
        return typed_layers(r, types, {FULL_TYPES: full(kv, width), WINDOW_TYPES: slides})
    if r.family == "qwen3_moe":
        return [slides] * n
    if r.family == "qwen2_moe":
        raise r.refuse("layer_types", "is missing although the window is switched on", "Add the key.")
    if start is None:
        raise r.refuse("max_window_layers", "is missing although the window is switched on", "Add the key.")
    return [full(kv, width) if i < start else slides for i in range(n)]


def dots1(r: Reader) -> Layers:
    """As Qwen, without the switch: layers from `max_window_layers` on slide if there is a window."""
    n, heads = count_layers(r), r.number(*HEADS)
    kv, width, window = (
        kv_heads(r, heads, own=True),
        head_width(r, heads),
        r.number("sliding_window", high=MAX_WINDOW),
    )
    types, start = r.sequence("layer_types", n), r.number("max_window_layers", low=0) or n
    slides = None if window is None else sliding(window, kv, width)
    if types is not None:
        return typed_layers(r, types, {FULL_TYPES: full(kv, width), WINDOW_TYPES: slides})
    return [slides if slides and i >= start else full(kv, width) for i in range(n)]


def smollm3(r: Reader) -> Layers:
    if not r.flag("use_sliding_window"):
        r.ignore("sliding_window")
        return plain(r, own=True)
    if r.sequence("layer_types") is None:
        raise r.refuse(
            "use_sliding_window", "is true, and which layers slide depends on their position coding"
        )
    return windowed(r, own=True)


def afmoe(r: Reader) -> Layers:
    return windowed(r, r.need("global_attn_every_n_layers"))


def gemma3(r: Reader) -> Layers:
    if r.get("use_bidirectional_attention"):
        raise r.refuse(
            "use_bidirectional_attention", "is true: this model reads, it does not write, and keeps no cache"
        )
    return windowed(r, 6, own=True)


def gemma3n(r: Reader) -> Layers:
    """The last `num_kv_shared_layers` layers use the cache of an earlier layer."""
    n, heads = count_layers(r), r.number(*HEADS)
    kv, width, window = (
        kv_heads(r, heads, own=True),
        head_width(r, heads),
        r.need("sliding_window", high=MAX_WINDOW),
    )
    types = r.sequence("layer_types", n) or [
        "full_attention" if (i + 1) % 5 == 0 else "sliding_attention" for i in range(n)
    ]
    layers = typed_layers(r, types, {FULL_TYPES: full(kv, width), WINDOW_TYPES: sliding(window, kv, width)})
    return _drop_shared(r, layers)


def _drop_shared(r: Reader, layers: Layers) -> Layers:
    shared = r.number("num_kv_shared_layers", low=0, high=len(layers) - 1) or 0
    return layers[: len(layers) - shared] + [NOTHING] * shared


def gemma4(r: Reader) -> Layers:
    """Two head shapes: full layers have `global_head_dim` and, where K equals V in the weights, their own
    head count.
    """
    if r.get("use_bidirectional_attention") == "all":
        raise r.refuse(
            "use_bidirectional_attention", "is “all”: this model reads, it does not write, and keeps no cache"
        )
    n, heads = count_layers(r), r.number(*HEADS)
    kv, width, window = (
        kv_heads(r, heads, own=True),
        head_width(r, heads),
        r.need("sliding_window", high=MAX_WINDOW),
    )
    wide, global_kv = r.need("global_head_dim"), r.number("num_global_key_value_heads")
    if not r.flag("attention_k_eq_v"):
        global_kv = None
    types = r.sequence("layer_types", n) or [
        "sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(n)
    ]
    types = [*types[:-1], "full_attention"]
    kinds: Kinds = {FULL_TYPES: full(global_kv or kv, wide), WINDOW_TYPES: sliding(window, kv, width)}
    own = layer_entries(r, n, ("head_dim", "num_key_value_heads"))
    if own is None:
        return _drop_shared(r, typed_layers(r, types, kinds))
    # Saved by a later library: the full layers' shape stands in each layer's own entry, and in no other key.
    if sorted(own) != [i for i, name in enumerate(types) if name in FULL_TYPES]:
        raise r.refuse("per_layer_config", "does not name the full layers", "Use the complete config.json.")
    layers = typed_layers(r, types, kinds)
    for i, keys in own.items():
        layers[i] = full(keys.get("num_key_value_heads", kv), keys.get("head_dim", width))
    return _drop_shared(r, layers)


def layer_entries(r: Reader, n: int, known: Sequence[str]) -> dict[int, dict[str, int]] | None:
    """What `per_layer_config` says of single layers: {"05": {"head_dim": 512}}. Anything unknown is refused."""
    entries = r.section("per_layer_config")
    if entries is None:
        return None
    out: dict[int, dict[str, int]] = {}
    for name in entries.config:
        entry = entries.section(str(name))
        if not str(name).isdecimal() or not str(name).isascii() or int(name) >= n or entry is None:
            raise r.refuse("per_layer_config", f"has the entry “{str(name)[:20]}”, which is no layer")
        odd = set(entry.config) - {*known, "num_attention_heads"}
        if odd or int(name) in out:
            raise r.refuse(
                "per_layer_config", f"says “{str(min(odd, default=name))[:30]}” of a layer, which is not known here"
            )
        out[int(name)] = {key: entry.need(key) for key in known if key in entry.config}
    return out


def llama4(r: Reader) -> Layers:
    """Chunked attention, except in the layers without position coding (every fourth)."""
    n, heads = count_layers(r), r.number(*HEADS)
    kv, width, chunk = (
        kv_heads(r, heads, own=True),
        head_width(r, heads),
        r.number("attention_chunk_size", high=MAX_WINDOW),
    )
    chunked = None if chunk is None else sliding(chunk, kv, width)
    types = r.sequence("layer_types", n)
    if types is not None:
        return typed_layers(r, types, {FULL_TYPES: full(kv, width), CHUNK_TYPES: chunked})
    every = r.need("no_rope_layer_interval")
    local = r.numbers("no_rope_layers", 0, 1, n) or [int((i + 1) % every != 0) for i in range(n)]
    return [chunked if mark and chunked else full(kv, width) for mark in local]


def mimo(r: Reader) -> Layers:
    """MiMo-V2: K wider than V; sliding layers have their own head count; 1 in `hybrid_layer_pattern` slides."""
    n = count_layers(r)
    r.ignore("sliding_window_size", "swa_num_attention_heads", "attention_chunk_size")
    kv, k, v = r.need("num_key_value_heads"), r.need("head_dim"), r.need("v_head_dim")
    swa_kv, swa_k = r.need("swa_num_key_value_heads"), r.number("swa_head_dim") or k
    swa_v, window = r.number("swa_v_head_dim") or v, r.need("sliding_window", high=MAX_WINDOW)
    pattern, types = r.numbers("hybrid_layer_pattern", 0, 1, n), r.sequence("layer_types", n)
    slides = sliding(window, swa_kv, swa_k, swa_v)
    if types is not None:
        return typed_layers(r, types, {FULL_TYPES: full(kv, k, v), WINDOW_TYPES: slides})
    if pattern is None:
        raise r.refuse("hybrid_layer_pattern", "is missing", "Use the complete config.json of the model.")
    return [slides if mark else full(kv, k, v) for mark in pattern]


def step35(r: Reader) -> Layers:
    """Step 3.5: KV heads are called attention groups, sliding layers may have their own; lists run on into
    MTP layers.
    """
    n = count_layers(r)
    layer_entries(r, MAX_LAYERS, ())  # query heads only, which keep nothing
    kv, width = r.need("num_attention_groups", "num_key_value_heads"), r.need("head_dim")
    types = r.sequence("layer_types")
    if types is None or len(types) < n:
        raise r.refuse("layer_types", "is missing or too short", "Use the complete config.json of the model.")
    other = r.section("attention_other_setting")
    own = (None, None) if other is None else (other.number("num_attention_groups"), other.number("head_dim"))
    window = r.number("sliding_window", high=MAX_WINDOW)
    slides = None if window is None else sliding(window, own[0] or kv, own[1] or width)
    return typed_layers(r, types[:n], {FULL_TYPES: full(kv, width), WINDOW_TYPES: slides})


def gpt_neo(r: Reader) -> Layers:
    n, heads = count_layers(r), r.need(*HEADS)
    width, window = head_width(r, heads), r.need("window_size")
    r.ignore("attention_types")
    types = r.sequence("attention_layers", n)
    if types is None:
        raise r.refuse("attention_layers", "is missing", "Use the complete config.json of the model.")
    return typed_layers(
        r, types, {("global",): full(heads, width), ("local",): sliding(window, heads, width)}
    )


# --- head counts under other names
# ------------------------------------------------------------------------------------


def falcon(r: Reader) -> Layers:
    """Falcon's three spellings, oldest last."""
    n, heads = count_layers(r), r.need(*HEADS)
    told, oldest = r.number("num_kv_heads"), r.number("n_head_kv")
    multi_query = r.flag("multi_query", default=oldest is None and r.family == "falcon")
    if r.flag("new_decoder_architecture"):
        kv = told or oldest or heads
    elif multi_query:
        kv = 1
    else:
        kv = oldest or told or heads
    return [full(kv, head_width(r, heads))] * n


def grouped_by_flag(r: Reader) -> Layers:
    """GPT-BigCode: one KV head if `multi_query` (which is on unless said otherwise)."""
    n, heads = count_layers(r), r.need(*HEADS)
    r.ignore("num_key_value_heads")
    return [full(1 if r.flag("multi_query", default=True) else heads, head_width(r, heads))] * n


def attn_config(r: Reader) -> Layers:
    """MPT and DBRX: KV heads stand in a nested `attn_config`."""
    n, heads = count_layers(r), r.need(*HEADS)
    inner = r.section("attn_config")
    kv, kind, window = None, None, None
    if inner is not None:
        kv, kind, window = (
            inner.number("kv_n_heads"),
            inner.get("attn_type"),
            inner.number("sliding_window_size", low=-1),
        )
    if kind == "multiquery_attention":
        kv = 1
    if (kind == "grouped_query_attention" and kv is None) or (r.family == "dbrx" and kv is None):
        raise r.refuse("attn_config.kv_n_heads", "is missing", "Use the complete config.json of the model.")
    if window is not None and window > 0:
        raise r.refuse("attn_config.sliding_window_size", "is set, and which layers slide is not told")
    return [full(kv or heads, head_width(r, heads))] * n


def chatglm(r: Reader) -> Layers:
    n, heads = count_layers(r), r.need(*HEADS)
    groups = r.number("multi_query_group_num")
    kv = groups if r.flag("multi_query_attention") else heads
    if kv is None:
        raise r.refuse("multi_query_group_num", "is missing", "Use the complete config.json of the model.")
    return [full(kv, head_width(r, heads, ("kv_channels", "head_dim")))] * n


def jetmoe(r: Reader) -> Layers:
    return [full(r.need("num_key_value_heads"), r.need("kv_channels"))] * count_layers(r)


def wide_heads(r: Reader) -> Layers:
    """Qwen (the first): the head's width is `kv_channels`."""
    n, heads = count_layers(r), r.number(*HEADS)
    kv = r.number("num_key_value_heads") or heads or r.need(HEADS[0])
    return [full(kv, head_width(r, heads, ("kv_channels", "head_dim")))] * n


def step3(r: Reader) -> Layers:
    return [full(r.need("num_attention_groups"), r.need("head_dim"))] * count_layers(r)


def phi_msft(r: Reader) -> Layers:
    n, heads = count_layers(r), r.need(*HEADS)
    return [full(r.number("n_head_kv") or heads, head_width(r, heads))] * n


def openelm(r: Reader) -> Layers:
    n = r.need("num_transformer_layers", high=MAX_LAYERS)
    per_layer, width = r.numbers("num_kv_heads", 1, length=n), r.need("head_dim")
    if per_layer is None:
        raise r.refuse("num_kv_heads", "is missing", "Use the complete config.json of the model.")
    return [full(kv, width) for kv in per_layer]


def deci(r: Reader) -> Layers:
    """Searched architectures: each block has its own KV heads, or no attention at all."""
    n, heads = count_layers(r), r.need(*HEADS)
    width = head_width(r, heads)
    per_layer = r.numbers("num_key_value_heads_per_layer", 1, length=n)
    if per_layer is not None:
        return [full(kv, width) for kv in per_layer]
    r.ignore("num_key_value_heads")
    blocks = r.sequence("block_configs", n)
    if blocks is None:
        raise r.refuse("block_configs", "is missing", "Use the complete config.json of the model.")
    return [_deci_block(r, block, heads, width) for block in blocks]


def _deci_block(r: Reader, block: object, n_heads: int, width: int) -> KVLayer:
    inner = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(inner, Mapping):
        raise r.refuse(
            "block_configs", "has an entry without “attention”", "Use the complete config.json of the model."
        )
    a = Reader(inner, r.family)
    if a.flag("no_op") or a.flag("replace_with_linear"):
        return NOTHING
    for key in (
        "window_length",
        "is_mamba",
        "mamba",
        "llama4",
        "sparsify",
        "num_sink_tokens",
        "unshifted_sink",
    ):
        if a.get(key):
            raise r.refuse(f"block_configs.attention.{key}", "is set, and it may change the cache")
    group = a.need("n_heads_in_group")
    if n_heads % group:
        raise r.refuse(
            "n_heads_in_group", f"is {group}, which does not divide the {n_heads} heads", "Correct the value."
        )
    return full(n_heads // group, width)


def hunyuan(r: Reader) -> Layers:
    """Cross-layer attention: of every `cla_share_factor` layers, the first holds the cache for all."""
    if not r.flag("use_mla"):
        r.ignore("kv_lora_rank", "v_head_dim", "qk_rope_head_dim")
    share = r.number("cla_share_factor") or 1
    width_keys = ("head_dim", "attention_head_dim")
    n, heads = count_layers(r), r.number(*HEADS)
    layer = full(kv_heads(r, heads), head_width(r, heads, width_keys))
    if not r.flag("use_cla"):
        return [layer] * n
    return [layer if i % share == 0 else NOTHING for i in range(n)]


# --- latents
# ----------------------------------------------------------------------------------------------------------


def mla(r: Reader, per_layer: int = 1) -> Layers:
    """DeepSeek's multi-head latent attention. Head counts and head widths do not enter. `per_layer`: latents
    in a layer.
    """
    n = count_layers(r)
    r.ignore("num_key_value_heads", "v_head_dim", "head_dim", "qk_nope_head_dim", "num_attention_heads")
    if r.get("use_mla") is False:
        r.ignore("kv_lora_rank", "qk_rope_head_dim")
        return _without_latents(r, n)
    rank = r.number("kv_lora_rank")
    if rank is None:
        raise r.refuse("kv_lora_rank", "is missing or null", "Use the complete config.json of the model.")
    index = r.number("index_head_dim") or 0
    layer = KVLayer("full", rank + r.need("qk_rope_head_dim"), index_elements=index)
    types = r.sequence("layer_types", n)
    layers = [layer] * n if types is None else typed_layers(r, types, {FULL_TYPES: layer})
    extra = r.number("num_nextn_predict_layers", low=0, high=64) or 0
    return layers * per_layer + [layer] * (extra if r.include_mtp else 0)


def _without_latents(r: Reader, n: int) -> Layers:
    """DeepSeek-VL2's smaller members switch the latents off and keep plain K and V."""
    heads = r.need("num_attention_heads")
    hidden = r.need("hidden_size")
    if hidden % heads:
        raise r.refuse("hidden_size", f"is {hidden}, which {heads} heads do not divide", "Correct the value.")
    return [full(r.need("num_key_value_heads"), hidden // heads)] * n


def deepseek_v4(r: Reader) -> Layers:
    for key in ("compress_ratios", "compress_rates"):
        if r.get(key) is not None:
            raise r.refuse(
                key, "compresses each layer's cache at its own rate: the shape keys give no closed form"
            )
    raise r.refuse("model_type", "is deepseek_v4, whose layers compress their caches at rates of their own")


def minimax_m3(r: Reader) -> Layers:
    """Block-sparse attention reads less but keeps everything; its index keys are counted on request only."""
    n, heads = count_layers(r), r.number(*HEADS)
    kv, width = kv_heads(r, heads, own=True), head_width(r, heads)
    sparse = r.section("sparse_attention_config")
    r.ignore("layer_types", "index_head_dim")
    plain_layer = full(kv, width)
    if sparse is None:
        return [plain_layer] * n
    marks = sparse.numbers("sparse_attention_freq", 0, 1, n) or [1] * n
    index = sparse.number("sparse_index_dim") or 0
    indexed = KVLayer("full", kv * width, kv * width, kv_heads=kv, index_elements=index)
    return [indexed if mark else plain_layer for mark in marks]


# --- hybrids: some layers keep a state of constant size
# ---------------------------------------------------------------


def mamba1_state(r: Reader, d_state: int, d_conv: int, inner: int) -> KVLayer:
    """The state of a Mamba layer: per channel, `d_state` values and the last `d_conv - 1` inputs of its
    convolution.
    """
    return KVLayer("state", state_elements=inner * (d_state + d_conv - 1), state_parts=inner)


def mamba2_state(heads: int, head_dim: int, d_state: int, groups: int, d_conv: int, inner: int) -> KVLayer:
    convolution = (inner + 2 * groups * d_state) * (d_conv - 1)
    return KVLayer(
        "state", state_elements=heads * head_dim * d_state + convolution, state_parts=gcd(heads, groups)
    )


def delta_state(r: Reader) -> KVLayer:
    """A gated delta-rule layer (Qwen3-Next, Qwen3.5): one matrix per value head, and its convolution's
    inputs.
    """
    hk, hv = r.need("linear_num_key_heads"), r.need("linear_num_value_heads")
    dk, dv, kernel = (
        r.need("linear_key_head_dim"),
        r.need("linear_value_head_dim"),
        r.need("linear_conv_kernel_dim"),
    )
    elements = hv * dk * dv + (kernel - 1) * (2 * hk * dk + hv * dv)
    return KVLayer("state", state_elements=elements, state_parts=gcd(hk, hv))


def attention_layer(r: Reader, own: bool = False, keys: Sequence[str] = ("head_dim",)) -> KVLayer:
    heads = r.number(*HEADS)
    return full(kv_heads(r, heads, own), head_width(r, heads, keys))


def jamba(r: Reader) -> Layers:
    """Attention in layer `offset`, then every `period`-th, counted from 0."""
    n, hidden = count_layers(r), r.need("hidden_size")
    period, offset = r.need("attn_layer_period"), r.need("attn_layer_offset", low=0)
    types = r.sequence("layer_types", n) or r.sequence("layers_block_type", n)
    state = mamba1_state(r, r.need("mamba_d_state"), r.need("mamba_d_conv"), r.need("mamba_expand") * hidden)
    layer = attention_layer(r, own=True)
    r.ignore("sliding_window")
    if r.config.get("sliding_window") is not None:
        raise r.refuse("sliding_window", "is set, which Jamba does not use")
    if types is not None:
        return typed_layers(r, types, {FULL_TYPES: layer, STATE_TYPES: state})
    return [layer if i % period == offset else state for i in range(n)]


def _mamba2(r: Reader, inner: int, names: Mapping[str, str]) -> KVLayer:
    heads = r.need(names["heads"])
    told = r.get(names["head_dim"])
    width = inner // heads if told in (None, "auto") else r.check(names["head_dim"], told)
    groups, d_state, d_conv = r.need(names["groups"]), r.need(names["state"]), r.need(names["conv"])
    if heads * width != inner:
        raise r.refuse(names["head_dim"], f"times the heads is {heads * width}, not the inner width {inner}")
    return mamba2_state(heads, width, d_state, groups, d_conv, inner)


MAMBA_NAMES = {
    "heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "groups": "mamba_n_groups",
    "state": "mamba_d_state",
    "conv": "mamba_d_conv",
}
NEMOTRON_NAMES = {
    "heads": "mamba_num_heads",
    "head_dim": "mamba_head_dim",
    "groups": "n_groups",
    "state": "ssm_state_size",
    "conv": "conv_kernel",
}


def bamba(r: Reader) -> Layers:
    n = count_layers(r)
    state = _mamba2(r, r.need("mamba_expand") * r.need("hidden_size"), MAMBA_NAMES)
    layer, where = attention_layer(r), r.numbers("attn_layer_indices", 0, n - 1) or []
    types = r.sequence("layer_types", n) or r.sequence("layers_block_type", n)
    if types is not None:
        return typed_layers(r, types, {FULL_TYPES: layer, STATE_TYPES: state})
    return [layer if i in where else state for i in range(n)]


def granite_hybrid(r: Reader) -> Layers:
    n = count_layers(r)
    types = r.sequence("layer_types", n) or r.sequence("layers_block_type", n) or ["mamba"] * n
    layer, state = attention_layer(r), None
    if any(name in STATE_TYPES for name in types if isinstance(name, str)):
        state = _mamba2(r, r.need("mamba_expand") * r.need("hidden_size"), MAMBA_NAMES)
    else:
        r.ignore("mamba_n_heads", "mamba_d_state")
    return typed_layers(r, types, {FULL_TYPES: layer, STATE_TYPES: state})


def falcon_h1(r: Reader) -> Layers:
    """Attention and a recurrent state side by side in every layer."""
    n = count_layers(r)
    inner = r.number("mamba_d_ssm") or r.need("mamba_expand") * r.need("hidden_size")
    state, layer = _mamba2(r, inner, MAMBA_NAMES), attention_layer(r, own=True)
    both = KVLayer(
        "full",
        layer.k_elements,
        layer.v_elements,
        state_elements=state.state_elements,
        kv_heads=layer.kv_heads,
        state_parts=state.state_parts,
    )
    r.ignore("layer_types", "layers_block_type")
    return [both] * n


def nemotron_h(r: Reader) -> Layers:
    """A letter per layer: M recurrent, * attention, - and E feed-forward only."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern, types = (
        r.get("hybrid_override_pattern"),
        r.sequence("layers_block_type") or r.sequence("layer_types"),
    )
    if types is None and isinstance(pattern, str) and not set(pattern) - set(letters):
        types = [letters[letter] for letter in pattern]
    if not types:
        raise r.refuse(
            "hybrid_override_pattern", "is missing or has unknown letters", "Use the complete config.json."
        )
    n = r.number("num_hidden_layers", high=MAX_LAYERS)
    if n is not None and n != len(types):
        raise r.refuse(
            "hybrid_override_pattern", f"has {len(types)} entries for {n} layers", "Correct the value."
        )
    if r.get("sliding_window") is not None:
        raise r.refuse("sliding_window", "is set, and which layers slide is not told")
    r.ignore("n_group", "expand", "mamba_d_state")
    heads, width = r.need("mamba_num_heads"), r.need("mamba_head_dim")
    state = _mamba2(r, heads * width, NEMOTRON_NAMES)
    kinds: Kinds = {
        FULL_TYPES: full(kv_heads(r, r.number(*HEADS), own=True), r.need("attention_head_dim", "head_dim")),
        STATE_TYPES: state,
    }
    return typed_layers(r, types, {**kinds, EMPTY_TYPES: NOTHING})


def zamba(r: Reader) -> Layers:
    """Every layer is recurrent; in “hybrid” layers a shared attention block stands before it, with a cache of
    its own.
    """
    n, hidden = count_layers(r), r.need("hidden_size")
    state = mamba1_state(r, r.need("mamba_d_state"), r.need("mamba_d_conv"), r.need("mamba_expand") * hidden)
    heads = r.need("num_attention_heads")
    width = r.number("attention_head_dim") or 2 * hidden // heads
    types = r.sequence("layers_block_type", n) or r.sequence("layer_types", n)
    period, offset = r.need("attn_layer_period"), r.need("attn_layer_offset", low=0)
    if types is None:
        types = ["mamba", "mamba", "hybrid"]
        types += ["hybrid" if i % period == offset else "mamba" for i in range(n - 3)]
    r.ignore("n_mamba_heads")
    return _zamba_layers(r, types, state, kv_heads(r, heads, own=True), width)


def zamba2(r: Reader) -> Layers:
    n, hidden = count_layers(r), r.need("hidden_size")
    inner, heads = r.need("mamba_expand") * hidden, r.need("num_attention_heads")
    mamba_heads, groups, d_state = r.need("n_mamba_heads"), r.need("mamba_ngroups"), r.need("mamba_d_state")
    if inner % mamba_heads:
        raise r.refuse("n_mamba_heads", f"does not divide the inner width {inner}", "Correct the value.")
    state = mamba2_state(mamba_heads, inner // mamba_heads, d_state, groups, r.need("mamba_d_conv"), inner)
    types, ids = r.sequence("layers_block_type", n), r.numbers("hybrid_layer_ids", 0, n - 1)
    if types is None and ids is None:
        raise r.refuse("layers_block_type", "is missing", "Use the complete config.json of the model.")
    types = types or ["hybrid" if i in (ids or []) else "mamba" for i in range(n)]
    r.ignore("kv_channels", "attention_head_dim", "layer_types", "state_size", "mamba_headdim")
    return _zamba_layers(r, types, state, kv_heads(r, heads), 2 * hidden // heads)


def _zamba_layers(r: Reader, types: Sequence[object], state: KVLayer, kv: int, width: int) -> Layers:
    both = KVLayer(
        "full",
        kv * width,
        kv * width,
        state_elements=state.state_elements,
        kv_heads=kv,
        state_parts=state.state_parts,
    )
    return typed_layers(r, types, {("hybrid", "g"): both, (*STATE_TYPES, "m"): state})


def mamba1(r: Reader) -> Layers:
    n, hidden = count_layers(r), r.need("hidden_size")
    inner = r.number("intermediate_size") or r.need("expand") * hidden
    return [mamba1_state(r, r.need("state_size"), r.need("conv_kernel"), inner)] * n


def mamba2(r: Reader) -> Layers:
    n, inner = count_layers(r), r.need("expand") * r.need("hidden_size")
    heads, width = r.need("num_heads"), r.need("head_dim")
    if heads * width != inner:
        raise r.refuse(
            "head_dim",
            f"times the heads is {heads * width}, not the inner width {inner}",
            "Correct the value.",
        )
    return [
        mamba2_state(heads, width, r.need("state_size"), r.need("n_groups"), r.need("conv_kernel"), inner)
    ] * n


def linear_hybrid(r: Reader, own: bool = True) -> Layers:
    """Qwen3-Next, Qwen3.5, OLMo-Hybrid: every `full_attention_interval`-th layer is attention, the others
    delta rule.
    """
    n = count_layers(r)
    every = r.number("full_attention_interval") or 4
    types = r.sequence("layer_types", n) or [
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(n)
    ]
    return typed_layers(r, types, {FULL_TYPES: attention_layer(r, own), STATE_TYPES: delta_state(r)})


def recurrent_gemma(r: Reader) -> Layers:
    n, hidden = count_layers(r), r.need("hidden_size")
    lru, kernel = r.number("lru_width") or hidden, r.need("conv1d_width")
    heads, window = r.need("num_attention_heads"), r.need("attention_window_size", high=MAX_WINDOW)
    pattern = r.sequence("block_types") or ["recurrent", "recurrent", "attention"]
    r.ignore("layers_block_type", "layer_types")
    state = KVLayer("state", state_elements=lru * kernel, state_parts=lru)
    layer = sliding(window, kv_heads(r, heads), head_width(r, heads))
    return typed_layers(
        r, [pattern[i % len(pattern)] for i in range(n)], {FULL_TYPES: layer, STATE_TYPES: state}
    )


def lfm2(r: Reader) -> Layers:
    """Short convolutions that remember `conv_L_cache - 1` inputs, and attention in the listed layers."""
    n, hidden = count_layers(r), r.need("hidden_size")
    state = KVLayer("state", state_elements=hidden * (r.need("conv_L_cache") - 1), state_parts=hidden)
    where, types = r.numbers("full_attn_idxs", 0, n - 1), r.sequence("layer_types", n)
    if types is None and where is None:
        raise r.refuse("layer_types", "is missing", "Use the complete config.json of the model.")
    types = types or ["full_attention" if i in (where or []) else "conv" for i in range(n)]
    return typed_layers(r, types, {FULL_TYPES: attention_layer(r, own=True), STATE_TYPES: state})


def minimax(r: Reader) -> Layers:
    """MiniMax-01 and M1: lightning attention keeps one matrix per head; 1 in `attn_type_list` is softmax
    attention.
    """
    n, heads = count_layers(r), r.need(*HEADS)
    layer, width = attention_layer(r, own=True), head_width(r, heads)
    state = KVLayer("state", state_elements=heads * width * width, state_parts=heads)
    marks, types = r.numbers("attn_type_list", 0, 1, n), r.sequence("layer_types", n)
    if types is None and marks is None:
        raise r.refuse("attn_type_list", "is missing", "Use the complete config.json of the model.")
    types = types or ["full_attention" if mark else "linear_attention" for mark in marks or []]
    return typed_layers(r, types, {FULL_TYPES: layer, STATE_TYPES: state})


def kimi_linear(r: Reader) -> Layers:
    """Kimi Linear: latents in the layers listed under `full_attn_layers`, counted from 1; delta-rule states
    in the rest.
    """
    n = count_layers(r)
    r.ignore("num_key_value_heads", "v_head_dim", "head_dim", "linear_num_value_heads")
    latent = KVLayer("full", r.need("kv_lora_rank") + r.need("qk_rope_head_dim"))
    linear = r.section("linear_attn_config")
    source = r if linear is None else linear
    heads, width = (
        source.need(*(("linear_num_heads",) if linear is None else ("num_heads",))),
        source.need("linear_head_dim" if linear is None else "head_dim"),
    )
    kernel = source.need("linear_conv_kernel_dim" if linear is None else "short_conv_kernel_size")
    state = KVLayer("state", state_elements=heads * width * (width + 3 * (kernel - 1)), state_parts=heads)
    types = r.sequence("layer_types", n) or _one_based(r, linear, n)
    return typed_layers(r, types, {FULL_TYPES: latent, STATE_TYPES: state})


def _one_based(r: Reader, linear: Reader | None, n: int) -> list[str]:
    attention = None if linear is None else linear.numbers("full_attn_layers", 1, n)
    recurrent = None if linear is None else linear.numbers("kda_layers", 1, n)
    if attention is None or recurrent is None or sorted(attention + recurrent) != list(range(1, n + 1)):
        raise r.refuse(
            "linear_attn_config",
            "does not say what each layer is",
            "Use the complete config.json of the model.",
        )
    return ["full_attention" if i + 1 in attention else "linear_attention" for i in range(n)]


# --- cross-attention
# --------------------------------------------------------------------------------------------------


def mllama(r: Reader) -> Layers:
    """Llama 3.2 Vision: the listed layers attend to the image only, the others to the text only."""
    n, where = count_layers(r), r.numbers("cross_attention_layers", 0, 100_000)
    layer = attention_layer(r, own=True)
    if where is None:
        raise r.refuse("cross_attention_layers", "is missing", "Use the complete config.json of the model.")
    if any(i >= n for i in where):
        raise r.refuse(
            "cross_attention_layers", f"names layers beyond the {n} of the model", "Correct the value."
        )
    cross = KVLayer("cross", layer.k_elements, layer.v_elements, kv_heads=layer.kv_heads)
    return [cross if i in where else layer for i in range(n)]


def encoder_decoder(r: Reader) -> Layers:
    """BART, Whisper, Marian …: each decoder layer keeps its own text and, once, the encoder's output."""
    _needs_both(r)
    n, heads = (
        r.need("decoder_layers", "num_decoder_layers", high=MAX_LAYERS),
        r.need("decoder_attention_heads"),
    )
    return _both_attentions(r, n, heads, head_width(r, heads))


def _needs_both(r: Reader) -> None:
    if not r.flag("is_encoder_decoder", default=True):
        raise r.refuse("is_encoder_decoder", "is false: one half of the model alone keeps something else")


def t5(r: Reader) -> Layers:
    _needs_both(r)
    encoder = r.number("num_layers", high=MAX_LAYERS)
    n = r.number("num_decoder_layers", high=MAX_LAYERS) or encoder or r.need("num_layers")
    return _both_attentions(r, n, r.need("num_heads"), r.need("d_kv"))


def _both_attentions(r: Reader, n: int, heads: int, width: int) -> Layers:
    own, cross = full(heads, width), KVLayer("cross", heads * width, heads * width, kv_heads=heads)
    return [own, cross] * n
