"""From a table with one row for each item to sets, in one pass over pieces of the file.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import torch
from pyarrow import types

from setgrad.errors import DataError, OptionError
from setgrad.sets._choices import Choices, Table
from setgrad.sets._columns import Column, flags, numbers
from setgrad.sets._digits import Digits
from setgrad.sets._formats import format_of, look, pieces
from setgrad.sets._ids import as_array, changes, ids, refuse_duplicates, refuse_scattered, whole_if_text
from setgrad.sets._pile import Pile
from setgrad.sets._roles import feature_columns
from setgrad.sets._sets import Sets


@overload
def read_table(
    path: str | PathLike[str],
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: str,
    item_id: str | None = None,
    weights: str | None = None,
    dtype: torch.dtype | None = None,
) -> Choices: ...
@overload
def read_table(
    path: str | PathLike[str],
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: None = None,
    item_id: str | None = None,
    weights: str | None = None,
    dtype: torch.dtype | None = None,
) -> Table: ...
@overload
def read_table(
    path: str | PathLike[str],
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: str | None,
    item_id: str | None = None,
    weights: str | None = None,
    dtype: torch.dtype | None = None,
) -> Choices | Table: ...
def read_table(
    path: str | PathLike[str],
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: str | None = None,
    item_id: str | None = None,
    weights: str | None = None,
    dtype: torch.dtype | None = None,
) -> Choices | Table:
    r"""Read sets from a Parquet, CSV or Feather file with one row for each item.

    The file is read in pieces; the rows of a set must follow each other. Errors name the file, the column and the row,
    counted from 1 without the header.

    Args:
        path: The file; its ending tells the format (.parquet, .pq, .csv, .feather, .arrow).
        set_id: Column that says to which set a row belongs.
        features: Columns with the features of an item; by default every numeric column without another role, in the
            order of the file (booleans are features only when named).
        chosen: Column that says whether the item was chosen: booleans, 0 / 1 or true / false.
        item_id: Column that names the item, once in a set; by default items are numbered from 0 in each set.
        weights: Column with a weight for each row: finite numbers that are not negative.
        dtype: Type of features and weights. By default float32, unless a feature would lose digits that tell its values
            apart, as times in seconds and other large whole numbers do, or is too large for float32: then the table is
            read again in float64.

    Returns:
        `Choices`, which unpacks into `sets, subsets`; without `chosen`, a `Table`, which has sets and ids only.

    Example:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "baskets.csv")
        >>> _ = path.write_text("basket,price,bought\n7,1.5,true\n7,2.0,false\n9,0.5,true\n")
        >>> choices = read_table(path, set_id="basket", chosen="bought")
        >>> choices.set_ids, [x.tolist() for x in choices.sets], [mask.tolist() for mask in choices.subsets]
        ([7, 9], [[[1.5], [2.0]], [[0.5]]], [[True, False], [True]])
        >>> folder.cleanup()
    """
    path = Path(path)
    if not isinstance(set_id, str):
        raise OptionError(f"set_id names the column that says to which set a row belongs, not {set_id!r}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise OptionError(
            f"features are real numbers, but dtype={dtype!r} was asked for; use torch.float32 or torch.float64"
        )
    schema = look(path)
    others = {"set_id": set_id, "item_id": item_id, "chosen": chosen, "weights": weights}
    columns = feature_columns(path, schema, features, others)
    needed = [name for name in others.values() if name is not None] + columns
    # A text file does not know its types: what it seems to hold is told by the schema, what it does by the pieces.
    flag_columns = {name for name in columns if types.is_boolean(schema.field(name).type)}

    wanted = torch.float32 if dtype is None else dtype
    digits = Digits(len(columns)) if dtype is None else None
    kind = np.float64 if wanted == torch.float64 else np.float32
    items, loads, masks = Pile(kind, wanted), Pile(kind, wanted), Pile(np.bool_, torch.bool)
    names: list[pa.Array] = []
    heads: list[pa.Array] = []
    starts: list[np.ndarray] = []
    rows, last = 0, None
    for batch in pieces(path, needed):
        found = {name: Column.of(path, batch, name, rows) for name in needed}
        set_ids = ids(found[set_id])
        begins = np.flatnonzero(changes(set_ids, last))
        heads.append(set_ids.take(pa.array(begins)))
        starts.append(begins + rows)
        items.add(_block([found[name] for name in columns], flag_columns, wanted, digits))
        if item_id is not None:
            names.append(ids(found[item_id]))
        if chosen is not None:
            masks.add(flags(found[chosen]))
        if weights is not None:
            loads.add(_weights(found[weights], wanted))
        rows, last = rows + batch.num_rows, set_ids[-1]
    if not rows:
        raise DataError(f"{path}: the table has columns but no rows; write at least one item")
    if digits is not None and digits.lost:
        # Once more, because holding every table in float64 until its end is known would take twice the memory.
        return read_table(
            path,
            set_id=set_id,
            features=columns,
            chosen=chosen,
            item_id=item_id,
            weights=weights,
            dtype=torch.float64,
        )

    typed = format_of(path).typed
    first = np.concatenate(starts)
    lengths = np.diff(first, append=rows)
    set_names = pa.chunked_array(heads)
    refuse_scattered(path, set_id, set_names, first, lengths)
    if item_id is None:
        item_names = np.arange(rows) - np.repeat(first, lengths)
    else:
        chunks = pa.chunked_array(names)
        refuse_duplicates(path, item_id, chunks, set_names, lengths)
        item_names = as_array(chunks if typed else whole_if_text(chunks))
    sets = Sets.from_lengths(items.take(), lengths)
    set_list = (set_names if typed else whole_if_text(set_names)).to_pylist()
    load = None if weights is None else loads.take()
    if chosen is None:
        return Table(sets, set_list, item_names, load, columns)
    return Choices(sets, sets.with_values(masks.take()), set_list, item_names, load, columns)


def _block(
    columns: list[Column], flag_columns: set[str], dtype: torch.dtype, digits: Digits | None = None
) -> np.ndarray:
    """Put the features of a piece side by side, `(rows, features)`, and refuse what is not finite."""
    block = np.empty((len(columns[0].array), len(columns)), np.float64 if dtype == torch.float64 else np.float32)
    with np.errstate(over="ignore"):
        for number, column in enumerate(columns):
            values = numbers(column, flag=column.name in flag_columns)
            block[:, number] = values
            if digits is not None:
                digits.see(number, values)
    finite = torch.from_numpy(block).to(dtype).isfinite()
    if not bool(finite.all()):
        position, number = (~finite).nonzero()[0].tolist()
        column = columns[number]
        value = column.value(position)
        if not _is_finite(value):
            text = f"{value} is not a finite number; fill it in, drop the row, or leave the column out"
            raise column.fault(position, text)
        # Where the type is open, `digits` has seen that float32 is too narrow, and the table is read again in float64.
        if digits is None:
            raise column.fault(position, f"{value} is too large for {dtype}; rescale the column or use a wider dtype")
    return block


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        # PyArrow knows more ways to write NaN than Python does, such as nan(ind).
        return False


def _weights(column: Column, dtype: torch.dtype) -> np.ndarray:
    loads = _block([column], set(), dtype)[:, 0]
    if (loads < 0).any():
        position = np.flatnonzero(loads < 0)[0]
        raise column.fault(position, f"the weight {loads[position]:g} is negative; a weight is 0 or more")
    return loads
