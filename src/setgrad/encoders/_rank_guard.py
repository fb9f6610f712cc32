"""Processes of a group that end together: a thread of each exchanges a sign of life with the others.

The signs go through a gloo group of their own, whatever the backend of the data. A process that dies closes its
connections, which the others notice at once; one that is stopped lets them run into the timeout. The thread then raises
the error in the thread that works, and ends the process if that does not stop: it may wait inside torch, or in a read.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, final

import torch
import torch.distributed as dist

from setgrad._launch import launched
from setgrad.encoders._ranks import is_lost_connection
from setgrad.errors import LostRankError, OptionError, SetgradError, parameter

# The numbers of the groups that are started here, the same in all processes.
_GROUPS = count()
# Seconds between two signs of life.
_INTERVAL = 0.2
# Seconds that a process has to end by itself after another one was lost.
_GRACE = 5.0
_ENDED = "another process of the group ended, or did not answer for {timeout:g} s"
_FAILED = "another process of the group failed"
_ABSENT = "not all processes of the group started within {timeout:g} s"


@contextmanager
def guard_ranks(backend: str | None = None, *, timeout: float = 300.0, **options: Any) -> Iterator[None]:
    """Run a block in all processes of a group: if one of them is lost, all others end with a `LostRankError`.

    A process is lost if it dies or does not run at all for `timeout` seconds, in whatever it does: start, read data,
    compute, save. An error in one process ends the others too. Each leaves the block when all have reached its end.
    Errors of torch about lost connections become `LostRankError`. A process that does not end within five seconds of
    the loss, because it waits inside torch or in a read, writes the message and exits with code 1; its `finally` blocks
    do not run. So do not go on after a `LostRankError`, but start all processes again.

    Args:
        backend: As for `torch.distributed.init_process_group`; not used if there is a process group.
        timeout: Seconds. It is also the timeout of the group that is started here: a process that waits for another one
            in a collective operation for longer ends too. So it must be longer than the longest work between two
            operations. A group that is there keeps its own timeout.
        **options: More arguments of `init_process_group`, where torchrun does not set them.

    Raises:
        LostRankError: If another process is lost or fails, or does not start in time.
        OptionError: If `timeout` is not positive, or this torch has no gloo.

    Examples:
        >>> import tempfile
        >>> meet = f"file://{tempfile.mkdtemp()}/meet"
        >>> with guard_ranks("gloo", timeout=60, init_method=meet, rank=0, world_size=1):
        ...     dist.get_world_size()
        1
    """
    if not timeout > 0:
        raise OptionError(f"{parameter('timeout')} must be a positive number of seconds, not {timeout!r}")
    if not (dist.is_available() and dist.is_gloo_available()):
        raise OptionError("this build of torch has no gloo, which carries the signs of life; install another one")
    starts = not dist.is_initialized()
    watch = _start(backend, timeout, options)
    try:
        try:
            yield
        except BaseException:
            watch.leave(failed=True)
            raise
        watch.leave()
    except Exception as error:
        is_told = error.args not in ((), LostRankError().args)
        if isinstance(error, SetgradError) and is_told:
            raise
        cause = watch.lost
        if cause is None and is_lost_connection(error):
            # A process that is late in a collective operation still gives signs of life.
            cause = _message(_ENDED, timeout)
        if cause is None:
            raise
        raise LostRankError(f"{cause}\n{type(error).__name__}: {error}" if is_told else cause) from error
    if watch.lost is not None:
        raise LostRankError(watch.lost)
    if starts:
        dist.destroy_process_group()


def _start(backend: str | None, timeout: float, options: dict[str, Any]) -> _Watch:
    # torch waits without a limit in some steps, as for the answer of a stopped process.
    deadline = threading.Timer(timeout + _GRACE, _end, [_message(_ABSENT, timeout)])
    deadline.daemon = True
    deadline.start()
    limit = timedelta(seconds=timeout)
    try:
        if not dist.is_initialized():
            is_named = bool({"init_method", "store"} & options.keys())
            where = {} if is_named or launched() is None else _meeting_point(limit)
            dist.init_process_group(backend, timeout=limit, **where, **options)
        return _Watch(dist.new_group(backend="gloo", timeout=limit), timeout)
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise LostRankError(f"{_message(_ABSENT, timeout)}\n{error}") from error
    finally:
        deadline.cancel()


def _meeting_point(limit: timedelta) -> dict[str, Any]:
    """Return where the processes that torchrun started find each other, as arguments of `init_process_group`.

    One store lasts for all groups of the program, and each group has its own keys. With those of a group before, a
    process would connect to where another one listens no longer.
    """
    store, rank, size = _find_store(os.environ["MASTER_PORT"], limit)
    return {"store": dist.PrefixStore(f"group {next(_GROUPS)}", store), "rank": rank, "world_size": size}


@cache
def _find_store(port: str, limit: timedelta) -> tuple[Any, int, int]:
    found: tuple[Any, int, int] = next(iter(dist.rendezvous("env://", timeout=limit)))
    return found


@final
class _Watch:
    """The thread that exchanges signs of life until all processes have left the block, or one is lost.

    Attributes:
        lost: What happened to another process; None while nothing did.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        self.lost: str | None = None
        self._group, self._timeout = group, timeout
        self._working = threading.get_ident()
        self._left, self._failed, self._lock = threading.Event(), False, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="setgrad-ranks", daemon=True)
        self._thread.start()

    def leave(self, *, failed: bool = False) -> None:
        """Tell the others that this process is at the end of the block; return when all are, or one is lost."""
        with self._lock:
            self._failed = failed
            self._left.set()
            # An error that was raised here a moment ago, and did not arrive yet.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._working), None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._exchange():
                if self._left.is_set():
                    time.sleep(_INTERVAL)
                else:
                    self._left.wait(_INTERVAL)
        except RuntimeError as error:
            self.lost = f"{_message(_ENDED, self._timeout)}\n{error}"
        if self.lost is None:
            return
        with self._lock:
            if self._left.is_set():
                return
            # An error in the thread that works, as soon as it runs Python code.
            kind = ctypes.py_object(LostRankError)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._working), kind)
        if not self._left.wait(_GRACE):
            _end(self.lost)

    def _exchange(self) -> bool:
        """Return whether to go on: some process works, and none failed."""
        own = torch.tensor([not self._left.is_set(), self._failed], dtype=torch.int32)
        dist.all_reduce(own, group=self._group)
        works, failed = own.tolist()
        if failed and not self._failed:
            self.lost = _message(_FAILED, self._timeout)
        return bool(works) and not failed


def _message(text: str, timeout: float) -> str:
    return f"{text.format(timeout=timeout)}; {LostRankError.remedy}"


def _end(message: str) -> None:
    """End the process at once, with the message that an error would have."""
    print(f"{LostRankError.__name__}: {message}", file=sys.stderr, flush=True)
    os._exit(1)
