"""The layout of a GGUF file, from its metadata.

A GGUF file starts with a table of named values (layers, heads, window …) and goes on with the weights. Only
the table is read here, value by value, with limits, and nothing in it is executed; so a file may be cut off
after its table, may come from anybody, and costs little. Names and type numbers are those of the `gguf`
package.

The values are translated into the spelling of a `config.json`, and the same families read them. Head counts
given per layer (0: no attention in this layer) are taken as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from gguf import GGUF_MAGIC, GGUFValueType

from core.errors import UnsupportedConfigError
from core.kv_configs import layout_from_config
from core.kv_families import full
from core.kv_layout import MAX_LAYERS, KVLayer, KVLayout

MAX_HEADER_BYTES = 64 * 1024 * 1024  # tokenizers of 256,000 entries take a few megabytes
MAX_ENTRIES, MAX_KEPT_LIST = 10_000, MAX_LAYERS
REMEDY = "Choose the model's GGUF file again (its first part if it is split), or enter the shape by hand."

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


def _damaged(reason: str) -> UnsupportedConfigError:
    return UnsupportedConfigError(key="file", reason=reason, remedy=REMEDY, why="file")


class _Table:
    """Reads the values one after another and stops at the limit or at the end of the file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, MAX_HEADER_BYTES

    def take(self, n: int) -> bytes:
        if not 0 <= n <= self._left:
            raise _damaged("has a metadata table that is larger than any model's")
        self._left -= n
        data = self._stream.read(n)
        if len(data) != n:
            raise _damaged("ends inside its metadata table")
        return data

    def unpack(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]
        return value

    def text(self) -> str:
        return self.take(int(self.unpack("Q"))).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> object:
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY and depth == 0:
            inner, count = int(self.unpack("I")), int(self.unpack("Q"))
            return self._list(inner, count)
        code = _SCALARS.get(kind)
        if code is None:
            raise _damaged(f"has a value of the unknown type {kind}")
        return self.unpack(code)

    def _list(self, kind: int, count: int) -> list[object] | None:
        """A short list as it is; a long one (the vocabulary) is skipped."""
        code = _SCALARS.get(kind)
        if count > MAX_KEPT_LIST and code is not None:
            self.take(count * struct.calcsize(code))
            return None
        if count > MAX_HEADER_BYTES:
            raise _damaged("has a list that is longer than any model's")
        kept = [self.value(kind, depth=1) for _ in range(count)]
        return kept if count <= MAX_KEPT_LIST else None


def read_gguf_metadata(source: str | PathLike[str] | bytes) -> dict[str, object]:
    """The metadata table of a GGUF file, given by path or by its first bytes. Long lists are left out."""
    if isinstance(source, bytes):
        return _read(BytesIO(source))
    try:
        with Path(source).open("rb") as stream:
            return _read(stream)
    except OSError as error:
        raise _damaged(f"cannot be opened ({error.strerror or 'unknown reason'})") from error


def _read(stream: BinaryIO) -> dict[str, object]:
    table = _Table(stream)
    magic, version = table.unpack("I"), table.unpack("I")
    if magic != GGUF_MAGIC:
        raise _damaged("is not a GGUF file")
    if version not in (2, 3):
        raise _damaged(f"has the GGUF version {version}, which is not known here")
    table.unpack("Q")  # number of tensors
    count = int(table.unpack("Q"))
    if count > MAX_ENTRIES:
        raise _damaged("has more metadata entries than any model")
    found: dict[str, object] = {}
    for _ in range(count):
        key = table.text()
        found[key] = table.value(int(table.unpack("I")))
    return found


# GGUF architecture: (model_type, {key in the GGUF table: key in config.json}) beyond the common keys.
_COMMON = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
}
_ARCHITECTURES = {
    "llama": "llama", "mistral": "mistral", "qwen": "qwen", "qwen2": "qwen2", "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl_text", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "qwen3vl": "qwen3_vl_text", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3": "gemma3_text", "gpt-oss": "gpt_oss", "phi2": "phi", "phi3": "phi3",
    "command-r": "cohere", "cohere2": "cohere2", "starcoder2": "starcoder2", "olmo": "olmo", "olmo2": "olmo2",
    "olmoe": "olmoe", "granite": "granite", "granitemoe": "granitemoe", "smollm3": "smollm3", "stablelm": "stablelm",
    "gpt2": "gpt2", "gptneox": "gpt_neox", "bloom": "bloom", "baichuan": "baichuan", "internlm2": "internlm2",
    "minicpm": "minicpm", "deepseek": "deepseek", "glm4": "glm4", "glm4moe": "glm4_moe", "exaone": "exaone",
    "nemotron": "nemotron", "ernie4_5": "ernie4_5", "seed_oss": "seed_oss", "hunyuan-dense": "hunyuan_v1_dense",
    "minimax-m2": "minimax_m2", "arcee": "arcee", "apertus": "apertus", "orion": "orion", "xverse": "xverse",
}  # fmt: skip
_LATENT = ("deepseek2", "glm-dsa", "minicpm3", "kimi-k2")
# Families whose GGUF files leave the window pattern to the engine, where it is the family's own.
_OWN_PATTERN = ("gemma2", "gemma3", "gpt-oss", "cohere2")


