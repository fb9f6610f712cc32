"""One column of a piece of a table as numbers or flags; what does not fit is named with its row.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.errors import DataError

_WORDS = ["0", "1", "false", "true"]


@dataclass(frozen=True)
class Column:
    """A column of one piece; `before` rows of the table came before it."""

    path: Path
    name: str
    array: pa.Array
    before: int

    @staticmethod
    def of(path: Path, batch: pa.RecordBatch, name: str, before: int) -> Column:
        """Take a column out of a piece and unpack how it was stored."""
        array = plain(batch.column(batch.schema.get_field_index(name)))
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_string_view(array.type):
            array = array.cast(pa.large_string())
        return Column(path, name, array, before)

    def value(self, position: int) -> Any:
        """Return what stands at a position of the piece, as a Python object."""
        return self.array[position].as_py()

    def fault(self, position: int, text: str) -> DataError:
        """Make the error about a position of the piece."""
        return fault(self.path, self.name, self.before + int(position), text)

    def refuse_nulls(self, remedy: str) -> None:
        """Raise at the first row without a value."""
        if self.array.null_count:
            position = np.flatnonzero(self.array.is_null().to_numpy(zero_copy_only=False))[0]
            raise self.fault(position, f"the value is missing; {remedy}")


def plain(array: pa.Array) -> pa.Array:
    """Return what an array of a type of its own holds: its storage, but texts for UUIDs, as which people know them."""
    if isinstance(array.type, pa.UuidType):
        return pa.array([None if found is None else str(found) for found in array.to_pylist()], pa.string())
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def fault(path: Path, column: str, row: int, text: str) -> DataError:
    """Make an error that names file, column and row; `row` counts from 0, the message from 1."""
    return DataError(f"{path}: column {column!r}, row {row + 1} (counted from 1, without the header): {text}")


def numbers(column: Column, *, flag: bool = False) -> np.ndarray:
    """Return the column as real numbers, whatever numeric type it has; NaN and infinity pass.

    A column of true and false counts as 1 and 0; `flag` says that it is one though it is stored as text.
    """
    column.refuse_nulls("fill it in, drop the row, or leave the column out")
    kind = column.array.type
    if flag or types.is_boolean(kind):
        return flags(column).astype(np.float64)
    if types.is_integer(kind) or types.is_floating(kind):
        return column.array.to_numpy(zero_copy_only=False)
    if types.is_decimal(kind):
        return column.array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not _is_text(kind):
        raise column.fault(0, f"{column.value(0)!r} is not a number but {kind}; give one number in each row")
    text = pc.utf8_trim_whitespace(column.array)
    parsed = _parse(text)
    if parsed is None:
        position = _first_unparsable(text)
        raise column.fault(position, f"{column.value(position)!r} is not a number; correct it or leave the column out")
    return parsed.to_numpy(zero_copy_only=False)


def flags(column: Column) -> np.ndarray:
    """Return the column as booleans; accepts booleans, whole numbers 0 and 1, and the same or true / false as text."""
    column.refuse_nulls("write true or false in every row")
    kind = column.array.type
    if types.is_boolean(kind):
        return column.array.to_numpy(zero_copy_only=False)
    if types.is_integer(kind):
        found = column.array.to_numpy(zero_copy_only=False)
        good = (found == 0) | (found == 1)
    elif _is_text(kind):
        words = pc.utf8_lower(pc.utf8_trim_whitespace(column.array))
        found = pc.index_in(words, value_set=pa.array(_WORDS, words.type)).fill_null(-1).to_numpy(zero_copy_only=False)
        good = found >= 0
    else:
        found = good = np.zeros(len(column.array), dtype=bool)
    if not good.all():
        position = np.flatnonzero(~good)[0]
        raise column.fault(
            position, f"{column.value(position)!r} is neither true nor false; use booleans, 0 / 1 or true / false"
        )
    return found % 2 == 1


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _parse(text: pa.Array) -> pa.Array | None:
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _first_unparsable(text: pa.Array) -> int:
    # PyArrow says that some value fails, not which; halving finds the first in a few casts.
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _parse(text.slice(low, middle - low)) is None else (middle, high)
    return low
