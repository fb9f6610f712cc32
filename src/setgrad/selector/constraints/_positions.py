"""Items of each set by their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch import Tensor

from setgrad.errors import DataError, ShapeError, parameter
from setgrad.selector.constraints._input import as_lists
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class Positions:
    """Some items of each set.

    Attributes:
        lists: Their positions in the set, one array for each set.
        sizes: The size of each set; -1 where a list of positions does not tell it.
    """

    lists: list[np.ndarray]
    sizes: np.ndarray

    @staticmethod
    def of(name: str, items: Any) -> Positions:
        """Read lists of positions or masks, one for each set.

        Args:
            name: Name of the parameter, for messages.
            items: What the user passed.

        Raises:
            DataError: If a position is negative or not a whole number.
            ShapeError: If there is not one list for each set.
        """
        parts = items.to_list() if isinstance(items, Sets) else as_lists(name, items)
        arrays = [_as_array(name, index, part) for index, part in enumerate(parts)]
        lists = [np.flatnonzero(array) if array.dtype == bool else array for array in arrays]
        return Positions(lists, np.array([len(array) if array.dtype == bool else -1 for array in arrays], dtype=int))

    def check(self, owner: str, sizes: np.ndarray) -> None:
        """Check that the positions exist in sets of these sizes; `owner` begins the message.

        Raises:
            DataError: If a set has no such item.
            ShapeError: If there are other sets, or a mask has another length.
        """
        if len(self.lists) != len(sizes):
            raise ShapeError(f"{owner} belongs to {len(self.lists)} sets, but there are {len(sizes)}")
        wrong = np.flatnonzero((self.sizes >= 0) & (self.sizes != sizes))
        if len(wrong):
            first = int(wrong[0])
            raise ShapeError(
                f"{owner} has a mask of {self.sizes[first]} items for set {first}, which has {sizes[first]} items"
            )
        for index, (part, size) in enumerate(zip(self.lists, sizes, strict=True)):
            if len(part) and part.max() >= size:
                raise DataError(
                    f"{owner} names item {part.max()} of set {index}, but that set has {size} items, counted from 0"
                )

    def masks(self, indices: np.ndarray, size: int) -> np.ndarray:
        """Return the items of the sets with these indices as booleans `(len(indices), size)`."""
        out = np.zeros((len(indices), size), dtype=bool)
        for row, index in zip(out, indices, strict=True):
            row[self.lists[index]] = True
        return out


def _as_array(name: str, index: int, part: Any) -> np.ndarray:
    if isinstance(part, Tensor):
        part = part.detach().cpu().numpy()
    array = np.asarray(sorted(part) if isinstance(part, (set, frozenset)) else part)
    if not array.size:
        # An empty list of positions, unless it is the mask of an empty set, which is the same.
        return np.zeros(0, dtype=np.int64)
    is_whole = array.dtype == bool or np.issubdtype(array.dtype, np.integer)
    if array.ndim != 1 or not is_whole or (array.dtype != bool and array.min() < 0):
        raise DataError(
            f"{parameter(name)} of set {index} must be positions counted from 0, or a mask of booleans, not {part!r}"
        )
    return array
