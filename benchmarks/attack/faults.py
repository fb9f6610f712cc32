"""A process that dies before one of its file operations, simulated: from there on it changes nothing any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, final
from unittest.mock import patch

# Every operation of `os` that changes a file or a folder.
OPERATIONS = ("chmod", "chown", "fsync", "link", "mkdir", "remove", "rename", "replace", "rmdir", "unlink", "write")


@final
class Crash(BaseException):
    """The process is dead."""


@final
class FaultyDisk:
    """Counts file operations, and fails from one of them on.

    Args:
        deadly: Number of the operation before which the process dies, counted from 0; None for never.
        end: Ends the process; None to end only what is inside the block.
    """

    def __init__(self, deadly: int | None = None, end: Callable[[], Any] | None = None) -> None:
        self.deadly, self.done, self.end = deadly, 0, end

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the operations inside the block; a crash ends it."""
        patches = [patch.object(os, name, self._counted(getattr(os, name), name)) for name in OPERATIONS]
        patches.append(patch.object(os, "open", self._counted_open(os.open)))
        for one in patches:
            one.start()
        try:
            with suppress(Crash):
                yield
        finally:
            for one in patches:
                one.stop()

    def _step(self) -> bool:
        """Count an operation; return whether it is the one that is not done."""
        self.done += 1
        if self.deadly is None or self.done <= self.deadly:
            return False
        return self.done == self.deadly + 1

    def _die_if_due(self) -> None:
        if self.deadly is not None and self.done > self.deadly:
            if self.end is not None:
                self.end()
            raise Crash

    def _counted(self, operation: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if self._step() and name == "write":
                # Half of it is on the disk.
                operation(args[0], bytes(args[1])[: len(args[1]) // 2])
            self._die_if_due()
            return operation(*args, **options)

        return run

    def _counted_open(self, operation: Callable[..., int]) -> Callable[..., int]:
        def run(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & (os.O_CREAT | os.O_TRUNC):
                self._step()
                self._die_if_due()
            return operation(path, flags, *args, **options)

        return run


def count_operations(action: Callable[[], object]) -> int:
    """Return the number of file operations of an action."""
    disk = FaultyDisk()
    with disk.installed():
        action()
    return disk.done


def crash_before(number: int, action: Callable[[], object], *, end: Callable[[], Any] | None = None) -> int:
    """Run an action that dies before its operation with this number, counted from 0, and with it what `end` ends."""
    with FaultyDisk(number, end).installed():
        action()
    return 0
