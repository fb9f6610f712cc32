"""The base classes of all constraints."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

import numpy as np

from setgrad.discrete import CombinatorialSolver
from setgrad.errors import ShapeError
from setgrad.selector.constraints._rows import Rows, never_met, rows_allow


@final
@dataclass(frozen=True, eq=False)
class FixedItems:
    """Items of several sets of one size whose choice is fixed: booleans `(sets, size)`.

    Attributes:
        chosen: The items that must be chosen.
        excluded: The items that must not.
    """

    chosen: np.ndarray
    excluded: np.ndarray

    @staticmethod
    def none(count: int, size: int) -> FixedItems:
        """Return that nothing is fixed in `count` sets."""
        return FixedItems(np.zeros((count, size), dtype=bool), np.zeros((count, size), dtype=bool))

    def __or__(self, other: FixedItems) -> FixedItems:
        return FixedItems(self.chosen | other.chosen, self.excluded | other.excluded)


class Constraint(abc.ABC):
    """A constraint on subsets: it returns solvers for the best allowed subset.

    A subclass needs `solver`, and `sizes` if it holds numbers for sets or items.
    """

    @abc.abstractmethod
    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver for scores `(len(indices), size)`, with one row for each of the sets with these indices."""

    @property
    def sizes(self) -> np.ndarray | None:
        """Sizes of the sets that the numbers belong to; None if the constraint fits sets of any sizes."""
        return None

    @property
    def count(self) -> int | None:
        """Number of sets that the numbers belong to; None if the constraint fits any sets."""
        return None if self.sizes is None else len(self.sizes)

    def check(self, sizes: np.ndarray) -> None:
        """Check that the numbers belong to sets of these sizes.

        Raises:
            ShapeError: If they do not.
        """
        name = type(self).__name__
        if self.count is not None and self.count != len(sizes):
            raise ShapeError(f"{name} belongs to {self.count} sets, but there are {len(sizes)}")
        if self.sizes is not None and not np.array_equal(self.sizes, sizes):
            first = int(np.flatnonzero(self.sizes != sizes)[0])
            raise ShapeError(f"{name} has {self.sizes[first]} numbers for set {first}, which has {sizes[first]} items")

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return a key for each set: sets with the same key are solved in one call. By default the key is the size.

        If sizes under one key differ, short sets are padded with items of very low score, which must not be chosen.
        """
        return sizes


class LinearConstraint(Constraint):
    """A constraint of the form lower <= A z <= upper."""

    @abc.abstractmethod
    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return A `(len(indices), rows, size)`, and lower and upper `(len(indices), rows)`, for sets of this size."""

    def allows(self, indices: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return which subsets are allowed, `(m, len(indices))`, for booleans `(m, len(indices), size)`."""
        return rows_allow(Rows(*self.rows(indices, points.shape[-1])), points)

    def is_hopeless(self, indices: np.ndarray, size: int) -> np.ndarray:
        """Return for which sets one inequality alone excludes every subset, `(len(indices),)`."""
        return never_met(Rows(*self.rows(indices, size)))

    def fixed(self, indices: np.ndarray, size: int) -> FixedItems:
        """Return the items that the constraint fixes directly; by default none."""
        return FixedItems.none(len(indices), size)

    def solver_beside(self, indices: np.ndarray, size: int, fixed: FixedItems) -> CombinatorialSolver | None:
        """Return a fast solver for this constraint and the fixed items; None, the default, for an integer program."""
        return None

    def reason(self, index: int, fixed: FixedItems) -> str | None:
        """Return why the set with this index has no allowed subset beside the fixed items `(1, size)`.

        None, the default, if this constraint alone does not tell.
        """
        return None
