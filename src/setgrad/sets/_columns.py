"""Conversion of table columns to numbers or booleans, with errors that name the file, the column and the row.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.errors import DataError

# Texts that are read as booleans: false at even positions, true at odd ones.
_BOOLEAN_TEXTS = ["0", "1", "false", "true"]


@final
@dataclass(frozen=True)
class Column:
    """One column of a chunk of a table; `first_row` is the row of the table at which the chunk starts."""

    path: Path
    name: str
    array: pa.Array
    first_row: int

    @staticmethod
    def from_batch(path: Path, batch: pa.RecordBatch, name: str, first_row: int) -> Column:
        """Return a column of a chunk, with extension types, dictionaries and views converted to plain arrays."""
        array = unwrap_extension(batch.column(batch.schema.get_field_index(name)))
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_string_view(array.type):
            array = array.cast(pa.large_string())
        return Column(path, name, array, first_row)

    def value(self, position: int) -> Any:
        """Return the value at a position of the chunk as a Python object."""
        return self.array[position].as_py()

    def error(self, position: int, text: str) -> DataError:
        """Return an error about a position of the chunk."""
        return row_error(self.path, self.name, self.first_row + int(position), text)

    def check_no_nulls(self, remedy: str) -> None:
        """Raise a `DataError` for the first row without a value."""
        if self.array.null_count:
            position = np.flatnonzero(self.array.is_null().to_numpy(zero_copy_only=False))[0]
            raise self.error(position, f"the value is missing; {remedy}")


def unwrap_extension(array: pa.Array) -> pa.Array:
    """Return the storage of an array of an extension type, and UUIDs as text, which is how people write them."""
    if isinstance(array.type, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def row_error(path: Path, column: str, row: int, text: str) -> DataError:
    """Return an error that names file, column and row; `row` counts from 0, the message from 1."""
    return DataError(f"{path}: column {column!r}, row {row + 1} (counted from 1, without the header): {text}")


def read_numbers(column: Column, *, boolean: bool = False) -> np.ndarray:
    """Return the column as real numbers, whatever numeric type it has; NaN and infinity are allowed.

    Booleans become 1 and 0; `boolean` says that the column holds booleans even though it is stored as text.
    """
    column.check_no_nulls("fill it in, drop the row, or leave the column out")
    dtype = column.array.type
    if boolean or types.is_boolean(dtype):
        return read_booleans(column).astype(np.float64)
    if types.is_integer(dtype) or types.is_floating(dtype):
        return column.array.to_numpy(zero_copy_only=False)
    if types.is_decimal(dtype):
        return column.array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not _is_text(dtype):
        raise column.error(0, f"{column.value(0)!r} is not a number but {dtype}; write one number in each row")
    text = pc.utf8_trim_whitespace(column.array)
    parsed = _parse(text)
    if parsed is None:
        position = _first_unparsable(text)
        raise column.error(position, f"{column.value(position)!r} is not a number; correct it or leave the column out")
    return parsed.to_numpy(zero_copy_only=False)


def read_booleans(column: Column) -> np.ndarray:
    """Return the column as booleans; it may hold booleans, the integers 0 and 1, or 0, 1, true and false as text."""
    column.check_no_nulls("write true or false in every row")
    dtype = column.array.type
    if types.is_boolean(dtype):
        return column.array.to_numpy(zero_copy_only=False)
    if types.is_integer(dtype):
        values = column.array.to_numpy(zero_copy_only=False)
        valid = (values == 0) | (values == 1)
    elif _is_text(dtype):
        texts = pc.utf8_lower(pc.utf8_trim_whitespace(column.array))
        codes = pc.index_in(texts, value_set=pa.array(_BOOLEAN_TEXTS, texts.type)).fill_null(-1)
        values = codes.to_numpy(zero_copy_only=False)
        valid = values >= 0
    else:
        values = valid = np.zeros(len(column.array), dtype=bool)
    if not valid.all():
        position = np.flatnonzero(~valid)[0]
        value = column.value(position)
        raise column.error(position, f"{value!r} is neither true nor false; use booleans, 0 / 1 or true / false")
    return values % 2 == 1


def _is_text(dtype: pa.DataType) -> bool:
    return bool(types.is_string(dtype) or types.is_large_string(dtype))


def _parse(text: pa.Array) -> pa.Array | None:
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _first_unparsable(text: pa.Array) -> int:
    # PyArrow does not say which value fails; bisection finds the first one with few casts.
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _parse(text.slice(low, middle - low)) is None else (middle, high)
    return low
