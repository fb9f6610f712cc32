"""The folder of a saved model: safetensors for the weights, JSON for the rest, written atomically."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from setgrad._files import tensor_bytes
from setgrad.errors import DataError, FileFormatError
from setgrad.selector._migration import TABLE_FILE, migrate_version_2, migrate_weights_of_version_2

FORMAT = "setgrad.selector"
VERSION = 3
_WEIGHTS, _CONFIG = "weights.safetensors", "config.json"
# Files of a model; those of version 2 have a third one, which goes when the model is replaced.
MODEL_FILES = (_WEIGHTS, _CONFIG, TABLE_FILE)


def check_model_folder(folder: str | Path, *, checkpoint: str | Path | None = None) -> None:
    """Check that a model can be saved to a folder; call it before long work.

    Args:
        folder: The folder of the model.
        checkpoint: The checkpoint of the fit, which must not be inside the folder.

    Raises:
        DataError: If the folder holds something else, or cannot be written.
    """
    # The target of a symbolic link: the link itself stays.
    folder = target = Path(folder).resolve()
    if Path.cwd().resolve().is_relative_to(target):
        raise DataError(
            f"{target} is or contains the current folder, and saving would remove it; name a folder inside, such as "
            "model/"
        )
    if checkpoint is not None:
        state = Path(checkpoint).resolve()
        if state.is_relative_to(target) or target.is_relative_to(state):
            raise DataError(
                f"the checkpoint {checkpoint} is inside the folder of the model, {folder}; put it elsewhere"
            )
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or _is_model(folder))):
        raise DataError(f"{folder} exists and is not a setgrad model; choose another folder, or empty it first")
    parent = folder if folder.is_mount() else next(parent for parent in folder.parents if parent.exists())
    try:
        # A test file, because permissions do not tell whether a folder takes files.
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=parent).cleanup()
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written, because {parent} takes no files ({error}); choose another"
        ) from None


def _is_model(folder: Path) -> bool:
    # The name of the file is not enough, because other libraries write a config.json too.
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def write_model(folder: str | Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write the weights and the configuration; the folder is replaced as a whole or not at all.

    Raises:
        DataError: If the folder cannot be written.
    """
    check_model_folder(folder)
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    weights = tensor_bytes(tensors)
    config = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(weights).hexdigest(), **config}
    # A mount point, as in a container, cannot be moved: its files are replaced one by one. If that is interrupted, the
    # checksum does not match.
    is_mount = folder.is_mount()
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder if is_mount else folder.parent))
    try:
        temporary.chmod(0o755)
        (temporary / _WEIGHTS).write_bytes(weights)
        (temporary / _CONFIG).write_text(json.dumps(config, indent=2, default=_to_python) + "\n", encoding="utf-8")
        if is_mount:
            for name in MODEL_FILES:
                if (temporary / name).exists():
                    os.replace(temporary / name, folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
        elif folder.exists():
            _swap(folder, temporary)
        else:
            os.replace(temporary, folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error}; choose another folder") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(folder: Path, new: Path) -> None:
    """Replace a folder by a new one, and move files that are not part of a model to the new one."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    try:
        os.replace(folder, old / "model")
    except OSError:
        old.rmdir()
        raise
    os.replace(new, folder)
    for path in (old / "model").iterdir():
        if path.name not in MODEL_FILES:
            os.replace(path, folder / path.name)
    shutil.rmtree(old)


def read_model(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the configuration of a model, in the current format version.

    Raises:
        FileFormatError: If the folder is not a model, is damaged, or has an unknown version.
    """
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
    if config.get("version") not in (2, VERSION):
        raise FileFormatError(
            f"{folder} has format version {config.get('version')}, and this setgrad reads versions 2 and {VERSION}; "
            "use the setgrad that wrote it, or fit again"
        )
    weights = (folder / _WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != config.get("sha256"):
        raise FileFormatError(f"{folder / _WEIGHTS} was changed or damaged since it was written; save the model again")
    try:
        tensors = load(weights)
    except SafetensorError as error:
        raise FileFormatError(f"{folder / _WEIGHTS} is damaged: {error}") from None
    try:
        if config["version"] == 2:
            return migrate_weights_of_version_2(tensors), migrate_version_2(config, folder)
        return tensors, config
    except (LookupError, AttributeError, TypeError) as error:
        raise FileFormatError(f"{folder / _CONFIG} is damaged ({error!r}); save the model again") from None


def _to_python(number: Any) -> Any:
    """Turn a number of NumPy or another type, as a grid of options may hold, into one of Python."""
    return number.item() if hasattr(number, "item") else float(number)
