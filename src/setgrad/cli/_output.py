"""The standard output, which may be closed, full, or left by its reader; and the line that tells of an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO


def deliver(write: Callable[[TextIO], object]) -> int:
    """Let a result be written to the standard output, and return the exit code: 1 if there is no room for it.

    Nothing is shown where the output is closed, and a reader that goes away, such as `head`, has seen enough.
    """
    stream: TextIO | None = sys.stdout
    if stream is None:
        return 0
    try:
        write(stream)
        stream.flush()
    except BrokenPipeError:
        _forget(stream)
    except OSError as error:
        _forget(stream)
        return tell(f"the standard output cannot be written: {error}")
    return 0


def tell(message: str, code: int = 1) -> int:
    """Write one line about an error to the standard error, and return the exit code."""
    # Without a file, print would take the standard output.
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"error: {message}", file=sys.stderr)
    return code


def _forget(stream: TextIO) -> None:
    """Lead a stream nowhere, because Python tries once more at exit to write what is left in it."""
    # Streams that are no files, as in tests, hold nothing back.
    with suppress(OSError):
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
