"""How many bytes a value takes, exactly.

Plain formats give each value the same bits. Block formats pack a group of values behind a shared scale, so a
value costs a fraction of a byte more than its name says: q8_0 is not 8 bits but 34 bytes for 32 values. The
weights of a model and its cache may use different formats; neither says anything about the other.
"""

from __future__ import annotations

from fractions import Fraction

from core.errors import InvalidSettingError

# name: (values in a block, bytes of a block)
BLOCKS: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "fp8": (1, 1),
    "int8": (1, 1),
    "int4": (2, 1),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
    "mxfp4": (32, 17),
    "nvfp4": (16, 9),
    # The fp8 cache of DeepSeek's latents: 512 fp8 values, four f32 scales, 64 bf16 values of position.
    "fp8_ds_mla": (576, 656),
}
# Formats met in weight files only.
WEIGHT_BLOCKS: dict[str, tuple[int, int]] = {
    **{name: size for name, size in BLOCKS.items() if name != "fp8_ds_mla"},
    "q6_k": (256, 210),
    "q5_k": (256, 176),
    "q4_k": (256, 144),
    "q3_k": (256, 110),
    "q2_k": (256, 84),
}
INDEX_BLOCK = (128, 132)  # an indexer's key: 128 fp8 values and one f32 scale (DeepSeek V3.2)

_ALIASES = {
    "float32": "f32", "fp32": "f32", "float": "f32", "single": "f32",
    "float16": "f16", "fp16": "f16", "half": "f16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "f8": "fp8", "float8": "fp8",
    "i8": "int8", "uint8": "int8", "i4": "int4", "uint4": "int4",
}  # fmt: skip


def dtype_name(
    dtype: object, setting: str = "k_dtype", table: dict[str, tuple[int, int]] | None = None
) -> str:
    """The one name of a dtype: "float16", "torch.float16" and "F16" are all "f16"."""
    known = BLOCKS if table is None else table
    name = str(dtype).strip().lower().removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name not in known:
        raise InvalidSettingError(
            name=setting, value=repr(str(dtype)[:40]), allowed="one of " + ", ".join(known)
        )
    return name


def bytes_per_value(dtype: str) -> Fraction:
    """Bytes of one value on average, as an exact fraction: 34/32 for q8_0."""
    values, size = BLOCKS[dtype_name(dtype)]
    return Fraction(size, values)


def stored_bytes(n_values: int, dtype: str) -> int:
    """Bytes of `n_values` in a cache dtype; a last, partly filled byte is a whole one."""
    values, size = BLOCKS[dtype]
    return -(-n_values * size // values)


def weight_bytes(n_parameters: int, dtype: str = "bf16") -> int:
    """Bytes of a model's weights if all of them use `dtype`. Real files often mix formats: then this is an
    estimate.
    """
    from core.kv_layout import check_count

    values, size = WEIGHT_BLOCKS[dtype_name(dtype, "weight_dtype", WEIGHT_BLOCKS)]
    return -(-check_count("n_parameters", n_parameters) * size // values)
