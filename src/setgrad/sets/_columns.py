"""The columns of a table: the role of each, and its values as numbers, booleans or ids.

Roles are checked before any row is read. Errors about values name the table, the column and the row. Imported only when
a table is read or written, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.errors import DataError, OptionError, parameter

# Texts that are read as booleans: false at even positions, true at odd ones.
_BOOLEAN_TEXTS = ["0", "1", "false", "true", "no", "yes", "f", "t", "n", "y", "off", "on", "0.0", "1.0"]
# Whole numbers beyond this are not exact as floating-point numbers.
_EXACT = 2**53
TOO_LONG = "has more digits than a number keeps; use it as an id or category, or subtract a constant from all values"


def resolve_features(
    table: str, schema: pa.Schema, features: Iterable[str] | None, roles: dict[str, str | None]
) -> list[str]:
    """Return the feature columns, after checking that every column exists once and has one role.

    Args:
        table: Name of the table, for messages.
        schema: The columns of the table.
        features: The columns that the user named; if None, all numeric columns without a role.
        roles: The other columns by role (the name of a parameter of `read_table`); None for a role without a column.

    Raises:
        OptionError: If `features` is one text instead of a list.
        DataError: If a column is missing, unnamed, ambiguous or named in two roles, or there are no features.
    """
    if isinstance(features, str):
        raise OptionError(f"{parameter('features')} must be a list of columns; write [{features!r}]")
    # A list: an array has no truth value, and an iterator can be read only once.
    named = None if features is None else list(features)
    role_of = check_roles(table, schema, roles, named or [])
    free = [field for field in schema if field.name not in role_of]
    columns = [field.name for field in free if _is_numeric(field.type)] if named is None else named
    if not columns:
        kinds = ", ".join(f"{field.name} ({field.type})" for field in free) or "none"
        raise DataError(f"{table}: no numeric column for {parameter('features')}; columns without a role: {kinds}")
    index = next((name for name in columns if named is None and is_index(name)), None)
    if index is not None:
        raise DataError(
            f"{table}: the column {index!r} looks like the index of a data frame, not like a feature; write the table "
            f"without it (index=False in pandas), rename it, or name the {parameter('features')}"
        )
    check_names(table, schema, [*role_of, *columns])
    return columns


def check_roles(table: str, schema: pa.Schema, roles: dict[str, str | None], features: list[str]) -> dict[str, str]:
    """Return the role of each column that the user named, after checking that it exists and has only that one.

    Raises:
        DataError: If columns are missing, one has no name, or one has two roles.
    """
    requested = [(role, name) for role, name in roles.items() if name is not None]
    requested += [("features", name) for name in features]
    names = set(schema.names)
    missing = [name for _, name in requested if name not in names]
    if missing:
        raise DataError(f"{table}: {describe_missing(list(dict.fromkeys(missing)), schema.names)}")
    role_of: dict[str, str] = {}
    for role, name in requested:
        if name in role_of:
            both = f"{parameter(role_of[name])} and as {parameter(role)}"
            raise DataError(f"{table}: column {name!r} is used as {both}; use it once")
        role_of[name] = role
    if "" in role_of:
        raise DataError(f"{table}: the column for {parameter(role_of[''])} has no name; give it one in the table")
    return role_of


def check_names(table: str, schema: pa.Schema, names: list[str]) -> None:
    """Raise a DataError if the table has one of these columns twice."""
    counts = Counter(schema.names)
    for name in dict.fromkeys(names):
        if counts[name] > 1:
            raise DataError(f"{table}: {counts[name]} columns are called {name!r}; rename them")


def describe_missing(missing: list[str], names: list[str]) -> str:
    """Return what to say about columns that do not exist."""
    parts = []
    for name in missing:
        close = get_close_matches(str(name), names, n=1)
        parts.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
    listed = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    return f"there is no column {' or '.join(parts)}; the columns are: {listed}"


def is_index(name: str) -> bool:
    """Return whether a column has the name that pandas gives to an unnamed index, in CSV and in Parquet."""
    return name == "" or name.startswith("__index_level_")


def _is_numeric(dtype: pa.DataType) -> bool:
    """Return whether a column of this type is a feature when the user names none.

    A column without any value has the type null. It counts, so that the user gets an error that names it.
    """
    return bool(types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype) or types.is_null(dtype))


@final
@dataclass(frozen=True)
class Column:
    """One column of a chunk of a table; `first_row` is the row of the table at which the chunk starts."""

    table: str
    name: str
    array: pa.Array
    first_row: int

    @staticmethod
    def from_batch(table: str, batch: pa.RecordBatch, name: str, first_row: int) -> Column:
        """Return a column of a chunk, with extension types, dictionaries, runs and views converted to plain arrays."""
        array = unwrap_extension(batch.column(batch.schema.get_field_index(name)))
        if types.is_dictionary(array.type):
            if types.is_string_view(array.type.value_type):
                # PyArrow cannot look up views, which polars writes.
                array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_string()))
            array = array.dictionary_decode()
        if types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        if types.is_string_view(array.type):
            array = array.cast(pa.large_string())
        return Column(table, name, array, first_row)

    def value(self, position: int) -> Any:
        """Return the value at a position of the chunk as a Python object, or as text if Python has no such value."""
        try:
            return self.array[position].as_py()
        except (pa.ArrowInvalid, OverflowError, ValueError):
            # A time far from now, or in a zone that is not known.
            return f"{self.array[position : position + 1].cast(pa.int64())[0]} in {self.array.type}"

    def error(self, position: int, text: str) -> DataError:
        """Return an error about a position of the chunk."""
        return row_error(self.table, self.name, self.first_row + int(position), text)

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


def row_error(table: str, column: str, row: int, text: str) -> DataError:
    """Return an error that names table, column and row; `row` counts from 0, the message from 1."""
    return DataError(f"{table}: column {column!r}, row {row + 1} (counted from 1, without the header): {text}")


def read_numbers(column: Column, *, boolean: bool = False) -> np.ndarray:
    """Return the column as real numbers, whatever numeric type it has; NaN and infinity are allowed.

    Booleans become 1 and 0; `boolean` says that the column holds booleans even though it is stored as text.
    """
    column.check_no_nulls("fill it in, drop the row, or leave the column out")
    dtype = column.array.type
    if boolean or types.is_boolean(dtype):
        return read_booleans(column).astype(np.float64)
    if types.is_integer(dtype) or types.is_floating(dtype):
        return check_exact(column, column.array.to_numpy(zero_copy_only=False))
    if types.is_decimal(dtype):
        # Through text: a direct cast does not give the nearest number, which a CSV file gives.
        return column.array.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not is_text(dtype):
        raise column.error(0, f"{column.value(0)!r} is not a number but {dtype}; write one number in each row")
    text = pc.utf8_trim_whitespace(column.array)
    try:
        parsed = _parse(text)
    except pa.ArrowInvalid:
        position = find_invalid(text, _parse)
        raise column.error(
            position, f"{column.value(position)!r} is not a number; correct it or leave the column out"
        ) from None
    return check_exact_texts(column, text, parsed).to_numpy(zero_copy_only=False)


def check_exact(column: Column, values: np.ndarray) -> np.ndarray:
    """Return whole numbers, if float64 holds each of them exactly; other numbers as they are.

    Raises:
        DataError: If a whole number has more digits.
    """
    large = (values > _EXACT) | (values < -_EXACT) if values.dtype in (np.int64, np.uint64) else np.empty(0, bool)
    if large.any():
        first = int(large.argmax())
        raise column.error(first, f"{values[first]} {TOO_LONG}")
    return values


def check_exact_texts(column: Column, texts: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return numbers, if those that are written as whole numbers are what their texts say; as 1e300 is not.

    Raises:
        DataError: If a whole number has more digits.
    """
    large = np.flatnonzero(np.abs(numbers.to_numpy(zero_copy_only=False)) >= _EXACT)
    wrong = pc.match_substring_regex(texts.take(pa.array(large)), r"^[-+]?\d+$")
    for position, text in zip(large[wrong].tolist(), texts.take(pa.array(large[wrong])).to_pylist(), strict=True):
        if abs(int(text)) > _EXACT:
            raise column.error(position, f"{text} {TOO_LONG}")
    return numbers


