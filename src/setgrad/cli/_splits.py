"""Built-in data sets as tables, so that `fit`, `predict` and `evaluate` can be tried on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from setgrad._files import atomic_write
from setgrad.datasets import Task
from setgrad.selector import TableSchema
from setgrad.sets import Choices


def task_schema(task: Task) -> TableSchema:
    """Return names for the columns of a task."""
    width = int(np.prod(task.train.sets.item_shape))
    features = tuple(f"x{number}" for number in range(1, width + 1))
    return TableSchema("set", features, "item", "chosen", TableSchema.dtype_name(task.train.sets.dtype))


def write_split(path: Path, choices: Choices, schema: TableSchema) -> None:
    """Write one split to a Parquet file, one row for each item.

    Raises:
        DataError: If the file cannot be written.
    """
    import pyarrow as pa

    from setgrad.sets._formats import write_parquet

    layout = choices.sets.layout
    positions = np.arange(layout.total) - np.repeat(layout.host_offsets[:-1], layout.host_lengths)
    ids = np.arange(len(layout)) if choices.set_ids is None else np.asarray(choices.set_ids)
    values = choices.sets.values.reshape(layout.total, len(schema.features)).cpu().numpy()
    table = pa.table(
        {
            str(schema.set_id): np.repeat(ids, layout.host_lengths),
            str(schema.item_id): positions if choices.item_ids is None else np.asarray(choices.item_ids),
            **{name: values[:, index] for index, name in enumerate(schema.features)},
            str(schema.chosen): choices.subsets.values.cpu().numpy(),
        }
    )
    with atomic_write(path) as temporary:
        write_parquet(table, temporary)
