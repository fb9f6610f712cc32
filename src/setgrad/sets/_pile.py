"""One array that grows by pieces, for data that comes in parts of unknown number."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor


@final
class Pile:
    """Rows piled up in one array: a list of parts, joined at the end, would hold all of them twice.

    Example:
        >>> pile = Pile(np.float32, torch.float32)
        >>> for part in ([1.0, 2.0], [3.0]):
        ...     pile.add(np.array(part))
        >>> pile.take().tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(self, kind: type[np.generic], dtype: torch.dtype) -> None:
        self._array = np.empty(0, kind)
        self._rows = 0
        self._dtype = dtype

    def add(self, part: np.ndarray) -> None:
        """Put rows on top; all parts need the same shape but for the number of rows."""
        need = self._rows + len(part)
        if need > len(self._array):
            # In place, by the allocator: large blocks are moved without being copied. A quarter more than last time,
            # so that the number of moves stays small.
            room = max(need, len(self._array) * 5 // 4)
            self._array.resize((room, *part.shape[1:]), refcheck=False)
        self._array[self._rows : need] = part
        self._rows = need

    def take(self) -> Tensor:
        """Return everything as one tensor and leave nothing behind."""
        array, rows = self._array, self._rows
        self._array, self._rows = np.empty(0, array.dtype), 0
        array.resize((rows, *array.shape[1:]), refcheck=False)
        return torch.from_numpy(array).to(self._dtype)
