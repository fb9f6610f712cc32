"""Arrays that grow row by row, and the check whether numbers keep their digits in float32."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

# An error above this share of a column's range is more than rounding.
_RANGE_SHARE = 1e-4


@final
class Float32LossCheck:
    """Collects the rounding errors of columns that are converted to float32 in chunks.

    float64 is needed if a number changes by 1/2 or more, as integers above 2**24 do (times, counts, codes), or by more
    than a small share of the range of its column, as numbers with a small spread far from 0 do.

    Examples:
        >>> check = Float32LossCheck(1)
        >>> check.update(0, np.array([0.1, 1e6, 2.0**24]))
        >>> check.needs_float64
        False
        >>> check.update(0, np.array([2**24 + 1]))
        >>> check.needs_float64
        True
    """

    def __init__(self, columns: int) -> None:
        self._error = np.zeros(columns)
        self._min, self._max = np.full(columns, np.inf), np.full(columns, -np.inf)

    def update(self, column: int, values: np.ndarray) -> None:
        """Add the next chunk of a column; its values must be finite."""
        if not len(values) or np.can_cast(values.dtype, np.float32):
            return
        exact = values.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(exact - exact.astype(np.float32)).max()
        self._error[column] = max(self._error[column], error)
        self._min[column] = min(self._min[column], exact.min())
        self._max[column] = max(self._max[column], exact.max())

    @property
    def needs_float64(self) -> bool:
        """Whether at least one column loses too much precision in float32."""
        # A constant column has no range to compare with; a column of a type that always fits has a range of -inf.
        span = self._max - self._min
        return bool((self._error >= 0.5).any() or ((span > 0) & (self._error > _RANGE_SHARE * span)).any())


@final
class GrowableArray:
    """Collects rows in one array. Concatenating a list of chunks at the end would hold all rows twice.

    Examples:
        >>> array = GrowableArray(np.float32, torch.float32)
        >>> for chunk in ([1.0, 2.0], [3.0]):
        ...     array.append(np.array(chunk))
        >>> array.pop().tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(self, storage: type[np.generic], dtype: torch.dtype) -> None:
        self._array = np.empty(0, storage)
        self._rows = 0
        self._dtype = dtype

    def append(self, chunk: np.ndarray) -> None:
        """Add rows at the end; all chunks must have rows of the same shape."""
        rows = self._rows + len(chunk)
        if rows > len(self._array):
            # Resizing in place lets the allocator move large blocks without a copy. Growing by a quarter keeps the
            # number of moves small.
            capacity = max(rows, len(self._array) * 5 // 4)
            self._array.resize((capacity, *chunk.shape[1:]), refcheck=False)
        self._array[self._rows : rows] = chunk
        self._rows = rows

    def pop(self) -> Tensor:
        """Return all rows as one tensor of type `dtype`, and release them."""
        array, rows = self._array, self._rows
        self._array, self._rows = np.empty(0, array.dtype), 0
        array.resize((rows, *array.shape[1:]), refcheck=False)
        return torch.from_numpy(array).to(self._dtype)
