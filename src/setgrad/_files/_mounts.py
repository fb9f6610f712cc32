"""Which file system a folder is on, and those that cannot replace a file as a whole."""

from __future__ import annotations

import re
from pathlib import Path

from setgrad.errors import DataError

_TABLE = Path("/proc/mounts")
# A rename there copies, or locks hold in one machine only: storage of objects, and folders over SSH, FTP and the web.
_UNSAFE = re.compile(r"fuse\.(sshfs|s3fs|goofys|gcsfuse|mount-s3|rclone|blobfuse2?|curlftpfs|geesefs)|davfs2?")
# How the table writes a space, a tab, a line end and a backslash.
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(path: Path) -> str:
    """Return the type of the file system of a path that need not exist yet; "" where the system does not say.

    Examples:
        >>> file_system_of(Path("/proc")) in ("proc", "")
        True
    """
    try:
        lines = _TABLE.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    found, longest = "", -1
    target = path.resolve()
    for line in lines:
        _, place, kind, *_ = [*line.split(" "), "", "", ""]
        folder = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), place))
        # Of two on one folder the later one hides the other.
        if place and target.is_relative_to(folder) and len(folder.parts) >= longest:
            found, longest = kind, len(folder.parts)
    return found


def check_file_system(path: Path) -> None:
    """Check that the file system of a path can replace files as a whole.

    Raises:
        DataError: If it cannot.
    """
    kind = file_system_of(path)
    if _UNSAFE.fullmatch(kind):
        raise DataError(
            f"{path} is on {kind}, which cannot replace a file as a whole; write to a folder of this machine, then "
            "copy it there"
        )
