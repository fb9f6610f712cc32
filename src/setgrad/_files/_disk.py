"""Writes that are on the disk when they return, with the permissions of what they replace."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

# Some file systems, as those of networks, do not synchronise folders; they do it themselves, or not at all.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR}


def create(path: Path, replaced: Path) -> None:
    """Create an empty file that nobody else can read before it has the permissions of the file that it replaces.

    What has the name is a draft of a dead process, or a link that somebody put there: it is removed, not followed.
    """
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if replaced.exists() else 0o666))


def write(path: Path, content: bytes) -> None:
    """Write all bytes to a file and to the disk."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def take_access(path: Path, replaced: Path) -> None:
    """Give a file or folder the owner, the group and the permissions of another, as far as this user may.

    Where the group cannot be kept, another group gets no more rights than everybody.
    """
    try:
        wanted = os.stat(replaced)
    except FileNotFoundError:
        return
    mode, own = wanted.st_mode & 0o7777, os.stat(path)
    if hasattr(os, "chown") and (own.st_uid, own.st_gid) != (wanted.st_uid, wanted.st_gid):
        for user in (wanted.st_uid, -1):
            with suppress(OSError):
                os.chown(path, user, wanted.st_gid)
                break
        else:
            mode &= ~0o070 | (mode & 0o007) << 3
    os.chmod(path, mode)
