"""What the command line writes: results on the standard output, and everything else on the standard error.

The standard output may be closed, full, or left by its reader. Tables are drawn by rich where it is installed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, TextIO

from setgrad._launch import is_first
from setgrad._text_table import TextTable, plain_table

if TYPE_CHECKING:
    from rich.console import Console

_STDOUT, _STDERR = 1, 2
# A file or a pipe has no width; this is wide enough that no cell is wrapped.
_FILE_WIDTH = 200


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


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show warnings without the place in the code that gave them."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual


@contextmanager
def printed_warnings(category: type[Warning]) -> Iterator[None]:
    """Print each warning on one line, also one of this category that was shown before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        yield
    # Of several processes all have the same warnings.
    for warning in caught if is_first() else ():
        print(f"warning: {warning.message}", file=sys.stderr)


def _discard(stream: TextIO) -> None:
    """Point a stream to the null device, because Python flushes it again at exit."""
    # Streams that are not files, as in tests, have no descriptor.
    with suppress(OSError):
        descriptor = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


def show(parts: Iterable[TextTable | str], stream: TextIO) -> None:
    """Write text and tables to a stream."""
    try:
        console = _make_console(stream)
    except ImportError:
        for part in parts:
            print(plain_table(part) if isinstance(part, TextTable) else part, file=stream)
        return
    for part in parts:
        text = part.title if isinstance(part, TextTable) else part
        if text:
            # Not wrapped, so that paths and commands can be copied.
            console.print(text, markup=False, soft_wrap=True)
        if isinstance(part, TextTable):
            console.print(_rich_table(part))


def _make_console(stream: TextIO) -> Console:
    from rich.console import Console

    class PipeSafeConsole(Console):
        """Raises an error if the reader is gone, where rich would end the process."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeSafeConsole(file=stream, width=None if stream.isatty() else _FILE_WIDTH, highlight=False)


def _rich_table(table: TextTable) -> object:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD)
    for name, numeric in zip(table.columns, table.numeric, strict=True):
        result.add_column(escape(name), justify="right" if numeric else "left")
    for row in table.rows:
        result.add_row(*map(escape, row))
    return result


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
