"""Files that are either the old ones or the new ones, never half of either."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from setgrad.errors import DataError


def check_place(path: Path) -> None:
    """Refuse a path at which no file can be written; ask before the work, not after it.

    Example:
        >>> check_place(Path("."))
        Traceback (most recent call last):
        setgrad.errors.DataError: .: this is a folder; name a file, such as one inside it
    """
    try:
        if not path.name or path.is_dir():
            raise DataError(f"{path}: this is a folder; name a file, such as one inside it")
        if path.exists() and not path.is_file():
            # The draft would take its place: a file where /dev/null was.
            raise _unwritable(path, "it is a device or a pipe")
        above = next(parent for parent in path.absolute().parents if parent.exists())
        takes_files = above.is_dir() and os.access(above, os.W_OK)
    except OSError as error:
        raise _unwritable(path, str(error)) from error
    if not takes_files:
        raise _unwritable(path, f"{above} is not a folder that takes files")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a draft to write to, beside the path; when the block ends well, it takes the place of the path.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder, "deep", "note.txt")) as draft:
        ...         _ = draft.write_text("done")
        ...     Path(folder, "deep", "note.txt").read_text()
        'done'
    """
    check_place(path)
    # A link stays, and what it leads to is replaced.
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise _unwritable(path, str(error)) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _unwritable(path: Path, cause: str) -> DataError:
    return DataError(f"{path}: this cannot be written: {cause}; choose a path that can be")
