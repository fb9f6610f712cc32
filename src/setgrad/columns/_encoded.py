"""The numbers of the rows of a column, each different value once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np


@final
@dataclass(frozen=True, eq=False)
class Encoded:
    """The numbers of the rows of a column.

    Many rows have the same title or brand, so that the different ones take little memory, and are compared fast.

    Attributes:
        values: Numbers of the different values `(values, width)`.
        rows: The value of each row; None if each row has its own, in order.
    """

    values: np.ndarray
    rows: np.ndarray | None = None

    @property
    def block(self) -> np.ndarray:
        """The numbers of the rows, `(rows, width)`."""
        return self.values if self.rows is None else self.values[self.rows]

    def write_to(self, block: np.ndarray) -> None:
        """Write the numbers of the rows into an array `(rows, width)`."""
        if self.rows is None:
            block[:] = self.values
        else:
            # In the type of the block first, because there are fewer different values than rows.
            block[:] = self.values.astype(block.dtype, copy=False)[self.rows]

    def fingerprints(self, weights: np.ndarray) -> np.ndarray:
        """Return a number for each row that rows with equal numbers share, and others by chance only.

        Args:
            weights: A random number for each of the numbers, `(width,)`.
        """
        # One column after the other: a matrix product may round equal rows in different ways.
        total = np.zeros(len(self.values))
        for index, weight in enumerate(weights):
            total += self.values[:, index] * weight
        return total if self.rows is None else total[self.rows]
