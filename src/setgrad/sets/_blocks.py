"""A Parquet table cut into blocks of whole sets.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch

from setgrad.sets._choices import Choices, Table
from setgrad.sets._parquet import ParquetTable
from setgrad.sets._read import ItemReader, Roles, read_rows
from setgrad.sets._set_index import SetIndex

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
