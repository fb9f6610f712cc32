"""Where data files are found, and how archives of arrays are read: shared by the loaders of public data."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from setgrad.errors import DataError, FileFormatError


def data_folder(data_dir: str | Path | None, name: str, what: str) -> Path:
    """Return the folder `name` inside `data_dir`, or inside the folder that `SETGRAD_DATA` names."""
    root = data_dir if data_dir is not None else os.environ.get("SETGRAD_DATA")
    remedy = f"set the environment variable SETGRAD_DATA, or pass data_dir: the folder that contains {name}"
    if not root:
        raise DataError(f"{what} are not part of setgrad; {remedy}")
    folder = Path(root) / name
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; {remedy}")
    return folder


def read_arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Read arrays from an `.npz` archive; nothing is unpickled."""
    try:
        # Opened here, because np.load leaves the file open when it fails.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return [archive[name] for name in names]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds the arrays {', '.join(names)}") from None
    except KeyError as error:
        raise FileFormatError(f"{path} lacks an array ({error}); take a fresh copy of the file") from None
    except (ValueError, TypeError, IndexError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error


def read_lines(path: Path, what: str) -> list[str]:
    """Read the lines of a text file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); take a fresh copy of the file") from error
