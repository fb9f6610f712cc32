"""One writer at a time: a lock file that names the process that holds it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from setgrad.errors import DataError


@contextmanager
def locked(lock: Path, what: Path, *, wait: float) -> Iterator[None]:
    """Hold a lock inside the block. The system releases it when the process ends, however it ends.

    Args:
        lock: The lock file.
        what: What it protects, for messages.
        wait: For how many seconds to wait for another process.

    Raises:
        DataError: If another process holds the lock for longer, or the file system has no locks.
    """
    from filelock import FileLock, Timeout

    holder = FileLock(lock)
    try:
        holder.acquire(timeout=wait)
    except Timeout:
        raise DataError(
            f"{what} is in use by {_read_holder(lock)}; wait until that ends, or name another path"
        ) from None
    except (OSError, NotImplementedError) as error:
        raise DataError(f"{what}: this cannot be locked: {error}; choose a path where files can be written") from error
    try:
        with suppress(OSError):
            # The disk may be full. Then the message of others does not name this process.
            lock.write_text(
                f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            )
        yield
    finally:
        # Before the release: a process that waits takes a lock file without a name for none, and makes a new one.
        with suppress(OSError):
            lock.unlink()
        holder.release()


def _read_holder(lock: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return lock.read_text()[:200] or "another process"
    return "another process"
