"""Columns of a table that are neither features nor ids, read in one pass.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyarrow import types

from setgrad.sets._columns import Column
from setgrad.sets._formats import read_chunks, read_schema
from setgrad.sets._ids import read_ids
from setgrad.sets._read import _read_block
from setgrad.sets._roles import resolve_features


def read_columns(
    path: Path, *, numbers: Sequence[str] = (), labels: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, list[Any]]]:
    """Read columns of a table row by row.

    Args:
        path: The table.
        numbers: Columns with finite numbers.
        labels: Columns with the group of each row: numbers or text, without missing values.

    Returns:
        The numbers as float64 arrays and the labels as lists, both by column.

    Raises:
        DataError: If a column does not exist or a value cannot be used.
    """
    columns = list(dict.fromkeys([*numbers, *labels]))
    schema = read_schema(path)
    resolve_features(path, schema, columns, {})  # raises if there is no such column
    booleans = {name for name in numbers if types.is_boolean(schema.field(name).type)}
    values: dict[str, list[np.ndarray]] = {name: [] for name in numbers}
    groups: dict[str, list[Any]] = {name: [] for name in labels}
    rows = 0
    for batch in read_chunks(path, columns):
        chunk = {name: Column.from_batch(path, batch, name, rows) for name in columns}
        for name in numbers:
            values[name].append(_read_block([chunk[name]], booleans, torch.float64)[:, 0])
        for name in labels:
            missing = chunk[name].array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
            if missing.any():
                raise chunk[name].error(missing.argmax(), "the group is missing; name the group of every item")
            groups[name] += read_ids(chunk[name]).to_pylist()
        rows += batch.num_rows
    return {name: np.concatenate(parts) for name, parts in values.items()}, groups
