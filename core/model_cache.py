"""The converted copy of a GGUF model in the user's cache folder.

A GGUF file stores weights in small blocks: a few bits per weight and a scale per block. torch wants plain numbers.
Expanding 135 million weights takes many seconds, so the result is kept on disk as safetensors, a format that is read
almost as fast as the disk allows.

A cache must never lie. Each converted folder carries a manifest with the SHA-256 of every file, and of the GGUF file it
was made from; at each start the hashes are checked, and a folder that does not match is thrown away and made again. It
is written under another name and renamed when complete, so that a half-written folder is never taken for a whole one,
and two programs that start together cannot disturb each other: the first to rename wins, the other uses its result.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from core.errors import ModelDamagedError, UnsupportedModelError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


def user_cache_folder() -> Path:
    """Where this user's programs keep what they can make again. `OTAT_CACHE` overrides it."""
    if chosen := os.environ.get("OTAT_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "one-token-at-a-time"


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def converted_folder(
    gguf: Path, expected_sha256: str, remedy: str, tell: Callable[[str, float], None]
) -> Path:
    """The folder with the expanded model; made now if it is absent or damaged.

    Raises ModelDamagedError if the GGUF file itself is not the expected one.
    """
    folder = user_cache_folder() / f"{gguf.stem}-{expected_sha256[:12]}"
    if is_intact(folder, expected_sha256):
        return folder
    tell("convert", 0.1)
    if file_sha256(gguf) != expected_sha256:
        raise ModelDamagedError(path=str(gguf), remedy=remedy)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _convert(gguf, scratch)
        _write_manifest(scratch, expected_sha256)
        _put_in_place(scratch, folder, expected_sha256)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_intact(folder: Path, source_sha256: str) -> bool:
    """True if the manifest is there, made from that source by this version, and every file has its hash."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["source_sha256"] != source_sha256 or manifest["version"] != FORMAT_VERSION:
            return False
        return all(file_sha256(folder / name) == digest for name, digest in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_manifest(folder: Path, source_sha256: str) -> None:
    files = {p.name: file_sha256(p) for p in sorted(folder.iterdir()) if p.is_file()}
    manifest = {"version": FORMAT_VERSION, "source_sha256": source_sha256, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _put_in_place(scratch: Path, folder: Path, source_sha256: str) -> None:
    """Rename scratch to folder. A folder that is there already is damaged, or another program's finished work."""
    for _attempt in range(5):
        try:
            os.rename(scratch, folder)
            return
        except OSError:
            if is_intact(folder, source_sha256):
                return
            # Moved aside rather than deleted in place: a rename is atomic, deleting a tree is not.
            aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            try:
                os.rename(folder, aside / "old")
            except OSError:
                pass  # another program moved it first
            shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"could not write {folder}")


def _convert(gguf: Path, target: Path) -> None:
    """Expand the GGUF file into a folder that transformers reads directly."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Not from_pretrained(gguf_file=...): that asks for one more package, and its result calls itself quantized and
    # refuses to be saved.
    read = load_gguf_checkpoint(
        str(gguf), return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )
    missing, unknown = model.load_state_dict(read["tensors"], strict=False)
    model.tie_weights()
    tied = set(model.all_tied_weights_keys)
    if unknown or set(missing) - tied:
        raise UnsupportedModelError(
            family=config.model_type, reason=f"weights that do not fit: {missing or unknown}"
        )
    model.save_pretrained(target)
