"""Sets, and other columns, from a table with one row for each item, in one pass over chunks of the file.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final, overload

import numpy as np
import pyarrow as pa
import torch
from pyarrow import types

from setgrad._progress import showing_by_default
from setgrad.errors import DataError, OptionError, parameter
from setgrad.sets._arrays import Float32LossCheck, GrowableArray
from setgrad.sets._choices import Choices, Table
from setgrad.sets._columns import Column, read_booleans, read_numbers, resolve_features, row_error
from setgrad.sets._faults import Faults
from setgrad.sets._ids import (
    check_adjacent,
    describe_repeated,
    find_starts,
    ids_to_numpy,
    integers_if_lossless,
    read_ids,
)
from setgrad.sets._sets import Sets
from setgrad.sets._sources import TableSource, open_table


@overload
def read_table(
    table: Any,
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: str,
    item_id: str | None = None,
    weight: str | None = None,
    dtype: torch.dtype | None = None,
) -> Choices: ...
@overload
def read_table(
    table: Any,
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: None = None,
    item_id: str | None = None,
    weight: str | None = None,
    dtype: torch.dtype | None = None,
) -> Table: ...
@overload
def read_table(
    table: Any,
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: str | None,
    item_id: str | None = None,
    weight: str | None = None,
    dtype: torch.dtype | None = None,
) -> Choices | Table: ...
def read_table(
    table: Any,
    *,
    set_id: str,
    features: Iterable[str] | None = None,
    chosen: str | None = None,
    item_id: str | None = None,
    weight: str | None = None,
    dtype: torch.dtype | None = None,
) -> Choices | Table:
    r"""Read sets from a table with one row for each item.

    The rows of a set must be adjacent. Files are read in chunks; reading that takes long shows how far it is. A CSV
    file may have commas, semicolons or tabs between its columns, and with semicolons or tabs decimal commas.

    Args:
        table: A data frame of pandas (2.2 or later), polars or Arrow, or any object with the Arrow PyCapsule interface;
            the path of a file that ends in .parquet, .pq, .csv, .csv.gz, .tsv, .jsonl, .feather or .arrow; a list of
            such paths; or a folder, whose files are read in the order of their paths.
        set_id: Column with the id of the set that a row belongs to.
        features: Columns with the features of an item; by default every numeric column without another role, in the
            order of the file (booleans are features only when named).
        chosen: Column that says whether the item was chosen: booleans, 0 / 1, true / false or yes / no.
        item_id: Column with the id of the item, unique in its set; by default items are numbered from 0 in each set.
        weight: Column with a weight for each row: finite numbers of at least 0.
        dtype: Type of features; weights are float64. By default float32. If a feature is too large for float32 or would
            lose digits that distinguish its values, as times in seconds and other large integers do, the table is read
            again in float64.

    Returns:
        `Choices`, which unpacks into `sets, subsets`; without `chosen` a `Table`, which has no subsets.

    Raises:
        OptionError: If `set_id`, `features` or `dtype` has a wrong type.
        DataError: If the table cannot be read, a column is missing, or a value is invalid. The message names the table,
            the column and the row, counted from 1 without the header.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "baskets.csv")
        >>> _ = path.write_text("basket,price,bought\n7,1.5,true\n7,2.0,false\n9,0.5,true\n")
        >>> choices = read_table(path, set_id="basket", chosen="bought")
        >>> choices.set_ids, [x.tolist() for x in choices.sets], [mask.tolist() for mask in choices.subsets]
        ([7, 9], [[[1.5], [2.0]], [[0.5]]], [[True, False], [True]])
        >>> folder.cleanup()
    """
    if not isinstance(set_id, str):
        raise OptionError(f"{parameter('set_id')} must be the name of a column, not {set_id!r}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise OptionError(f"features are real numbers, but dtype is {dtype!r}; use torch.float32 or torch.float64")
    source = open_table(table)
    roles = Roles(set_id, chosen, item_id, weight)
    columns = resolve_features(source.name, source.schema, features, roles._asdict())
    # The chunks of a CSV file are text; only the inferred schema says which columns are boolean.
    boolean_columns = {column for column in columns if types.is_boolean(source.schema.field(column).type)}

    def read(chunk: dict[str, Column], dtype: torch.dtype, check: Float32LossCheck | None) -> np.ndarray:
        return _read_block([chunk[column] for column in columns], boolean_columns, dtype, check)

    with showing_by_default("reading"):
        return read_rows(source, roles, ItemReader(columns, len(columns), read), dtype)


@final
class Roles(NamedTuple):
    """The columns of a table that are not features."""

    set_id: str
    chosen: str | None = None
    item_id: str | None = None
    weight: str | None = None


@final
class ItemReader(NamedTuple):
    """What reads the items of a table.

    Attributes:
        columns: The columns that it reads.
        width: The numbers of an item.
        read: From columns of a chunk to numbers `(rows, width)` of a dtype; it updates the check of the columns.
    """

    columns: list[str]
    width: int
    read: Callable[[dict[str, Column], torch.dtype, Float32LossCheck | None], np.ndarray]

    @staticmethod
    def nothing(rows_of: str) -> ItemReader:
        """Return a reader of items without numbers, for tables with this column."""
        return ItemReader([], 0, lambda chunk, dtype, check: np.empty((len(chunk[rows_of].array), 0), np.float32))


def read_rows(
    source: TableSource,
    roles: Roles,
    reader: ItemReader,
    dtype: torch.dtype | None,
    *,
    notes: list[str] | None = None,
) -> Choices | Table:
    """Read sets in one pass over the chunks of a table; arguments, result and errors are those of `read_table`.

    Args:
        source: The table.
        roles: Its columns that are not features.
        reader: What reads the items.
        dtype: Type of the items.
        notes: Takes up what to tell about item ids that a set has more than once; None to make it an error.
    """
    name, (set_id, chosen, item_id, weight) = source.name, roles
    needed = list(dict.fromkeys([*(role for role in roles if role is not None), *reader.columns]))
    target = torch.float32 if dtype is None else dtype
    check = Float32LossCheck(reader.width) if dtype is None else None
    storage = np.float64 if target == torch.float64 else np.float32
    items, weights = GrowableArray(storage, target), GrowableArray(np.float64, torch.float64)
    masks = GrowableArray(np.bool_, torch.bool)
    item_chunks: list[pa.Array] = []
    set_chunks: list[pa.Array] = []
    start_chunks: list[np.ndarray] = []
    rows, previous, faults = 0, None, Faults()
    for batch in source.read_chunks(needed):
        chunk = {column: Column.from_batch(name, batch, column, source.first_row + rows) for column in needed}
        with faults.collect():
            set_ids = read_ids(chunk[set_id])
            starts = find_starts(set_ids, previous)
            set_chunks.append(set_ids.take(pa.array(starts)))
            start_chunks.append(starts + rows)
            previous = set_ids[-1]
        if chosen is not None:
            with faults.collect():
                masks.append(read_booleans(chunk[chosen]))
        if item_id is not None:
            with faults.collect():
                item_chunks.append(read_ids(chunk[item_id]))
        if weight is not None:
            with faults.collect():
                weights.append(_read_weights(chunk[weight]))
        with faults.collect():
            items.append(reader.read(chunk, target, check))
        faults.check()
        rows += batch.num_rows
    if not rows:
        raise DataError(f"{name}: the table has columns but no rows; write at least one item")
    if check is not None and check.needs_float64:
        # A second pass, because holding every table in float64 until its end is known would take twice the memory.
        return read_rows(source, roles, reader, torch.float64, notes=notes)

    starts = np.concatenate(start_chunks)
    lengths = np.diff(starts, append=rows)
    all_set_ids = pa.chunked_array(set_chunks)
    with faults.collect():
        check_adjacent(name, set_id, all_set_ids, source.first_row + starts, lengths)
    if item_id is None:
        item_ids = np.arange(rows) - np.repeat(starts, lengths)
    else:
        all_item_ids = pa.chunked_array(item_chunks)
        row, text = describe_repeated(all_item_ids, all_set_ids, lengths, source.first_row)
        if row >= 0 and notes is None:
            remedy = "an item may be in a set once: drop one of the rows or use different ids"
            faults.found.append(row_error(name, item_id, row, f"{text}; {remedy}"))
        elif row >= 0 and notes is not None:
            remedy = "each row is an item of its own, and only the rows tell their picks apart"
            notes.append(f"column {item_id!r}, row {row + 1}: {text}; {remedy}")
        item_ids = ids_to_numpy(all_item_ids if source.typed else integers_if_lossless(all_item_ids))
    faults.check()
    sets = Sets.from_lengths(items.pop(), lengths)
    id_list = (all_set_ids if source.typed else integers_if_lossless(all_set_ids)).to_pylist()
    sample_weight = None if weight is None else weights.pop()
    if chosen is None:
        return Table(sets, id_list, item_ids, sample_weight, reader.columns)
    return Choices(sets, sets.with_values(masks.pop()), id_list, item_ids, sample_weight, reader.columns)


@final
class Columns(NamedTuple):
    """Columns of a table by name, row by row: numbers and booleans as arrays, labels as lists."""

    numbers: dict[str, np.ndarray]
    booleans: dict[str, np.ndarray]
    labels: dict[str, list[Any]]
    optional_labels: dict[str, list[Any]]


def read_columns(
    table: Any,
    *,
    numbers: Sequence[str] = (),
    booleans: Sequence[str] = (),
    labels: Sequence[str] = (),
    optional_labels: Sequence[str] = (),
) -> Columns:
    """Read columns of a table row by row, in one pass.

    Args:
        table: Anything that `read_table` takes.
        numbers: Columns with finite numbers; they are read as float64.
        booleans: Columns with booleans, 0 / 1, true / false or yes / no.
        labels: Columns with the group of each row: numbers or text, without missing values.
        optional_labels: Columns with labels, in which a missing value stands for no label and is read as None.

    Raises:
        DataError: If a column does not exist or a value cannot be used.
    """
    columns = list(dict.fromkeys([*numbers, *booleans, *labels, *optional_labels]))
    source = open_table(table)
    resolve_features(source.name, source.schema, columns, {})  # raises if there is no such column
    boolean_columns = {name for name in numbers if types.is_boolean(source.schema.field(name).type)}
    values: dict[str, list[np.ndarray]] = {name: [] for name in numbers}
    flags: dict[str, list[np.ndarray]] = {name: [] for name in booleans}
    groups: dict[str, list[Any]] = {name: [] for name in labels}
    some: dict[str, list[Any]] = {name: [] for name in optional_labels}
    rows = 0
    for batch in source.read_chunks(columns):
        chunk = {name: Column.from_batch(source.name, batch, name, rows) for name in columns}
        for name in numbers:
            values[name].append(_read_block([chunk[name]], boolean_columns, torch.float64)[:, 0])
        for name in booleans:
            flags[name].append(read_booleans(chunk[name]))
        for name in labels:
            missing = _missing(chunk[name])
            if missing.any():
                raise chunk[name].error(int(missing.argmax()), "the group is missing; name the group of every item")
            groups[name] += read_ids(chunk[name]).to_pylist()
        for name in optional_labels:
            missing = _missing(chunk[name])
            known = replace(chunk[name], array=chunk[name].array.filter(pa.array(~missing)))
            found = iter(read_ids(known).to_pylist() if len(known.array) else [])
            some[name] += [None if is_missing else next(found) for is_missing in missing]
        rows += batch.num_rows
    return Columns(_joined(values), _joined(flags), groups, some)


def _joined(chunks: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate(parts) for name, parts in chunks.items()}


def _missing(column: Column) -> np.ndarray:
    mask: np.ndarray = column.array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    return mask


def _read_block(
    columns: list[Column], boolean_columns: set[str], dtype: torch.dtype, check: Float32LossCheck | None = None
) -> np.ndarray:
    """Return the columns of a chunk side by side, `(rows, columns)`; raise if a number is not finite."""
    block = np.empty((len(columns[0].array), len(columns)), np.float64 if dtype == torch.float64 else np.float32)
    with np.errstate(over="ignore"):
        for index, column in enumerate(columns):
            values = read_numbers(column, boolean=column.name in boolean_columns)
            block[:, index] = values
            if check is not None:
                check.update(index, values)
    finite = torch.from_numpy(block).to(dtype).isfinite()
    if not bool(finite.all()):
        position, index = (~finite).nonzero()[0].tolist()
        column = columns[index]
        value = column.value(position)
        if not _is_finite(value):
            raise column.error(position, f"{value} is not finite; fill it in, drop the row, or leave the column out")
        # With a check, the number is too large for float32, and the table is read again in float64.
        if check is None:
            raise column.error(position, f"{value} is too large for {dtype}; rescale the column or use a wider dtype")
    return block


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        # PyArrow parses spellings of NaN that Python does not, such as nan(ind).
        return False


def _read_weights(column: Column) -> np.ndarray:
    weights = _read_block([column], set(), torch.float64)[:, 0]
    if (weights < 0).any():
        position = np.flatnonzero(weights < 0)[0]
        raise column.error(position, f"the weight {weights[position]:g} is negative; a weight must be at least 0")
    return weights
