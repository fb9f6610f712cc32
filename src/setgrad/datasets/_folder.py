"""Data files: where they are, and how archives of arrays and text files are read. Shared by the loaders."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from setgrad.errors import DataError, FileFormatError, parameter


def data_folder(data_dir: str | Path | None, name: str, what: str) -> Path:
    """Return the folder `name` inside `data_dir`, or inside the folder in `SETGRAD_DATA` if `data_dir` is None.

    Raises:
        DataError: If neither is set, or there is no such folder. `what` says in the message which data are missing.
    """
    root = data_dir if data_dir is not None else os.environ.get("SETGRAD_DATA")
    remedy = (
        f"set the environment variable SETGRAD_DATA, or pass {parameter('data_dir')}: the folder that contains {name}"
    )
    if not root:
        raise DataError(f"{what} are not part of setgrad; {remedy}")
    folder = Path(root) / name
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; {remedy}")
    return folder


def read_arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Return arrays of an `.npz` archive, without unpickling anything.

    Raises:
        DataError: If there is no such file.
        FileFormatError: If the file cannot be read or lacks one of the arrays.
    """
    try:
        # The file is opened here, because np.load does not close it when it fails.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive]
            if missing:
                raise FileFormatError(f"{path} has no array named {missing[0]!r}; download the file again")
            return [archive[name] for name in names]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds the arrays {', '.join(names)}") from None
    except FileFormatError:
        raise
    except (ValueError, TypeError, IndexError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise unreadable(path, error) from error


def read_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a text file in UTF-8.

    Raises:
        DataError: If there is no such file. `what` says in the message what it contains.
        FileFormatError: If the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it holds {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, cause: object) -> FileFormatError:
    """Return the error for a damaged data file."""
    return FileFormatError(f"{path} cannot be read ({cause}); download the file again")
