"""Ids of sets and items: where sets begin, and that no set is scattered and no item in a set twice.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.sets._columns import Column, fault


def ids(column: Column) -> pa.Array:
    """Return the column as ids: every value present, and of a type whose values can be compared."""
    column.refuse_nulls("every row needs an id")
    kind = column.array.type
    if types.is_nested(kind):
        raise column.fault(0, f"an id must be a number or a text, not {kind}")
    if types.is_floating(kind):
        nan = np.isnan(column.array.to_numpy(zero_copy_only=False))
        if nan.any():
            raise column.fault(np.flatnonzero(nan)[0], "nan is not an id; every row needs one")
    array = _without_nanoseconds(column) if getattr(kind, "unit", None) == "ns" else column.array
    if types.is_float16(kind):
        array = array.cast(pa.float32())  # PyArrow cannot compare the short ones
    try:
        pc.not_equal(array[:1], array[:1])
        # A copy: a slice would keep the piece alive with all its other columns.
        return array.take(pa.array(np.arange(len(array))))
    except pa.ArrowNotImplementedError:
        raise column.fault(0, f"an id must be a number or a text, not {kind}") from None


def _without_nanoseconds(column: Column) -> pa.Array:
    """Times in microseconds, which is as fine as Python's own go; what would be lost is refused."""
    kind, since = column.array.type, column.array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    finer = np.flatnonzero(since % 1000)
    if len(finer):
        raise column.fault(finer[0], "an id finer than a microsecond would lose digits; write ids as whole numbers")
    if types.is_timestamp(kind):
        return column.array.cast(pa.timestamp("us", kind.tz))
    return column.array.cast(pa.duration("us") if types.is_duration(kind) else pa.time64("us"))


def changes(set_ids: pa.Array, last: pa.Scalar | None) -> np.ndarray:
    """Tell for every row whether another set begins there."""
    changes = np.ones(len(set_ids), dtype=bool)
    changes[0] = last is None or not last.equals(set_ids[0])
    changes[1:] = pc.not_equal(set_ids[1:], set_ids[:-1]).to_numpy(zero_copy_only=False)
    return changes


def refuse_scattered(path: Path, column: str, heads: pa.ChunkedArray, first: np.ndarray, lengths: np.ndarray) -> None:
    """Raise if a set comes back: `heads` are the ids in the order in which sets begin, `first` the rows."""
    codes = _codes(heads)
    known, earliest = np.unique(codes, return_index=True)
    if len(known) == len(codes):
        return
    again = np.setdiff1d(np.arange(len(codes)), earliest)[0]
    before = earliest[codes[again]]
    span = f"rows {first[before] + 1} to {first[before] + lengths[before]}"
    raise fault(
        path,
        column,
        int(first[again]),
        f"set {heads[int(again)].as_py()!r} comes back after other sets (it had {span}); the rows of a set must follow "
        f"each other: sort the table by {column!r} first",
    )


def refuse_duplicates(
    path: Path, column: str, names: pa.ChunkedArray, heads: pa.ChunkedArray, lengths: np.ndarray
) -> None:
    """Raise if an item id, of which `names` has one for each row, stands in a set twice."""
    codes = _codes(names)
    keys = np.repeat(np.arange(len(lengths)), lengths) * (int(codes.max()) + 1) + codes
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():
        return
    _, earliest, places = np.unique(keys, return_index=True, return_inverse=True)
    row = np.setdiff1d(np.arange(len(keys)), earliest)[0]
    number = int(np.searchsorted(np.cumsum(lengths), row, side="right"))
    item, of = names[int(row)].as_py(), heads[number].as_py()
    raise fault(
        path,
        column,
        int(row),
        f"item {item!r} is in set {of!r} already (row {earliest[places[row]] + 1}); an item may be in a set once: "
        "drop one of the rows or give them different ids",
    )


def whole_if_text(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Turn ids read as text into whole numbers if all of them are, and nothing is lost ("007" stays a text)."""
    try:
        whole = array.cast(pa.int64())
    except pa.ArrowInvalid:
        return array
    return whole if whole.cast(array.type).equals(array) else array


def as_array(array: pa.ChunkedArray) -> np.ndarray:
    """Return ids as a NumPy array: numbers as they are, all else as Python objects."""
    if types.is_integer(array.type) or types.is_floating(array.type):
        return np.array(array.to_numpy())
    # Equal ids share one object: the items of a catalogue come back in many sets.
    different = np.empty(len(array.unique()), dtype=object)
    different[:] = array.unique().to_pylist()
    return different[_codes(array)]


def _codes(array: pa.ChunkedArray) -> np.ndarray:
    """Number the different values of an array from 0, in the order in which they come."""
    indices = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in array.dictionary_encode().chunks]
    return np.concatenate(indices).astype(np.int64)
