"""What the tests of columns share: columns of values, kinds fitted to them, and whole tables."""

from typing import Any

import numpy as np
import pyarrow as pa
import torch

from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._columns import Columns
from setgrad.columns._describe import TableDescription
from setgrad.columns._fit import ColumnChoice, TrainingRows, fit_columns
from setgrad.columns._kinds import KINDS
from setgrad.sets._columns import Column
from setgrad.sets._read import ItemReader, Roles, read_rows
from setgrad.sets._sources import load_rows, open_table


def column_of(values: Any, dtype: pa.DataType | None = None, name: str = "x") -> Column:
    """Return a column as chunks of tables have it."""
    array = values if isinstance(values, pa.Array) else pa.array(values, dtype, from_pandas=True)
    return Column.from_batch("t", pa.record_batch([array], names=[name]), name, 0)


def fit_kind(kind: str, *columns: Column, sets: Any = None) -> FittedColumn:
    """Return a kind fitted to columns; by default each row is a set."""
    rows = np.arange(len(columns[0].array)) if sets is None else np.asarray(sets)
    return KINDS[kind].fit(columns[0].name, TrainingColumn(columns, rows, False))


def numbers_of(kind: str, values: Any, dtype: pa.DataType | None = None) -> np.ndarray:
    """Return the numbers of values to which the kind was fitted."""
    column = column_of(values, dtype)
    return fit_kind(kind, column).encode([column])


def fit_table(
    table: Any, *, training: Any = None, chosen: str | None = None, item_id: str | None = None, **choice: Any
) -> tuple[Columns, TableDescription]:
    """Return the columns of a table with sets in the column "s"; `training` tells which sets are trained on."""
    source, roles = load_rows(open_table(table)), Roles("s", chosen, item_id)
    empty = read_rows(source, roles, ItemReader.nothing("s"), torch.float32)
    lengths = empty.sets.layout.host_lengths
    is_training = np.ones(len(lengths), dtype=bool) if training is None else np.asarray(training)
    subsets = getattr(empty, "subsets", None)
    rows = TrainingRows(lengths, is_training, None if subsets is None else subsets.values.numpy())
    columns = ColumnChoice.of(choice.get("features"), choice.get("columns"), choice.get("embed"))
    found = fit_columns(source, roles, columns, rows)
    return found.columns, found.description


def read_items(table: Any, columns: Columns, dtype: torch.dtype | None = torch.float64) -> torch.Tensor:
    """Return the numbers of the items of a table."""
    return read_rows(open_table(table), Roles("s"), columns.reader(), dtype).sets.values
