"""Tiny random models of several families: for tests about mechanism, where weights do not matter."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "qwen2": SMALL,
    "qwen3": {**SMALL, "head_dim": 16},
    "mistral": {**SMALL, "sliding_window": 4},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 61, "n_positions": 64},
    "granite": {**SMALL, "attention_multiplier": 0.3},
    "gemma3_text": {
        **SMALL, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 61},
    "gemma2": {**SMALL, "head_dim": 8},
    "gpt_oss": {**SMALL, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 61, "state_size": 4},
}


def tiny_model(family: str, settings: dict[str, Any], seed: int = 0) -> Any:
    """A random float32 model with weights large enough that attention is not uniform."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **settings)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name and "wte" not in name and "wpe" not in name:
                weight.mul_(6.0)
    return model


class NoTokenizer:
    """Stands where a model needs a tokenizer that the test never asks."""

    eos_token_id = None
