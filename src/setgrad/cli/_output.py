"""The standard output, which may be closed, full, or left by its reader; and error messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO


def write_result(write: Callable[[TextIO], object]) -> int:
    """Write a result to the standard output, and return the exit code: 1 if it cannot be written.

    A closed output, and a reader that stops reading, such as `head`, are no errors.
    """
    stream: TextIO | None = sys.stdout
    if stream is None:
        return 0
    try:
        write(stream)
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        print_error(f"the standard output cannot be written: {error}")
        return 1
    return 0


def print_error(message: str) -> None:
    """Write one line about an error to the standard error."""
    # With a closed standard error, print would write to the standard output.
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"error: {message}", file=sys.stderr)


def _discard(stream: TextIO) -> None:
    """Point a stream to the null device, because Python flushes it again at exit."""
    # Streams that are not files, as in tests, have no descriptor.
    with suppress(OSError):
        descriptor = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
