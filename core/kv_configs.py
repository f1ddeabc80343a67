"""Which family a configuration belongs to, and the table of all families.

`layout_from_config` finds the text model inside the file (many files describe an image or sound model around
it), looks its family up, and lets the family's reader make the layers. The family is told by `model_type`; a
file without one may be told by its `architectures`. Anything else is refused: a KV cache guessed from
familiar-looking keys is how wrong figures arise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from core import kv_families as f
from core.errors import InvalidSettingError, UnsupportedConfigError
from core.kv_families import Family
from core.kv_layout import KVLayer, KVLayout
from core.kv_reader import Reader

Read = Callable[[Reader], list[KVLayer]]

# Class defaults of nested text configurations: layers, hidden size, query heads, KV heads, head dim (None:
# derived).
_SHAPES: dict[str, tuple[int, int, int, int | None, int | None]] = {
    "llama": (32, 4096, 32, None, None),
    "mistral": (32, 4096, 32, 8, None),
    "mixtral": (32, 4096, 32, 8, None),
    "ministral": (32, 4096, 32, 8, None),
    "ministral3": (34, 4096, 32, 8, 128),
    "gemma": (28, 3072, 16, 16, 256),
    "gemma2": (26, 2304, 8, 4, 256),
    "gemma3_text": (26, 2304, 8, 4, 256),
    "gemma3n_text": (35, 2048, 8, 2, 256),
    "gemma4_text": (30, 2304, 8, 4, 256),
    "qwen2": (32, 4096, 32, 32, None),
    "qwen2_moe": (24, 2048, 16, 16, None),
    "qwen3": (32, 4096, 32, 32, 128),
    "qwen3_moe": (24, 2048, 32, 4, None),
    "qwen2_vl_text": (80, 8192, 64, 8, None),
    "qwen2_5_vl_text": (80, 8192, 64, 8, None),
    "qwen3_vl_text": (32, 4096, 32, 32, 128),
    "qwen3_vl_moe_text": (24, 2048, 16, 16, None),
    "qwen2_5_omni_text": (28, 3584, 28, 4, None),
    "qwen3_omni_moe_text": (28, 2048, 28, 4, None),
    "qwen3_next": (48, 2048, 16, 2, 256),
    "qwen3_5_text": (32, 4096, 16, 4, 256),
    "qwen3_5_moe_text": (40, 2048, 16, 2, 256),
    "phi": (24, 2048, 32, None, None),
    "phi3": (32, 3072, 32, None, None),
    "cohere": (40, 8192, 64, None, None),
    "cohere2": (40, 8192, 64, None, None),
    "granite": (32, 4096, 32, None, None),
    "opt": (12, 768, 12, None, None),
    "smollm3": (36, 2048, 16, 4, None),
    "olmo2": (32, 4096, 32, None, None),
    "glm": (40, 4096, 32, 2, 128),
    "glm4": (40, 4096, 32, 2, 128),
    "glm4v_text": (40, 4096, 32, 2, None),
    "glm4v_moe_text": (46, 4096, 96, 8, None),
    "persimmon": (36, 4096, 64, None, None),
    "gpt_oss": (36, 2880, 64, 8, 64),
    "exaone4": (32, 4096, 32, 32, None),
    "llama4_text": (48, 5120, 40, 8, 128),
    "mllama_text_model": (40, 4096, 32, 8, None),
    "deepseek_v2": (32, 4096, 32, None, None),
    "deepseek_v3": (61, 7168, 128, 128, None),
    "lfm2": (32, 2560, 32, 8, None),
    "aria_text": (32, 4096, 32, None, None),
    "emu3_text_model": (32, 4096, 32, 8, None),
}
_MLA: dict[str, object] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_MORE_NESTED: dict[str, dict[str, object]] = {
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "qwen3_next": dict(_DELTA),
    "qwen3_5_text": dict(_DELTA),
    "qwen3_5_moe_text": dict(_DELTA),
    "lfm2": {"conv_L_cache": 3},
    "mllama_text_model": {"cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]},
}


def _family(name: str, read: Read, **defaults: object) -> Family:
    shape = _SHAPES.get(name)
    nested: dict[str, object] = dict(_MORE_NESTED.get(name, {}))
    if shape is not None:
        keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
        nested |= {key: value for key, value in zip(keys, shape, strict=True) if value is not None}
    return Family(read, nested, defaults)


_OWN: Read = partial(f.plain, own=True)  # families whose class gives absent KV heads a number of its own
_ALL_SLIDE: Read = partial(f.windowed, own=True)

_TABLE: dict[Read, str] = {
    f.plain: """
        llama arcee apertus aria_text baichuan bailing_moe bailing_moe_v2 codegen cohere deepseek diffllama
        flex_olmo gpt_neox_japanese granite granitemoe granitemoeshared hyperclovax internlm internlm2
        jais2 minicpm nanochat nemotron olmo olmo2 olmoe orion phi telechat xverse Yi aquila skywork
    """,
    f.multi_head: """
        gpt2 gpt-sw3 gptj gpt_neox opt xglm biogpt persimmon ctrl jais
    """,
    _OWN: """
        arctic bitnet emu3_text_model ernie4_5_moe exaone glm4_moe glm4v_text glm4v_moe_text
        grok-1 grok stablelm stablelm_epoch qwen3_omni_moe_text qwen3_vl_moe_text
    """,
    _ALL_SLIDE: "mistral mixtral ministral phimoe starcoder2 ministral3 phi4_multimodal",
    f.windowed: "phi3 phi3_v phi4mm",
    f.bloom: "bloom",
    partial(f.switched_window, own=True): """
        qwen2 qwen2_moe qwen3_moe qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text minicpmv minicpmo
        mimo
    """,
    f.mla: """
        deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm_moe_dsa glm4_moe_lite minicpm3 youtu mistral4 sarvam_mla
        axk1
    """,
    partial(f.mla, per_layer=2): "longcat_flash",
    f.falcon: "falcon RefinedWeb RefinedWebModel",
    f.attn_config: "mpt dbrx",
    f.chatglm: "chatglm",
    f.encoder_decoder: "bart mbart marian pegasus blenderbot blenderbot-small m2m_100 nllb-moe plbart mvp whisper",
    f.t5: "t5 mt5 umt5 switch_transformers longt5",
    f.deci: "nemotron-nas deci",
    f.hunyuan: "hunyuan hunyuan_v1_dense hunyuan_v1_moe",
    f.minimax: "minimax minimax_m1 minimax_text_01 MiniMaxText01 MiniMaxM1",
    f.mamba1: "mamba falcon_mamba",
    f.lfm2: "lfm2 lfm2_moe",
}

FAMILIES: dict[str, Family] = {
    name: _family(name, read) for read, names in _TABLE.items() for name in names.split()
}
FAMILIES |= {
    name: _family(name, read, **defaults)
    for name, read, defaults in (
        ("gemma", _OWN, {"head_dim": 256}),
        ("glm", _OWN, {"head_dim": 128}),
        ("glm4", _OWN, {"head_dim": 128}),
        ("helium", _OWN, {"head_dim": 128}),
        ("ernie4_5", f.derived_width, {"head_dim": 128}),
        ("internlm3", f.derived_width, {"head_dim": 128}),
        ("minimax_m2", _OWN, {"head_dim": 128}),
        ("seed_oss", f.derived_width, {"head_dim": 128}),
        ("solar_open", _OWN, {"head_dim": 128}),
        ("mistral", _ALL_SLIDE, {"sliding_window": 4096}),
        ("ministral", _ALL_SLIDE, {"sliding_window": 4096}),
        ("ministral3", _ALL_SLIDE, {"head_dim": 128}),
        ("qwen3", partial(f.switched_window, own=True), {"head_dim": 128}),
        ("qwen3_vl_text", _OWN, {"head_dim": 128}),
        ("dots1", f.dots1, {}),
        ("gemma2", partial(f.windowed, pattern=2, own=True), {"head_dim": 256, "sliding_window": 4096}),
        ("vaultgemma", partial(f.windowed, pattern=2, own=True), {"head_dim": 256, "sliding_window": 4096}),
        ("gemma3_text", f.gemma3, {"head_dim": 256, "sliding_window": 4096}),
        ("gemma3n_text", f.gemma3n, {"head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15}),
        ("gemma4_text", f.gemma4, {"head_dim": 256, "sliding_window": 512, "global_head_dim": 512}),
        ("gpt_oss", partial(f.windowed, pattern=2, own=True), {"head_dim": 64, "sliding_window": 128}),
        ("cohere2", partial(f.windowed, pattern=4), {"sliding_window": 4096}),
        ("olmo3", partial(f.windowed, pattern=4), {"sliding_window": 4096}),
        ("exaone4", partial(f.windowed, pattern=4, own=True), {"sliding_window": 4096}),
        ("exaone_moe", partial(f.windowed, pattern=4, own=True), {"sliding_window": 4096}),
        (
            "cwm",
            partial(f.windowed, pattern=4, own=True, first_full=True),
            {"head_dim": 128, "sliding_window": 8192},
        ),
        ("smollm3", f.smollm3, {}),
        ("afmoe", f.afmoe, {"head_dim": 128, "sliding_window": 1024, "global_attn_every_n_layers": 4}),
        (
            "llama4_text",
            f.llama4,
            {"head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
        ),
        ("mimo_v2_flash", f.mimo, {}),
        ("step3p5", f.step35, {}),
        ("step3_text", f.step3, {}),
        ("gpt_neo", f.gpt_neo, {"window_size": 256}),
        ("gpt_bigcode", f.grouped_by_flag, {}),
        ("qwen", f.wide_heads, {}),
        ("jetmoe", f.jetmoe, {}),
        ("phi-msft", f.phi_msft, {}),
        ("openelm", f.openelm, {}),
        ("deepseek_v4", f.deepseek_v4, {}),
        (
            "jamba",
            f.jamba,
            {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2, "mamba_d_conv": 4},
        ),
        ("bamba", f.bamba, {}),
        ("granitemoehybrid", f.granite_hybrid, {}),
        ("falcon_h1", f.falcon_h1, {}),
        ("nemotron_h", f.nemotron_h, {}),
        ("zamba", f.zamba, {"attn_layer_period": 6, "attn_layer_offset": 4}),
        ("zamba2", f.zamba2, {}),
        ("mamba2", f.mamba2, {}),
        ("qwen3_next", f.linear_hybrid, {"head_dim": 256}),
        ("qwen3_5_text", f.linear_hybrid, {"head_dim": 256}),
        ("qwen3_5_moe_text", f.linear_hybrid, {"head_dim": 256}),
        ("olmo_hybrid", partial(f.linear_hybrid, own=False), {}),
        ("recurrent_gemma", f.recurrent_gemma, {"attention_window_size": 2048, "conv1d_width": 4}),
        ("kimi_linear", f.kimi_linear, {}),
        ("mllama_text_model", f.mllama, {}),
        ("minimax_m3", f.minimax_m3, {"head_dim": 128}),
        ("minimax_m3_vl_text", f.minimax_m3, {"head_dim": 128}),
    )
}

# Models around a text model: the family of the text part where it does not say it itself.
WRAPPERS: dict[str, str | None] = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text",
    "shieldgemma2": "gemma3_text", "paligemma": "gemma", "llama4": "llama4_text",
    "mllama": "mllama_text_model", "mistral3": "mistral", "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text", "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text", "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text", "qwen2_audio": "qwen2", "qwen3_asr": "qwen3",
    "glm4v": "glm4v_text", "glm46v": "glm4v_text", "glm4v_moe": "glm4v_moe_text", "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3", "deepseek_vl_v2": "deepseek_v2", "deepseek_vl": "llama", "janus": "llama",
    "multi_modality": "llama", "llava": "llama", "llava_next": "llama", "llava_next_video": "llama",
    "llava_onevision": "qwen2", "vipllava": "llama", "video_llava": "llama", "idefics2": "mistral",
    "idefics3": "llama", "smolvlm": "llama", "internvl": "qwen2", "internvl_chat": None,
    "aya_vision": "cohere2", "cohere2_vision": "cohere2", "aria": "aria_text", "pixtral": "mistral",
    "ultravox": "llama", "voxtral": "llama", "lfm2_vl": "lfm2", "ovis2": "qwen2", "fuyu": "persimmon",
    "perception_lm": "llama", "lighton_ocr": "qwen3", "granite_speech": "granite", "step3_vl": "step3_text",
    "step3p7": "step3p5", "minimax_m3_vl": "minimax_m3_vl_text", "exaone4_5": "exaone4",
    "emu3": "emu3_text_model", "nemotron_h_omni": "nemotron_h", "NemotronH_Nano_VL_V2": "nemotron_h",
    "mimo_vl": "mimo",
}  # fmt: skip
TEXT_KEYS = ("text_config", "language_config", "llm_config", "thinker_config")


def layout_from_config(config: Mapping[str, object], *, include_mtp: bool = False) -> KVLayout:
    """See KVLayout.from_config."""
    family, text, nested = find_text_model(config)
    entry = FAMILIES[family]
    reader = Reader(
        text,
        family,
        defaults=entry.defaults,
        class_defaults=entry.class_defaults,
        nested=nested,
        include_mtp=include_mtp,
    )
    try:
        layers = entry.read(reader)
    except InvalidSettingError as error:  # sizes that are whole numbers one by one and absurd together
        raise _refuse(
            str(error.values["name"]), "comes out absurdly large", "Check the sizes in the file."
        ) from error
    reader.finish()
    names = config.get("architectures")
    if isinstance(names, list) and any(str(name).endswith("EncoderModel") for name in names):
        raise _refuse(
            "architectures",
            "names an encoder: it reads, it does not write, and keeps no cache",
            "Give the whole model's config.json.",
        )
    return KVLayout(tuple(layers), family)


MAX_TEXT = 1_000_000  # characters; published files have a few thousand


def config_from_text(text: str) -> Mapping[str, object]:
    """The object in a pasted `config.json`. Python's own NaN and Infinity are allowed: some published files
    hold them. Raises UnsupportedConfigError for anything that is no such object, however deep or long.
    """
    if len(text) > MAX_TEXT:
        raise _refuse(
            "config.json",
            f"has more than {MAX_TEXT:,} characters",
            "Paste the model's config.json only.",
            "too_long",
        )
    try:
        found = json.loads(text.strip().lstrip("\ufeff"))
    except RecursionError as error:
        raise _refuse(
            "config.json", "is nested too deeply", "Paste the model's config.json only.", "too_deep"
        ) from error
    except ValueError as error:
        where = (
            f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        )
        raise _refuse(
            "config.json", f"is not valid JSON{where}", "Paste the whole file, from { to }.", "not_json"
        ) from error
    if not isinstance(found, Mapping):
        raise _refuse("config.json", "is not an object", "Paste the whole file, from { to }.", "not_object")
    return found


def find_text_model(config: Mapping[str, object]) -> tuple[str, Mapping[str, object], bool]:
    """(family, configuration of the text model, whether it was nested). Raises UnsupportedConfigError if
    unknown.
    """
    if not isinstance(config, Mapping):
        raise _refuse("config.json", "is not an object", "Paste the whole file, from { to }.", "not_object")
    outer = _declared(config)
    for key in TEXT_KEYS:
        inner = config.get(key)
        if inner is not None and (outer in WRAPPERS or outer is None or outer not in FAMILIES):
            return _nested(config, outer, key, inner)
    if outer is None:
        raise _refuse(
            "model_type", "is missing", "Add the model_type of the model, or enter its shape by hand."
        )
    if outer in FAMILIES:
        return outer, config, False
    default = WRAPPERS.get(outer)
    if default is None:
        raise _unknown("model_type", outer)
    return default, config, False


def _nested(
    config: Mapping[str, object], outer: str | None, key: str, inner: object
) -> tuple[str, Mapping[str, object], bool]:
    if not isinstance(inner, Mapping):
        raise _refuse(key, "is not an object", "Paste the whole file.")
    part = inner.get("text_config") if key == "thinker_config" else None
    text: Mapping[str, object] = part if isinstance(part, Mapping) else inner
    if outer not in WRAPPERS:
        raise (
            _refuse("model_type", "is missing", "Add the key.", "missing")
            if outer is None
            else _unknown("model_type", outer)
        )
    told = text.get("model_type")
    family = WRAPPERS[outer] if told is None else str(told)
    family = _TEXT_NAMES.get(family or "", family)
    if family is None:
        raise _refuse(f"{key}.model_type", "is missing", "Add the key.", "missing")
    if family not in FAMILIES:
        raise _unknown(f"{key}.model_type", family)
    return family, text, True


# Text parts that carry the name of the model around them.
_TEXT_NAMES = {
    "qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text", "gemma3": "gemma3_text", "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "gemma4": "gemma4_text", "gemma3n": "gemma3n_text",
}  # fmt: skip


def _declared(config: Mapping[str, object]) -> str | None:
    """`model_type`, or the one known name that the architecture's class name spells."""
    told = config.get("model_type")
    if isinstance(told, str) and told:
        return told
    if told is not None and told != "":
        raise _refuse("model_type", "is not a name", "Correct the value.")
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return None
    stem = re.sub(r"(For(CausalLM|ConditionalGeneration|SpeechSeq2Seq).*|LMHeadModel|Model)$", "", names[0])
    return _BY_STEM.get(_squash(stem))


