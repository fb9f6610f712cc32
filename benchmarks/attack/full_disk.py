"""A disk that is full at any moment of a save: the error is clear, the old version stays, and nothing is left."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks.attack.interruptions import Writer, new_folder, versions_of
from benchmarks.attack.verdicts import CRASH, ERROR, LOST, OTHER, SAME, TRACEBACK, fork
from setgrad.errors import SetgradError

# What a full disk refuses; it still renames and removes.
_REFUSED = ("write", "mkdir", "link", "fsync")


@contextmanager
def _full_from(number: int) -> Iterator[list[int]]:
    """Refuse operations that need space, from one of them on; yields how many were done."""
    done = [0]

    def refuse(operation: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **options: object) -> object:
            done[0] += 1
            if done[0] > number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return operation(*args, **options)

        return run

    patches = [patch.object(os, name, refuse(getattr(os, name))) for name in _REFUSED]
    for one in patches:
        one.start()
    try:
        yield done
    finally:
        for one in patches:
            one.stop()


def fill_at_every_operation(writer: Writer) -> Counter[str]:
    """Let the disk be full before each operation of a save over another version that needs space."""
    versions, result = versions_of(writer), Counter[str]()
    folder = new_folder()
    writer.save(folder, 0)
    with _full_from(10**9) as done:
        writer.save(folder, 1)
    for number in range(done[0]):
        writer.save(folder, 0)
        with _full_from(number):
            verdict = _try(partial(writer.save, folder, 1))
        result[verdict if verdict == TRACEBACK else _after(writer, folder, versions, verdict)] += 1
    shutil.rmtree(folder)
    return result


def limit_file_sizes(writer: Writer, cases: int) -> Counter[str]:
    """Save with limits of the size of a file, from nothing to as much as is needed."""
    versions, result = versions_of(writer), Counter[str]()
    folder = new_folder()
    writer.save(folder, 0)
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    for number in range(cases):
        writer.save(folder, 0)
        child = fork(partial(_save_within, writer, folder, largest * number // cases))
        _, status = os.waitpid(child, 0)
        code = os.WEXITSTATUS(status)
        verdict = CRASH if os.WIFSIGNALED(status) else {0: SAME, 1: ERROR}.get(code, TRACEBACK)
        result[verdict if verdict in (CRASH, TRACEBACK) else _after(writer, folder, versions, verdict)] += 1
    shutil.rmtree(folder)
    return result


def _save_within(writer: Writer, folder: Path, limit: int) -> int:
    # As Python starts; without it the system ends the process.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return {SAME: 0, ERROR: 1}.get(_try(partial(writer.save, folder, 1)), 2)


def fill_small_disks(writer: Writer, cases: int) -> Counter[str]:
    """Save to disks of memory that are too small by more or less; nothing where this user may not mount any."""
    versions, result = versions_of(writer), Counter[str]()
    folder = new_folder()
    writer.save(folder, 0)
    needed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    for number in range(cases):
        # Enough for one version, and for a part of the second one.
        size = needed + 16384 + int(1.5 * needed * number / cases)
        place = new_folder()
        with mounted(place, "-t", "tmpfs", "-o", f"size={size}") as is_mounted:
            if not is_mounted:
                return result
            if _try(partial(writer.save, place, 0)) == ERROR:
                result[ERROR] += 1
                continue
            verdict = _try(partial(writer.save, place, 1))
            is_right = verdict != TRACEBACK and _read(writer, place) in versions and not writer.leftovers(place)
            result[verdict if is_right else LOST] += 1
    return result


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[bool]:
    """Mount something on a folder; yields whether this user may."""
    try:
        done = subprocess.run(["mount", *options, "none", str(place)], capture_output=True, check=False)
        is_mounted = not done.returncode
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(place)], check=True)


def _try(action: Callable[[], object]) -> str:
    try:
        action()
        return SAME
    except SetgradError:
        return ERROR
    except Exception:
        return TRACEBACK


def _read(writer: Writer, folder: Path) -> str | None:
    try:
        return writer.read(folder)
    except (SetgradError, OSError):
        return None


def _after(writer: Writer, folder: Path, versions: list[str], verdict: str) -> str:
    """Return the verdict, if an old or new version is there, and the next save leaves nothing else."""
    found = _read(writer, folder)
    if found not in versions:
        return LOST if found is None else OTHER
    writer.save(folder, 1)
    return verdict if _read(writer, folder) == versions[1] and not writer.leftovers(folder) else LOST
