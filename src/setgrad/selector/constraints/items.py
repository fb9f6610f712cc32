"""Items that must be chosen, and items that must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from setgrad.discrete import CardinalityRange, CombinatorialSolver
from setgrad.selector.constraints._base import FixedItems, LinearConstraint
from setgrad.selector.constraints._positions import Positions
from setgrad.selector.constraints._rows import Rows
from setgrad.selector.constraints._solvers import BesideFixed


@dataclass(frozen=True, eq=False)
class FixingConstraint(LinearConstraint):
    """A constraint that fixes whether items are chosen; a subclass says which way."""

    items: Any
    _positions: Positions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_positions", Positions.of("items", self.items))

    @property
    def count(self) -> int:
        """Number of sets."""
        return len(self._positions.lists)

    def check(self, sizes: np.ndarray) -> None:
        """Check that the items belong to sets of these sizes.

        Raises:
            DataError: If a set has no such item.
            ShapeError: If there are other sets.
        """
        self._positions.check(type(self).__name__, sizes)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver that chooses every other item with a score above 0."""
        fixed = self.fixed(indices, size)
        return BesideFixed(CardinalityRange(), torch.from_numpy(fixed.chosen), torch.from_numpy(fixed.excluded))


@final
@dataclass(frozen=True, eq=False)
class MustHave(FixingConstraint):
    """These items of each set are chosen.

    Args:
        items: For each set a list of positions, counted from 0, or a mask of booleans; or a `Sets` of booleans.

    Raises:
        DataError: If a position is negative or not a whole number.
        ShapeError: If there is not one list for each set.

    Examples:
        >>> MustHave([[2], []]).solver(np.array([0]), 3)(torch.tensor([[1.0, -1.0, -2.0]]))
        tensor([[1., 0., 1.]])
    """

    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return one row that counts the items."""
        mask = self._positions.masks(indices, size)
        count = mask.sum(-1, keepdims=True).astype(np.float64)
        return Rows(mask[:, None].astype(np.float64), count, np.full_like(count, np.inf))

    def fixed(self, indices: np.ndarray, size: int) -> FixedItems:
        """Return the items."""
        chosen = self._positions.masks(indices, size)
        return FixedItems(chosen, np.zeros_like(chosen))


@final
@dataclass(frozen=True, eq=False)
class MustNot(FixingConstraint):
    """These items of each set are not chosen.

    Args:
        items: For each set a list of positions, counted from 0, or a mask of booleans; or a `Sets` of booleans.

    Raises:
        DataError: If a position is negative or not a whole number.
        ShapeError: If there is not one list for each set.

    Examples:
        >>> MustNot([[True, False, False]]).solver(np.array([0]), 3)(torch.tensor([[3.0, 1.0, 2.0]]))
        tensor([[0., 1., 1.]])
    """

    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return one row that counts the items."""
        mask = self._positions.masks(indices, size)
        upper = np.zeros((len(indices), 1))
        return Rows(mask[:, None].astype(np.float64), np.full_like(upper, -np.inf), upper)

    def fixed(self, indices: np.ndarray, size: int) -> FixedItems:
        """Return the items."""
        excluded = self._positions.masks(indices, size)
        return FixedItems(np.zeros_like(excluded), excluded)