def read_booleans(column: Column) -> np.ndarray:
    """Return the column as booleans; it may hold booleans, the numbers 0 and 1, or these and yes and no as text."""
    column.check_no_nulls("write true or false in every row")
    dtype = column.array.type
    if types.is_boolean(dtype):
        return column.array.to_numpy(zero_copy_only=False)
    if types.is_integer(dtype) or types.is_floating(dtype):
        values = column.array.to_numpy(zero_copy_only=False)
        valid = (values == 0) | (values == 1)
    elif is_text(dtype):
        texts = pc.utf8_lower(pc.utf8_trim_whitespace(column.array))
        codes = pc.index_in(texts, value_set=pa.array(_BOOLEAN_TEXTS, texts.type)).fill_null(-1)
        values = codes.to_numpy(zero_copy_only=False)
        valid = values >= 0
    else:
        values = valid = np.zeros(len(column.array), dtype=bool)
    if not valid.all():
        position = np.flatnonzero(~valid)[0]
        value = column.value(position)
        raise column.error(
            position, f"{value!r} is neither true nor false; use booleans, 0 / 1, true / false or yes / no"
        )
    return np.asarray(values % 2 == 1)


def is_text(dtype: pa.DataType) -> bool:
    """Return whether values of this type are texts."""
    return bool(types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype))


def _parse(text: pa.Array) -> pa.Array:
    return text.cast(pa.float64())


def find_invalid(texts: pa.Array, parse: Callable[[pa.Array], pa.Array]) -> int:
    """Return the position of the first text for which `parse` raises an ArrowInvalid; there must be one."""
    # PyArrow does not say which value fails; bisection finds the first one with few casts.
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(texts.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
