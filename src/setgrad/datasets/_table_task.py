"""`TableTask`, which every table of the package returns, and what its generators share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from setgrad.datasets._task import Counts, resolve_counts

if TYPE_CHECKING:
    import pyarrow


@final
@dataclass(frozen=True, eq=False, repr=False)
class TableTask:
    """Two tables with one row for each item: one to learn from, one to choose from and to score.

    Attributes:
        name: The name with which `load_table` returns the same tables.
        description: What a row is, and what was chosen.
        train: The table to learn from, a PyArrow table; `train.to_pandas()` is a data frame of pandas.
        test: Other sets, with the same columns.
        set_id: The column with the id of the set.
        item_id: The column with the id of the item.
        chosen: The column that is true for chosen items.
        source: Where the data come from, and under which licence.
    """

    name: str
    description: str
    train: pyarrow.Table
    test: pyarrow.Table
    set_id: str
    item_id: str
    chosen: str
    source: str = "Generated, so no licence is needed."

    @property
    def roles(self) -> dict[str, str]:
        """The names of the columns as arguments of `fit`: `fit(task.train, **task.roles)`."""
        return {"set_id": self.set_id, "item_id": self.item_id, "chosen": self.chosen}

    def __repr__(self) -> str:
        rows = f"{self.train.num_rows} rows to learn from, {self.test.num_rows} to test on"
        return f"TableTask({self.name!r}: {rows}, {self.train.num_columns} columns)"


def resolve_two(n_train: int | None, n_test: int | None, defaults: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of sets of both tables, with the default where None was requested.

    Raises:
        OptionError: If a number is not an integer of at least 0.
    """
    requested: Counts = (n_train, None, n_test)
    train, _, test = resolve_counts(requested, (defaults[0], 0, defaults[1]))
    return train, test


def stack_sets(sets: Iterable[Mapping[str, Any]], types: Mapping[str, Any]) -> pyarrow.Table:
    """Return a table with the columns of all sets, one after the other.

    Args:
        sets: Columns by name: an array with one value for each item, or one value for all items. NaN becomes a gap.
        types: The PyArrow type of each column, in the order of the table.
    """
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in types}
    for one in sets:
        size = next(len(value) for value in one.values() if isinstance(value, np.ndarray))
        for name, values in columns.items():
            value = one[name]
            values.extend(value if isinstance(value, np.ndarray) else [value] * size)
    arrays = [pa.array(values, types[name], from_pandas=True) for name, values in columns.items()]
    return pa.table(dict(zip(types, arrays, strict=True)))
