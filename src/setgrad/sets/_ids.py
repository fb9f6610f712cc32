"""The ids of sets and items in a table: how they are read, and which rows belong together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.sets._columns import (
    Column,
    row_error,
)

# So many sets are named in one message.
_LISTED = 6


def read_ids(column: Column) -> pa.Array:
    """Return the column as ids: no value is missing, and the values can be compared."""
    column.check_no_nulls("every row needs an id")
    dtype = column.array.type
    if types.is_nested(dtype):
        raise column.error(0, f"an id must be a number or a text, not {dtype}")
    if types.is_floating(dtype):
        nan = np.isnan(column.array.to_numpy(zero_copy_only=False))
        if nan.any():
            raise column.error(np.flatnonzero(nan)[0], "nan is not an id; every row needs one")
    array = _to_microseconds(column) if getattr(dtype, "unit", None) == "ns" else column.array
    if types.is_temporal(dtype) and not types.is_interval(dtype):
        _check_dates(column)
    if types.is_float16(dtype):
        array = array.cast(pa.float32())  # PyArrow cannot compare float16
    try:
        pc.not_equal(array[:1], array[:1])
        array[:1].to_pylist()
        # A copy: a slice would keep all other columns of the chunk in memory.
        return array.take(pa.array(np.arange(len(array))))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OverflowError):
        raise column.error(0, f"an id must be a number or a text, not {dtype}") from None


def _check_dates(column: Column) -> None:
    """Raise if a date or time is none of Python, or its zone is unknown; the first and the last one tell."""
    ticks = column.array.view(pa.int32() if column.array.type.bit_width == 32 else pa.int64())
    numbers = ticks.to_numpy(zero_copy_only=False)
    for position in {int(numbers.argmin()), int(numbers.argmax())} if len(numbers) else ():
        try:
            column.array[position].as_py()
        except (OverflowError, ValueError, LookupError) as error:
            cause = f"Python has no such {column.array.type} ({error})"
            raise column.error(position, f"{cause}; an id must be a number or a text") from None


def _to_microseconds(column: Column) -> pa.Array:
    """Return times in microseconds, the resolution of Python's own types; raise if digits would be lost."""
    dtype, nanoseconds = column.array.type, column.array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    finer = np.flatnonzero(nanoseconds % 1000)
    if len(finer):
        raise column.error(finer[0], "an id finer than a microsecond would lose digits; write ids as whole numbers")
    if types.is_timestamp(dtype):
        return column.array.cast(pa.timestamp("us", dtype.tz))
    return column.array.cast(pa.duration("us") if types.is_duration(dtype) else pa.time64("us"))


def find_starts(set_ids: pa.Array, previous: pa.Scalar | None) -> np.ndarray:
    """Return the positions at which a new set starts; `previous` is the id of the row before, if there is one."""
    is_start = np.ones(len(set_ids), dtype=bool)
    is_start[0] = previous is None or not previous.equals(set_ids[0])
    is_start[1:] = pc.not_equal(set_ids[1:], set_ids[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_start)


def check_adjacent(table: str, column: str, set_ids: pa.ChunkedArray, starts: np.ndarray, lengths: np.ndarray) -> None:
    """Raise if the rows of a set are not adjacent.

    Args:
        table: Name of the table, for the message.
        column: The column of the ids, for the message.
        set_ids: The id at each start of a set, in the order of the table.
        starts: The rows at which the sets start.
        lengths: The number of rows from each start to the next.
    """
    codes = factorize(set_ids)
    unique, earliest = np.unique(codes, return_index=True)
    if len(unique) == len(codes):
        return
    repeated = np.setdiff1d(np.arange(len(codes)), earliest)[0]
    first = earliest[codes[repeated]]
    text = (
        f"set {set_ids[int(repeated)].as_py()!r} appears again after other sets (it had rows {starts[first] + 1} to "
        f"{starts[first] + lengths[first]}); the rows of a set must be adjacent: sort the table by {column!r} first"
    )
    raise row_error(table, column, int(starts[repeated]), text)


def describe_repeated(
    item_ids: pa.ChunkedArray, set_ids: pa.ChunkedArray, lengths: np.ndarray, first_row: int
) -> tuple[int, str]:
    """Return the first row with an item id that its set has already, and which sets have such ids; -1 for none.

    Args:
        item_ids: One id for each row.
        set_ids: One id for each set.
        lengths: The number of rows of each set.
        first_row: The number of the first row in messages.
    """
    codes = factorize(item_ids)
    keys = np.repeat(np.arange(len(lengths)), lengths) * (int(codes.max()) + 1) + codes
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():
        return -1, ""
    _, earliest, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rows = np.setdiff1d(np.arange(len(keys)), earliest)
    row = int(rows[0])
    sets = np.unique(np.searchsorted(np.cumsum(lengths), rows, side="right"))
    text = (
        f"item {item_ids[row].as_py()!r} is in set {set_ids[int(sets[0])].as_py()!r} already (row "
        f"{first_row + earliest[inverse[row]] + 1})"
    )
    if len(sets) > 1:
        others = ", ".join(repr(set_ids[int(index)].as_py()) for index in sets[1:_LISTED])
        more = f" and {len(sets) - _LISTED} more" if len(sets) > _LISTED else ""
        text += f"; {len(sets)} sets have an item more than once, also {others}{more}"
    return first_row + row, text


def integers_if_lossless(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return ids that were read as text as integers, if all of them are and no digit is lost ("007" stays text)."""
    try:
        integers = ids.cast(pa.int64())
    except pa.ArrowInvalid:
        return ids
    return integers if integers.cast(ids.type).equals(ids) else ids


def ids_to_numpy(ids: pa.ChunkedArray) -> np.ndarray:
    """Return ids as a NumPy array: numbers keep their type, other ids become Python objects."""
    if types.is_integer(ids.type) or types.is_floating(ids.type):
        return np.array(ids.to_numpy())
    # Equal ids share one object: the items of a catalogue appear in many sets.
    unique = np.empty(len(ids.unique()), dtype=object)
    unique[:] = ids.unique().to_pylist()
    return unique[factorize(ids)]


def factorize(array: pa.ChunkedArray) -> np.ndarray:
    """Return integer codes of the values, numbered from 0 in order of first appearance."""
    indices = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in array.dictionary_encode().chunks]
    return np.concatenate(indices).astype(np.int64)
