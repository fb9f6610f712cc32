"""The folder of a saved model: safetensors for the weights, JSON for the rest, and a page for people.

A manifest has the checksums of all. The page is written, and not read: people may complete it.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from setgrad._files import (
    LEFTOVERS,
    MANIFEST,
    check_takes_files,
    from_json,
    from_tensor_bytes,
    is_as_written,
    read_folder,
    tensor_bytes,
    to_json,
    write_folder,
)
from setgrad.errors import DataError, FileFormatError
from setgrad.selector._card import model_card
from setgrad.selector._migration import TABLE_FILE, migrate_version_2, migrate_weights_of_version_2

FORMAT = "setgrad.selector"
VERSION = 4
_WEIGHTS, _CONFIG = "weights.safetensors", "config.json"
_OWN, _CARD = (_CONFIG, _WEIGHTS), "README.md"
# Files of a model; those of version 2 have a table.json, which goes when the model is replaced.
MODEL_FILES = (*_OWN, _CARD, MANIFEST, TABLE_FILE)
_REMEDY = "save the model again"


def check_model_folder(folder: str | Path, *, checkpoint: str | Path | None = None) -> None:
    """Check that a model can be saved to a folder; call it before long work.

    Args:
        folder: The folder of the model.
        checkpoint: The checkpoint of the fit, which must not be inside the folder.

    Raises:
        DataError: If the folder holds something else, or cannot be written.
    """
    folder = Path(folder).resolve()
    if checkpoint is not None:
        state = Path(checkpoint).resolve()
        if state.is_relative_to(folder) or folder.is_relative_to(state):
            raise DataError(
                f"the checkpoint {checkpoint} is inside the folder of the model, {folder}; put it elsewhere"
            )
    if folder.exists() and not (folder.is_dir() and (_is_empty(folder) or _is_model(folder))):
        raise DataError(f"{folder} exists and is not a setgrad model; choose another folder, or empty it first")
    parent = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        check_takes_files(parent)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written, because {parent} takes no files ({error}); choose another"
        ) from None


def _is_empty(folder: Path) -> bool:
    return all(path.name in LEFTOVERS for path in folder.iterdir())


def _is_model(folder: Path) -> bool:
    # The name of the file is not enough, because other libraries write a config.json too.
    try:
        config = from_json((folder / _CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def write_model(folder: str | Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write the weights, the configuration and the page; other programs see the old model or the new one.

    A page that somebody else wrote or changed stays, and a warning says so.

    Raises:
        DataError: If the folder cannot be written.
    """
    check_model_folder(folder)
    content, place = to_json({"format": FORMAT, "version": VERSION, **config}), Path(folder).resolve()
    files = {_CONFIG: content, _WEIGHTS: tensor_bytes(tensors)}
    if is_as_written(place, _CARD):
        # From the JSON, so that the page tells what the file tells.
        files[_CARD] = model_card(from_json(content)).encode()
    else:
        warnings.warn(
            f"{place / _CARD} was changed by hand and stays as it is, so it may tell of another model; delete it and "
            "save again to have it written",
            UserWarning,
            stacklevel=3,
        )
    write_folder(place, files, obsolete=[TABLE_FILE])


def read_model(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the configuration of a model, in the current format version.

    Raises:
        FileFormatError: If the folder is not a model, is damaged, or has an unknown version.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder; give the folder that save() or `setgrad fit -o` wrote")
    try:
        files = read_folder(folder, names=_OWN, remedy=_REMEDY, unread=[_CARD])
        if files is None:
            try:
                return _read_earlier(folder)
            except FileFormatError:
                # A writer may have replaced it meanwhile.
                files = read_folder(folder, names=_OWN, remedy=_REMEDY, unread=[_CARD])
                if files is None:
                    raise
    except OSError as error:
        raise FileFormatError(f"{folder} cannot be read: {error}") from None
    config = _parse_config(files[_CONFIG], folder, (VERSION,))
    return _parse_weights(files[_WEIGHTS], folder), config


def _read_earlier(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a model of a version without a manifest."""
    for name in _OWN:
        if not (folder / name).is_file():
            raise FileFormatError(f"{folder} is not a setgrad model: it has no {name}")
    files = {name: (folder / name).read_bytes() for name in _OWN}
    config = _parse_config(files[_CONFIG], folder, (2, 3))
    if hashlib.sha256(files[_WEIGHTS]).hexdigest() != config.get("sha256"):
        raise FileFormatError(f"{folder / _WEIGHTS} was changed or damaged since it was written; {_REMEDY}")
    tensors = _parse_weights(files[_WEIGHTS], folder)
    if config["version"] != 2:
        return tensors, config
    try:
        return migrate_weights_of_version_2(tensors), migrate_version_2(config, folder)
    except (LookupError, AttributeError, TypeError) as error:
        raise FileFormatError(f"{folder / _CONFIG} is damaged ({error!r}); {_REMEDY}") from None


def _parse_config(content: bytes, folder: Path, versions: tuple[int, ...]) -> dict[str, Any]:
    try:
        config = from_json(content)
    except ValueError as error:
        raise FileFormatError(f"{folder / _CONFIG} is damaged ({error}); {_REMEDY}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise FileFormatError(f"{folder / _CONFIG} was not written by setgrad's save()")
    version = config.get("version")
    if version == VERSION and version not in versions:
        raise FileFormatError(f"{folder} has no {MANIFEST}, which says what its files must be; {_REMEDY}")
    if version not in versions or isinstance(version, bool | float):
        raise FileFormatError(
            f"{folder} has format version {version!r:.40}, and this setgrad reads versions 2 to {VERSION}; use the "
            "setgrad that wrote it, or fit again"
        )
    return config


def _parse_weights(content: bytes, folder: Path) -> dict[str, Tensor]:
    try:
        return from_tensor_bytes(content)[0]
    except ValueError as error:
        raise FileFormatError(f"{folder / _WEIGHTS} is damaged: {error}; {_REMEDY}") from None
