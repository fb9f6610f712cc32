"""An array that grows by chunks of rows, for data whose length is not known in advance."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor


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
