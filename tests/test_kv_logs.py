# ruff: noqa: E501  log lines are as long as they are
"""Log lines of real engines: the figure is found, called by its right name, and compared with the formula."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidSettingError, UnsupportedConfigError
from core.kv_codes import layout_code, layout_from_code
from core.kv_configs import MAX_TEXT, config_from_text
from core.kv_gguf import layout_from_gguf_table
from core.kv_logs import QUANTITIES, expected, recognize
from core.kv_memory import KVLayout, kv_bytes

CONFIGS = json.loads((Path(__file__).parent / "data" / "kv" / "configs.json").read_text())
MIB, GIB = 1024**2, 1024**3
LLAMA_8B = KVLayout.from_config(CONFIGS["Meta-Llama-3.1-8B"])
GEMMA_4B = KVLayout.from_config(CONFIGS["gemma-3-4b-it"])
LINES = [
    # line, engine, quantity, value, layout or None, what the formula says for it or None
    (
        "llama_new_context_with_model: KV self size  =  512.00 MiB, K (f16):  256.00 MiB, V (f16):  256.00 MiB",
        "llama.cpp",
        "cache_size",
        512 * MIB,
        LLAMA_8B,
        512 * MIB,
    ),
    (
        "llama_kv_cache_unified: size =  512.00 MiB (  4096 cells,  32 layers,  1 seqs), K (f16): 256.00 MiB, "
        "V (f16): 256.00 MiB",
        "llama.cpp",
        "cache_size",
        512 * MIB,
        LLAMA_8B,
        512 * MIB,
    ),
    (
        "llama_kv_cache: size =  174.00 MiB (  1536 cells,  29 layers,  1/1 seqs), K (f16):   87.00 MiB, V (f16): 87 MiB",
        "llama.cpp",
        "cache_size",
        174 * MIB,
        GEMMA_4B,
        174 * MIB,
    ),
    (
        "llama_kv_cache: size = 4352.00 MiB ( 32768 cells,  64 layers,  1 seqs), K (q8_0): 2176.00 MiB, "
        "V (q8_0): 2176.00 MiB",
        "llama.cpp",
        "cache_size",
        4352 * MIB,
        KVLayout.uniform(64, 8, 128),
        4352 * MIB,
    ),
    (
        "llama_new_context_with_model: KV self size  = 1166.62 MiB, c^KV (q8_0): 1166.62 MiB, kv^T: not used",
        "llama.cpp",
        "cache_size",
        round(1166.62 * MIB),
        KVLayout.latent(61, 512, 64),
        None,
    ),
    (
        "llama_memory_recurrent: size =  598.50 MiB (     4 cells,  64 layers,  4 seqs), R (f32): 22.50 MiB, S (f32): 576",
        "llama.cpp",
        "state",
        round(598.5 * MIB),
        KVLayout.from_config(CONFIGS["Qwen3.5-27B"]),
        round(598.5 * MIB),
    ),
    (
        "llama_kv_cache_unified:      CUDA0 KV buffer size =   256.00 MiB",
        "llama.cpp",
        "buffer",
        256 * MIB,
        None,
        None,
    ),
    (
        "INFO 07-29 [kv_cache_utils.py:716] GPU KV cache size: 26,800 tokens",
        "vLLM",
        "pool_tokens",
        26_800,
        LLAMA_8B,
        26_800 * 131_072,
    ),
    (
        "INFO 01-02 [gpu_worker.py:227] Available KV cache memory: 8.11 GiB",
        "vLLM",
        "available",
        round(8.11 * GIB),
        LLAMA_8B,
        None,
    ),
    (
        "INFO [gpu_executor.py:122] # GPU blocks: 1952, # CPU blocks: 2048",
        "vLLM",
        "blocks",
        1952,
        LLAMA_8B,
        1952 * 16 * 131_072,
    ),
    (
        "Maximum concurrency for 120,000 tokens per request: 2.48x",
        "vLLM",
        "concurrency",
        2.48,
        None,
        None,
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (262144), (24.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (10.2 GiB).",
        "vLLM",
        "request",
        24 * GIB,
        KVLayout.from_config(CONFIGS["Qwen3-30B-A3B"]),
        24 * GIB,
    ),
    (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
        "cache (23648). Try increasing",
        "vLLM",
        "pool_tokens",
        23_648,
        None,
        None,
    ),
    (
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 122420, K size: 5.60 GB, V size: 5.60 GB",
        "SGLang",
        "k_size",
        round(5.6 * GIB),
        KVLayout.from_config(CONFIGS["Qwen3-30B-A3B"]),
        6_017_187_840,
    ),
    (
        "[TensorRT-LLM][INFO] Allocated 19.72 GiB for max tokens in paged KV cache (40384).",
        "TensorRT-LLM",
        "pool_size",
        round(19.72 * GIB),
        KVLayout.uniform(32, 32, 128),
        40_384 * 524_288,
    ),
]


@pytest.mark.parametrize(("line", "engine", "quantity", "value", "layout", "want"), LINES)
def test_known_lines(line, engine, quantity, value, layout, want):
    (figure,) = recognize(line)
    assert (figure.engine, figure.quantity) == (engine, quantity)
    assert figure.quantity in QUANTITIES
    printed = {"pool_tokens": figure.n_tokens, "blocks": figure.blocks, "concurrency": figure.concurrency}
    assert printed.get(quantity, figure.n_bytes) == value
    if layout is not None:
        got = expected(figure, layout, n_tokens=4096)
        if want is not None:
            assert got == want
    if want is not None and figure.n_bytes is not None and layout is not None:
        assert abs(want - figure.n_bytes) <= figure.rounding_bytes + 1


def test_a_whole_log_keeps_its_order_and_skips_what_it_does_not_know():
    log = "hello\n" + "\n".join(line for line, *_ in LINES) + "\nllm_load_tensors: CPU buffer size = 12 MiB\n"
    assert [figure.quantity for figure in recognize(log)] == [quantity for _, _, quantity, *_ in LINES]


def test_the_cells_of_a_window_cache():
    (figure,) = recognize("llama_kv_cache_unified_iswa: creating     SWA KV cache, size = 1536 cells")
    assert (figure.quantity, figure.cells) == ("cells", 1536)


@pytest.mark.parametrize(
    "text", ["", "hello", "KV", "\x00" * 100, "9" * 60_000, "size = 1e99 MiB", "#tokens: , K size: GB"]
)
def test_unknown_lines_find_nothing(text):
    assert recognize(text) == ()


@settings(deadline=None)
@given(st.text())
def test_no_text_breaks_it(text):
    recognize(text)


@settings(deadline=None)
@given(st.sampled_from([line for line, *_ in LINES]), st.integers(0, 100), st.text(max_size=4))
def test_no_damaged_line_breaks_it(line, at, junk):
    for figure in recognize(line[:at] + junk + line[at:]):
        expected(figure, LLAMA_8B, n_tokens=10)
        expected(figure, GEMMA_4B, n_tokens=10)


# --- layouts as text, configurations as text, GGUF tables from elsewhere
# ----------------------------------------------


@pytest.mark.parametrize("name", [n for n in CONFIGS if "V4" not in n])
def test_a_layout_travels_in_a_link(name):
    layout = KVLayout.from_config(CONFIGS[name])
    code = layout_code(layout)
    assert layout_from_code(code).layers == layout.layers
    assert len(code) < 200
    assert re.fullmatch(r"[0-9A-Za-z._-]+", code)  # nothing that a URL would escape


@pytest.mark.parametrize(
    "code",
    [
        "",
        "x",
        "F1.1-a",
        "F1.1.1-",
        "F1.1.1-b",
        "F1.1.1-a99999",
        "W1.1.1-a",
        "F1.1.1w0x-a",
        "F²1.1.1-a",
        "-a",
        "N0.0.0_" * 2000,
        "F1.1.1-a-a",
    ],
)
def test_links_by_strangers_are_read_strictly(code):
    with pytest.raises(InvalidSettingError):
        layout_from_code(code)


@settings(deadline=None)
@given(st.text(alphabet="0129FWSCNwspiab._-", max_size=60))
def test_any_link_gives_a_layout_or_a_sentence(code):
    try:
        layout = layout_from_code(code)
    except InvalidSettingError:
        return
    assert kv_bytes(layout, 5).total >= 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        "[" * 100_000,
        '{"a":' * 50_000,
        "9" * 10_000,
        '{"n_layer": ' + "9" * 10_000 + "}",
        "x" * (MAX_TEXT + 1),
        "{'model_type': 'llama'}",
    ],
)
def test_pasted_text_that_is_no_configuration(text):
    with pytest.raises(UnsupportedConfigError):
        config_from_text(text)


def test_pasted_text_with_bare_infinity_and_a_byte_order_mark():
    text = "\ufeff" + json.dumps(CONFIGS["Nemotron-H-56B-Base-8K"])
    assert "Infinity" in text
    assert kv_bytes(KVLayout.from_config(config_from_text(text)), 1).full == 40_960


def test_a_table_read_by_a_browser_is_checked_again():
    table = {"general.architecture": "llama", "llama.block_count": 32, "llama.embedding_length": 4096}
    table |= {"llama.attention.head_count": 32, "llama.attention.head_count_kv": 8}
    assert kv_bytes(layout_from_gguf_table(table), 1).total == 131_072
    for key, value in (
        ("llama.block_count", 1e99),
        ("llama.attention.head_count_kv", "8"),
        ("llama.block_count", -1),
    ):
        with pytest.raises(UnsupportedConfigError):
            layout_from_gguf_table({**table, key: value})
