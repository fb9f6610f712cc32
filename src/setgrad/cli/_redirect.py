"""Redirection of the standard output to the standard error while a command runs, so that only results remain."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_STDOUT, _STDERR = 1, 2


@contextmanager
def redirect_to_stderr() -> Iterator[None]:
    """Send to the standard error what Python prints, and what C code prints directly, as HiGHS inside SciPy does."""
    with redirect_stdout(sys.stderr), _ensure_open(_STDERR), _ensure_open(_STDOUT), _redirect_descriptor():
        yield


@contextmanager
def _redirect_descriptor() -> Iterator[None]:
    _flush_c()
    saved = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        # Buffered text of C code would otherwise appear beside the result.
        _flush_c()
        os.dup2(saved, _STDOUT)
        os.close(saved)


@contextmanager
def _ensure_open(descriptor: int) -> Iterator[None]:
    """Point a closed descriptor to the null device, because the next file that is opened would get its number."""
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)
    else:
        yield
        return
    try:
        yield
    finally:
        os.close(descriptor)


def _flush_c() -> None:
    # Where this is not possible, C code flushes its buffer when it likes.
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).fflush(None)