def layout_from_gguf(source: str | PathLike[str] | bytes, *, include_mtp: bool = False) -> KVLayout:
    """See KVLayout.from_gguf. `source` may also be the first bytes of a file."""
    return layout_from_gguf_table(read_gguf_metadata(source), include_mtp=include_mtp)


def layout_from_gguf_table(table: Mapping[str, object], *, include_mtp: bool = False) -> KVLayout:
    """The layout told by a metadata table that was read elsewhere (a browser that keeps the file to itself)."""
    architecture = table.get("general.architecture")
    if not isinstance(architecture, str):
        raise _damaged("does not name its architecture")
    values = {
        key.removeprefix(architecture + "."): value
        for key, value in table.items()
        if key.startswith(architecture + ".") and value is not None
    }
    extra = values.get("nextn_predict_layers")
    config = _config(architecture, values)
    n_layers = config.get("num_hidden_layers")
    if isinstance(extra, int) and isinstance(n_layers, int):
        config["num_hidden_layers"] = n_layers - (0 if include_mtp else extra)  # block_count counts them
    per_layer = config.get("num_key_value_heads")
    if isinstance(per_layer, list):
        return _per_layer(architecture, values, per_layer)
    return layout_from_config(config)


def _config(architecture: str, values: Mapping[str, object]) -> dict[str, object]:
    config: dict[str, object] = {name: values[key] for key, name in _COMMON.items() if key in values}
    latent = architecture in _LATENT and "attention.kv_lora_rank" in values
    model_type = "deepseek_v3" if latent else _ARCHITECTURES.get(architecture)
    if model_type is None:
        raise UnsupportedConfigError(
            key="general.architecture",
            reason=f"is “{architecture[:60]}”, which this calculator cannot read from a GGUF file",
            remedy="Use the model's config.json, or enter its shape by hand.",
        )
    config["model_type"] = model_type
    if latent:
        config["kv_lora_rank"] = values["attention.kv_lora_rank"]
        config["qk_rope_head_dim"] = values.get("rope.dimension_count")
        config.pop("head_dim", None)
        return config
    _check_extras(architecture, values, config)
    return config


def _check_extras(architecture: str, values: Mapping[str, object], config: dict[str, object]) -> None:
    """Values that change the cache in ways that the common keys do not tell."""
    key, value = values.get("attention.key_length"), values.get("attention.value_length")
    if key != value:
        raise _damaged("gives K and V different widths, which this family does not have")
    pattern = values.get("attention.sliding_window_pattern")
    if "attention.sliding_window" in values and architecture not in _OWN_PATTERN and pattern is None:
        if architecture in ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe"):
            config.pop(
                "sliding_window"
            )  # written by some converters; the engine reads it for other families only
    elif "attention.sliding_window" not in values:
        config["sliding_window"] = None
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if mark else "full_attention" for mark in pattern]
    for name in (
        "attention.shared_kv_layers",
        "ssm.state_size",
        "full_attention_interval",
        "shortconv.l_cache",
    ):
        if values.get(name):
            raise UnsupportedConfigError(
                key=f"{architecture}.{name}",
                reason="is set, which this calculator reads from a config.json only",
                remedy="Use the model's config.json.",
            )


def _per_layer(architecture: str, values: Mapping[str, object], heads: list[object]) -> KVLayout:
    n, width = values.get("block_count"), values.get("attention.key_length")
    extra = [name for name in ("ssm.", "shortconv.", "attention.sliding_window", "attention.kv_lora_rank") if any(
        key.startswith(name) for key in values
    )]  # fmt: skip
    if (
        extra
        or n != len(heads)
        or not isinstance(width, int)
        or values.get("attention.value_length") != width
    ):
        raise UnsupportedConfigError(
            key=f"{architecture}.attention.head_count_kv",
            reason="is given per layer in a way that this calculator cannot complete from the GGUF table",
            remedy="Use the model's config.json.",
        )
    layers = [
        full(h, width) if h else KVLayer("none") for h in heads if isinstance(h, int) and 0 <= h <= 10**6
    ]
    if len(layers) != n:
        raise _damaged("has a head count that is not a whole number")
    return KVLayout(tuple(layers), architecture)
