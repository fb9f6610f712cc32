"""Folders whose files are replaced together, or not at all.

The files of a new version are written to a folder inside, `.setgrad-part`. Its rename to `.setgrad-next` is the one
moment at which the new version replaces the old one: from then on readers take files from there. Then they are moved
into the folder one by one, the manifest last. A writer that finds `.setgrad-next` moves what a dead process did not.

So nothing outside of the folder is touched, and the folder itself is never moved: it may be a mount point or the
current folder, keeps its permissions, and other files in it stay where they are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from setgrad._files import _disk
from setgrad._files._json import from_json, to_json
from setgrad._files._lock import locked
from setgrad._files._mounts import check_file_system
from setgrad.errors import DataError, FileFormatError

MANIFEST = "manifest.json"
_FORMAT, _VERSION = "setgrad.manifest", 1
_PART, _NEXT, _LOCK, _PROBE = ".setgrad-part", ".setgrad-next", ".setgrad-lock", ".setgrad-probe"
# What an interrupted writer leaves.
LEFTOVERS = (_PART, _NEXT, _LOCK, _PROBE)
# For how many seconds to wait for another process that writes the folder.
_WAIT = 60.0
# How often a reader starts again because writers replaced the files while it read them.
_ATTEMPTS = 100


def check_takes_files(folder: Path) -> None:
    """Raise an OSError if nothing can be created in a folder; permissions do not tell.

    Raises:
        DataError: If the file system cannot replace a file as a whole.
    """
    check_file_system(folder)
    probe = folder / _PROBE
    probe.mkdir(exist_ok=True)
    with suppress(FileNotFoundError):
        probe.rmdir()


def write_folder(folder: Path, files: Mapping[str, bytes], *, obsolete: Iterable[str] = ()) -> None:
    """Write files and their manifest into a folder, which other programs see as the old or the new version.

    Args:
        folder: The folder; it is created if it is missing. Other files in it stay.
        files: Contents by name.
        obsolete: Names of files of earlier versions, which are removed.

    Raises:
        DataError: If the folder cannot be written, or another process writes it.
    """
    contents = {**files, MANIFEST: _manifest(files)}
    part = folder / _PART
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / _LOCK, folder, wait=_WAIT):
            _move(folder)
            _remove(part)
            try:
                os.mkdir(part)
                for name, content in contents.items():
                    _disk.create(part / name, folder / name)
                    _disk.write(part / name, content)
                    _disk.take_access(part / name, folder / name)
                _disk.take_access(part, folder)
                _disk.sync_folder(part)
                os.rename(part, folder / _NEXT)
            except BaseException:
                _remove(part)
                raise
            _disk.sync_folder(folder)
            _move(folder)
            for name in obsolete:
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                (folder / _PROBE).rmdir()
    except OSError as error:
        # A folder that was only made for this.
        with suppress(OSError):
            folder.rmdir()
        raise DataError(f"{folder} cannot be written: {error}; choose another folder") from error


def _move(folder: Path) -> None:
    """Move the files of a complete version to their places."""
    source = folder / _NEXT
    if not source.is_dir():
        return
    for name in sorted(os.listdir(source), key=lambda name: name == MANIFEST):
        os.replace(source / name, folder / name)
    _disk.sync_folder(folder)
    os.rmdir(source)


def _remove(part: Path) -> None:
    # What cannot be removed is reported when it is in the way.
    shutil.rmtree(part, ignore_errors=True)


def is_as_written(folder: Path, name: str) -> bool:
    """Return whether a file is missing, or has the content that the manifest tells: nobody else wrote it."""
    manifest, places = _find_manifest(folder)
    content = _read_first([place / name for place in places or (folder,)])
    entries = None if manifest is None else _parse(manifest)
    return content is None or (entries is not None and entries.get(name) == _entry(content))


def read_folder(
    folder: Path, *, names: Iterable[str], remedy: str, unread: Iterable[str] = ()
) -> dict[str, bytes] | None:
    """Return the contents of the files, all of one version; None if the folder has no manifest.

    Args:
        folder: The folder.
        names: The files that a version holds.
        remedy: The end of messages.
        unread: Files that a version may hold too, which are not read and may have been changed.

    Raises:
        FileFormatError: If a file is missing or was changed.
    """
    seen: bytes | None = None
    for _ in range(_ATTEMPTS):
        manifest, places = _find_manifest(folder)
        if manifest is None:
            return None
        try:
            return _read_files(manifest, places, names, unread, remedy)
        except FileFormatError:
            # A writer may have replaced the files meanwhile.
            if manifest == seen:
                break
            seen = manifest
    # Without a writer it is damage.
    with suppress(DataError), locked(folder / _LOCK, folder, wait=_WAIT):
        manifest, places = _find_manifest(folder)
        return None if manifest is None else _read_files(manifest, places, names, unread, remedy)
    # This process may not lock the folder.
    return None if manifest is None else _read_files(manifest, places, names, unread, remedy)


def _find_manifest(folder: Path) -> tuple[bytes | None, tuple[Path, ...]]:
    """Return the manifest of the current version, and the folders that may hold its files, in this order."""
    for places in ((folder / _NEXT, folder), (folder,)):
        with suppress(FileNotFoundError, NotADirectoryError):
            return (places[0] / MANIFEST).read_bytes(), places
    return None, ()


def _read_files(
    manifest: bytes, places: tuple[Path, ...], names: Iterable[str], unread: Iterable[str], remedy: str
) -> dict[str, bytes]:
    entries, path = _parse(manifest), places[-1] / MANIFEST
    if entries is None or entries.keys() - set(unread) != set(names):
        raise FileFormatError(f"{path} is damaged: it does not list the files of this folder; {remedy}")
    files = {}
    for name in names:
        content = _read_first([place / name for place in places])
        if content is None:
            raise FileFormatError(f"{places[-1]} has no {name}; {remedy}")
        if entries[name] != _entry(content):
            raise FileFormatError(f"{places[-1] / name} was changed or damaged since it was written; {remedy}")
        files[name] = content
    return files


def _read_first(paths: list[Path]) -> bytes | None:
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            return path.read_bytes()
    return None


def _manifest(files: Mapping[str, bytes]) -> bytes:
    entries = {name: _entry(content) for name, content in files.items()}
    return to_json({"format": _FORMAT, "version": _VERSION, "files": entries})


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _parse(manifest: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        content = from_json(manifest)
        if isinstance(content, dict) and (content.get("format"), content.get("version")) == (_FORMAT, _VERSION):
            entries = content.get("files")
            return entries if isinstance(entries, dict) else None
    return None
