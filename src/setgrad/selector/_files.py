"""Files of a selector: safetensors for numbers, JSON for words, written atomically, checked when read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setgrad._files import read_tensors, tensor_bytes, write_tensors
from setgrad.errors import DataError, FileFormatError

FORMAT = "setgrad.selector"
VERSION = 2
_WEIGHTS, _CONFIG = "weights.safetensors", "config.json"
_CHECKPOINT = "setgrad.checkpoint"
# What a model consists of. The command line adds the names of columns, which do not outlive the model they belong to.
MODEL_PARTS = (_WEIGHTS, _CONFIG, "table.json")


def check_model_folder(folder: str | Path, *, checkpoint: str | Path | None = None) -> None:
    """Refuse a place for a model that holds something else or cannot be written; ask before the work, not after it.

    `checkpoint` is the file that a fit will keep its state in: it must not stand where the model goes.
    """
    # Where a link leads to: the link itself stays.
    folder = place = Path(folder).resolve()
    if Path.cwd().resolve().is_relative_to(place):
        raise DataError(
            f"{place} is the current folder or holds it, and saving would take it away; name a folder inside, as model/"
        )
    if checkpoint is not None:
        state = Path(checkpoint).resolve()
        if state.is_relative_to(place) or place.is_relative_to(state):
            raise DataError(f"the checkpoint {checkpoint} stands in the way of the model in {folder}; put it elsewhere")
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or _is_model(folder))):
        raise DataError(f"{folder} exists and is not a setgrad model; choose another place, or empty it first")
    above = folder if folder.is_mount() else next(parent for parent in folder.parents if parent.exists())
    try:
        # Tried, because not every folder that may be written takes files.
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=above).cleanup()
    except OSError as error:
        raise DataError(f"{folder} cannot be written, because {above} refuses ({error}); choose another") from None


def _is_model(folder: Path) -> bool:
    # The name of the file is not enough: other libraries write a config.json too, and saving replaces the folder.
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def write_model(folder: str | Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write a folder with `config.json` and `weights.safetensors`; a half-written folder never bears the name."""
    check_model_folder(folder)
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    weights = tensor_bytes(tensors)
    config = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(weights).hexdigest(), **config}
    # A folder that a file system is mounted on, as in a container, cannot be moved: its files are replaced instead. A
    # model of two writings is refused by its sum.
    mounted = folder.is_mount()
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder if mounted else folder.parent))
    try:
        fresh.chmod(0o755)
        (fresh / _WEIGHTS).write_bytes(weights)
        (fresh / _CONFIG).write_text(json.dumps(config, indent=2, default=_plain) + "\n", encoding="utf-8")
        if mounted:
            for name in MODEL_PARTS:
                if (fresh / name).exists():
                    os.replace(fresh / name, folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
        elif folder.exists():
            _swap(folder, fresh)
        else:
            os.replace(fresh, folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error}; choose another place") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(folder: Path, fresh: Path) -> None:
    """Put a new folder in the place of another, and into it what the other held beside a model."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    try:
        os.replace(folder, old / "model")
    except OSError:
        old.rmdir()
        raise
    os.replace(fresh, folder)
    for path in (old / "model").iterdir():
        # Notes or plots that a user put beside the model are not ours to delete.
        if path.name not in MODEL_PARTS:
            os.replace(path, folder / path.name)
    shutil.rmtree(old)


def read_model(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_model` wrote; anything else is refused with the reason."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = Path(folder)
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder; give the folder that save() or `setgrad fit -o` wrote")
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise FileFormatError(f"{folder} is not a setgrad model: it has no {name}")
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{folder / _CONFIG} is damaged ({error}); save the model again") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise FileFormatError(f"{folder / _CONFIG} was not written by setgrad's save()")
    if config.get("version") != VERSION:
        raise FileFormatError(
            f"{folder} has format version {config.get('version')}, this setgrad reads version {VERSION}; "
            "use the setgrad that wrote it, or fit again"
        )
    weights = (folder / _WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != config.get("sha256"):
        raise FileFormatError(f"{folder / _WEIGHTS} was changed or damaged since it was written; save the model again")
    try:
        return load(weights), config
    except SafetensorError as error:
        raise FileFormatError(f"{folder / _WEIGHTS} is damaged: {error}") from None


def write_checkpoint(path: Path, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Write the state of training as one safetensors file, with the plain numbers in its header."""
    write_tensors(path, tensors, _CHECKPOINT, numbers=json.dumps(numbers))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_checkpoint` wrote."""
    tensors, metadata = read_tensors(path, _CHECKPOINT, remedy="name another file, or remove it to start again")
    return tensors, json.loads(metadata["numbers"])


def _plain(number: Any) -> Any:
    """Turn a number of another kind, as a grid of options may hold, into one of Python."""
    return number.item() if hasattr(number, "item") else float(number)


def fingerprint(*parts: Any) -> str:
    """A short hash of tensors and plain values, to tell whether a checkpoint belongs to a run."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.detach().cpu().contiguous()
            digest.update(str((part.dtype, tuple(part.shape))).encode())
            digest.update(part.view(torch.uint8).numpy().tobytes() if part.numel() else b"")
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()
