"""What is printed while a command works is no result: it goes to the standard error, whoever prints it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

_OUT, _ERR = 1, 2


@contextmanager
def aside() -> Iterator[None]:
    """Send to the standard error what Python prints, and what C prints past Python, as HiGHS does inside SciPy."""
    with redirect_stdout(sys.stderr), _occupied(_ERR), _occupied(_OUT), _led_to_error():
        yield


@contextmanager
def _led_to_error() -> Iterator[None]:
    _flush_c()
    kept = os.dup(_OUT)
    os.dup2(_ERR, _OUT)
    try:
        yield
    finally:
        # What C still holds back would else come out beside the result.
        _flush_c()
        os.dup2(kept, _OUT)
        os.close(kept)


@contextmanager
def _occupied(descriptor: int) -> Iterator[None]:
    """Let a closed descriptor lead nowhere for a while: the next file to be opened would get its number."""
    try:
        os.fstat(descriptor)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != descriptor:
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
    else:
        yield
        return
    try:
        yield
    finally:
        os.close(descriptor)


def _flush_c() -> None:
    # Where C cannot be asked, what it holds back comes out when it likes.
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).fflush(None)
