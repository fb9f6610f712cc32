"""A task as tables, so that `fit`, `predict` and `evaluate` can be tried on data that come along."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from setgrad._files import atomic_write
from setgrad.cli._columns import Columns, dtype_name
from setgrad.datasets import Task
from setgrad.sets import Choices


def columns_of_task(task: Task) -> Columns:
    """Names for the columns of a task, which itself has none."""
    width = int(np.prod(task.train.sets.item_shape))
    features = tuple(f"x{number}" for number in range(1, width + 1))
    return Columns("set", features, "item", "chosen", dtype_name(task.train.sets))


def write_split(path: Path, choices: Choices, columns: Columns) -> Path:
    """Write one split to a Parquet file, one row for each item; the file appears whole or not at all."""
    import pyarrow as pa
    from pyarrow import parquet

    layout = choices.sets.layout
    places = np.arange(layout.total) - np.repeat(layout.host_offsets[:-1], layout.host_lengths)
    ids = np.arange(len(layout)) if choices.set_ids is None else np.asarray(choices.set_ids)
    values = choices.sets.values.reshape(layout.total, len(columns.features)).cpu().numpy()
    table = pa.table(
        {
            columns.set_id: np.repeat(ids, layout.host_lengths),
            str(columns.item_id): places if choices.item_ids is None else np.asarray(choices.item_ids),
            **{name: values[:, place] for place, name in enumerate(columns.features)},
            str(columns.chosen): choices.subsets.values.cpu().numpy(),
        }
    )
    with atomic_write(path) as draft:
        parquet.write_table(table, draft)
    return path