def _squash(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_STEM = {_squash(name.removesuffix("_text")): name for name in FAMILIES}
_BY_STEM |= {_squash(name): name for name in FAMILIES} | {_squash(name): name for name in WRAPPERS}


def _refuse(key: str, reason: str, remedy: str, why: str = "detail") -> UnsupportedConfigError:
    return UnsupportedConfigError(key=key, reason=reason, remedy=remedy, why=why)


def _unknown(key: str, name: str) -> UnsupportedConfigError:
    return UnsupportedConfigError(
        key=key,
        reason=f"is “{name[:60]}”, a family that this calculator does not know",
        remedy="Enter the model's layers, KV heads and head dim by hand, if its documentation gives them.",
        why="unknown_family",
        family=name[:60],
    )


@dataclass(frozen=True)
class ConfigFacts:
    """What a configuration says beside the cache: for labels and comparisons, None where it does not say."""

    family: str
    n_layers: int | None
    n_heads: int | None
    n_kv_heads: int | None
    head_dim: int | None
    max_context: int | None
    dtype: str | None


def config_facts(config: Mapping[str, object]) -> ConfigFacts:
    """The plain facts of a configuration, for labels. Never used for the bytes."""
    family, text, nested = find_text_model(config)
    entry = FAMILIES[family]
    r = Reader(text, family, defaults=entry.defaults, class_defaults=entry.class_defaults, nested=nested)
    dtype = next((c.get(k) for c in (text, config) for k in ("dtype", "torch_dtype") if c.get(k)), None)
    return ConfigFacts(
        family,
        r.number(*f.LAYERS, "decoder_layers") if "decoder_layers" not in text else r.number("decoder_layers"),
        r.number(*f.HEADS),
        r.number("num_key_value_heads"),
        r.number("head_dim", "attention_head_dim"),
        r.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", high=10**9),
        dtype if isinstance(dtype, str) else None,
    )
