"""A limit on the memory of a table: a small compressed file may hold more rows than any machine can."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import final

from setgrad.errors import DataError

# Sets another limit, in bytes.
_VARIABLE = "SETGRAD_MAX_TABLE_BYTES"
# Of the memory that is free when reading starts; the rest is for what is computed from the table.
_SHARE = 0.75
# A number takes at least as much, in float32.
_NUMBER_BYTES = 4


@final
class MemoryLimit:
    """Counts the rows of a table while they are read.

    Args:
        name: The table, for the message.
        columns: How many columns are read.
    """

    def __init__(self, name: str, columns: int) -> None:
        self._name, self._row_bytes, self._rows = name, columns * _NUMBER_BYTES, 0
        self._limit = memory_limit()

    def add(self, rows: int) -> None:
        """Count more rows.

        Raises:
            DataError: If the table is too large.
        """
        self._rows += rows
        if self._limit is not None and self._rows * self._row_bytes > self._limit:
            raise DataError(
                f"{self._name}: {self._rows} rows and more need above {self._limit / 2**30:.1f} GiB of memory; read "
                f"fewer columns, or a part of the rows, or raise the limit by the environment variable {_VARIABLE}, in "
                "bytes"
            )


def memory_limit() -> float | None:
    """Return how many bytes a table may take; None if that is not known.

    Raises:
        DataError: If the environment variable is not a number.
    """
    text = os.environ.get(_VARIABLE)
    if text is not None:
        try:
            return float(text)
        except ValueError:
            raise DataError(f"the environment variable {_VARIABLE} must be a number of bytes, not {text!r}") from None
    free = _free_bytes()
    return None if free is None else _SHARE * free


def _free_bytes() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
