"""A Parquet table cut into blocks of whole sets.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import pyarrow as pa
import torch

from setgrad.sets._choices import Choices, Table
from setgrad.sets._parquet import ParquetTable
from setgrad.sets._read import ItemReader, Roles, read_rows
from setgrad.sets._set_index import SetIndex
from setgrad.sets._sources import TableSource, without_views

# Row groups are taken together until a block has so many rows. Of a larger row group than the other number, blocks are
# parts, and each must be read from the beginning of the row group.
BLOCK_ROWS, LARGE_ROWS = 2**17, 2**21


@final
@dataclass(frozen=True, eq=False)
class SetBlocks:
    """The sets of a table in blocks; a set belongs to the block in which it begins.

    Attributes:
        table: The table.
        index: Its sets.
    """

    table: ParquetTable
    index: SetIndex

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @cached_property
    def bounds(self) -> np.ndarray:
        """The first set of each block, and the number of all sets."""
        bounds: np.ndarray = np.unique(np.searchsorted(self.index.starts, _cuts(self.table.starts)))
        return bounds

    @property
    def rows(self) -> np.ndarray:
        """The number of rows of each block."""
        rows: np.ndarray = np.diff(self.index.starts[self.bounds])
        return rows

    @property
    def largest_group(self) -> int:
        """The number of rows of the largest row group."""
        return int(np.diff(self.table.starts).max())

    def row_range(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and the first one behind it."""
        first, end = self.index.starts[self.bounds[block : block + 2]].tolist()
        return first, end

    def rows_of(self, sets: np.ndarray) -> TableSource:
        """Return the rows of some sets, by their numbers in ascending order, as a table; messages count these rows."""
        first, end = int(self.index.starts[sets[0]]), int(self.index.starts[sets[-1] + 1])
        is_wanted = np.zeros(end - first + 1, dtype=np.int64)
        is_wanted[self.index.starts[sets] - first] += 1
        is_wanted[self.index.starts[sets + 1] - first] -= 1
        mask = pa.array(np.cumsum(is_wanted)[:-1] > 0)

        def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
            row = 0
            for batch in self.table.read_range(first, end).batches(columns):
                rows = without_views(pa.Table.from_batches([batch])).filter(mask.slice(row, batch.num_rows))
                row += batch.num_rows
                yield from (part for part in rows.to_batches() if part.num_rows)

        return TableSource(self.table.name, True, self.table.schema, batches)

    def read(self, block: int, roles: Roles, reader: ItemReader, dtype: torch.dtype | None) -> Choices | Table:
        """Read the sets of a block; see `read_rows`."""
        return read_rows(self.table.read_range(*self.row_range(block)), roles, reader, dtype)


def _cuts(starts: np.ndarray) -> np.ndarray:
    """Return the rows at which blocks begin, and the number of rows, from the first rows of row groups."""
    cuts = [0]
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if end - first > LARGE_ROWS:
            cuts += [*range(first, end, BLOCK_ROWS)]
        if end - cuts[-1] >= BLOCK_ROWS:
            cuts.append(end)
    return np.unique([*cuts, int(starts[-1])])
