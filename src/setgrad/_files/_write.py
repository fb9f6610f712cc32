"""Single files that are replaced as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from setgrad._files import _disk
from setgrad._files._lock import locked
from setgrad._files._mounts import check_file_system
from setgrad.errors import DataError

# For how many seconds to wait for another process that writes the same file: longer than a large table takes.
_WAIT = 60.0


def check_writable(path: Path) -> None:
    """Check that a file can be written at a path; call it before long work.

    Raises:
        DataError: If the path is a folder, a device, below a folder that takes no files, or on a file system that
            cannot replace a file as a whole.

    Examples:
        >>> check_writable(Path("."))
        Traceback (most recent call last):
        setgrad.errors.DataError: .: this is a folder; name a file, such as one inside it
    """
    try:
        if not path.name or path.is_dir():
            raise DataError(f"{path}: this is a folder; name a file, such as one inside it")
        if path.exists() and not path.is_file():
            # The new file would replace it: a file where /dev/null was.
            raise _unwritable(path, "it is a device or a pipe")
        above = next(parent for parent in path.absolute().parents if parent.exists())
        is_folder = above.is_dir() and os.access(above, os.W_OK)
    except OSError as error:
        raise _unwritable(path, str(error)) from error
    if not is_folder:
        raise _unwritable(path, f"{above} is not a folder that takes files")
    check_file_system(path)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a draft in the same folder; it replaces `path` when the block ends without an error.

    At every moment the path is the old file or the new one, whole, also after a crash. What a dead process left behind
    is removed by the next write. The new file has the permissions of the old one.

    Raises:
        DataError: If the file cannot be written, or another process writes it.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_write(Path(folder, "deep", "note.txt")) as draft:
        ...         _ = draft.write_text("done")
        ...     Path(folder, "deep", "note.txt").read_text()
        'done'
    """
    check_writable(path)
    # A symbolic link stays, and its target is replaced.
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(_lock_of(path), path, wait=_WAIT), _draft(path) as draft:
            yield draft
            _disk.sync(draft)
            _replace(draft, path)
    except OSError as error:
        raise _unwritable(path, str(error)) from error


@contextmanager
def owned_file(path: Path) -> Iterator[Path]:
    """Yield the target of a path that no other process may write inside the block, for `replace_file`.

    Raises:
        DataError: If another process owns the file, or it cannot be written.
    """
    check_writable(path)
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, str(error)) from error
    with locked(_lock_of(target), path, wait=0):
        yield target


def replace_file(path: Path, content: bytes, *, keep_previous: bool) -> None:
    """Replace a file that the caller owns; the one before may stay as `previous_of(path)`.

    Raises:
        DataError: If the file cannot be written.
    """
    try:
        with _draft(path) as draft:
            _disk.write(draft, content)
            if keep_previous and path.exists():
                _copy(path, previous_of(path))
            _replace(draft, path)
    except OSError as error:
        raise _unwritable(path, str(error)) from error


def previous_of(path: Path) -> Path:
    """Return the name of the version before, which `replace_file` keeps."""
    return path.with_name(f"{path.name}.previous")


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    # One name is enough, because the lock is held; a draft of a dead process is replaced.
    draft = path.with_name(f".{path.name}.part")
    try:
        _disk.create(draft, path)
        yield draft
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _replace(draft: Path, path: Path) -> None:
    _disk.take_access(draft, path)
    os.replace(draft, path)
    _disk.sync_folder(path.parent)


def _copy(path: Path, target: Path) -> None:
    """Give a file a second name, atomically; the first one stays."""
    if target.exists() and path.samefile(target):
        # An earlier process died in between. The rename of one name over another of the same file does nothing.
        return
    link = path.with_name(f".{target.name}.part")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:
        # Not every file system has hard links.
        shutil.copy2(path, link)
        _disk.sync(link)
    os.replace(link, target)


def _unwritable(path: Path, cause: str) -> DataError:
    return DataError(f"{path}: this cannot be written: {cause}; choose a path that can be")
