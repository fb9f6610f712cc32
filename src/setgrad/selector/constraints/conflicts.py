"""Items that exclude each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from setgrad.discrete import CombinatorialSolver, IntegerProgram
from setgrad.errors import DataError, parameter
from setgrad.selector.constraints._base import FixedItems, LinearConstraint
from setgrad.selector.constraints._exact import ExactBackend
from setgrad.selector.constraints._input import as_lists
from setgrad.selector.constraints._positions import Positions
from setgrad.selector.constraints._rows import Rows
from setgrad.selector.constraints._solvers import GroupLimits


@final
@dataclass(frozen=True, eq=False)
class Conflicts(LinearConstraint):
    """Of the items of each conflict at most one is chosen.

    Sets in which an item is part of several conflicts need an integer program (`pip install "setgrad[solvers]"`).

    Args:
        groups: For each set a list of its conflicts, [] for none. A conflict is a pair or a longer list of positions,
            counted from 0. An item may be part of several conflicts.

    Raises:
        DataError: If a conflict is not a list of positions.
        ShapeError: If there is not one list for each set.

    Examples:
        >>> rivals = Conflicts([[(0, 1), (1, 2)]])
        >>> rivals.solver(np.array([0]), 3)(torch.tensor([[2.0, 3.0, 2.0]]))
        tensor([[1., 0., 1.]])
    """

    groups: Any
    # The conflicts of each set, and whether no item is part of two.
    _positions: list[Positions] = field(init=False, repr=False)
    _is_disjoint: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name = parameter("groups")
        found = []
        for index, part in enumerate(as_lists("groups", self.groups)):
            conflicts = list(part)
            if not all(isinstance(conflict, Iterable) and not isinstance(conflict, str) for conflict in conflicts):
                raise DataError(
                    f"{name} of set {index} must be a list of conflicts, each a list of positions, not {conflicts!r}; "
                    "write [(0, 1)] for one pair"
                )
            found.append(Positions.of("groups", conflicts))
        is_disjoint = [len(set().union(*part.lists)) == sum(len(set(items)) for items in part.lists) for part in found]
        object.__setattr__(self, "_positions", found)
        object.__setattr__(self, "_is_disjoint", np.array(is_disjoint, dtype=bool))

    @staticmethod
    def from_labels(labels: Iterable[Sequence[Hashable]]) -> Conflicts:
        """Return the conflicts of items with the same label in a set; None is the label of no conflict.

        Examples:
            >>> Conflicts.from_labels([["a", None, "a"], [None]]).groups
            [[[0, 2]], []]
        """
        groups = []
        for part in labels:
            places: dict[Hashable, list[int]] = {}
            for place, label in enumerate(part):
                if label is not None:
                    places.setdefault(label, []).append(place)
            groups.append(list(places.values()))
        return Conflicts(groups)

    @property
    def count(self) -> int:
        """Number of sets."""
        return len(self._positions)

    def check(self, sizes: np.ndarray) -> None:
        """Check that the conflicts belong to sets of these sizes.

        Raises:
            DataError: If a set has no such item.
            ShapeError: If there are other sets.
        """
        super().check(sizes)
        for index, (conflicts, size) in enumerate(zip(self._positions, sizes, strict=True)):
            worst = max((int(part.max()) for part in conflicts.lists if len(part)), default=-1)
            if worst >= size:
                raise DataError(
                    f"{type(self).__name__} names item {worst} of set {index}, but that set has {size} items, counted "
                    "from 0"
                )

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the sizes, negative for sets that need an integer program."""
        return np.where(self._is_disjoint[indices], sizes, -sizes)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver for the best item of each conflict, or an integer program."""
        fast = self.solver_beside(indices, size, FixedItems.none(len(indices), size))
        if fast is not None:
            return fast
        A, lower, upper = self.rows(indices, size)
        return IntegerProgram(A, upper=upper, lower=lower, backend=ExactBackend())

    def solver_beside(self, indices: np.ndarray, size: int, fixed: FixedItems) -> CombinatorialSolver | None:
        """Return a solver with conflicts as groups, if no item is part of two."""
        if not self._is_disjoint[indices].all():
            return None
        # The first group, of all items without a conflict, has no limit.
        parts = [self._positions[index].lists for index in indices]
        at_most = torch.ones(len(indices), 1 + max(map(len, parts), default=0), dtype=torch.long)
        at_most[:, 0] = size
        groups = np.zeros((len(indices), size), dtype=np.int64)
        for row, conflicts in zip(groups, parts, strict=True):
            for code, items in enumerate(conflicts, 1):
                row[items] = code
        chosen, excluded = torch.from_numpy(fixed.chosen), torch.from_numpy(fixed.excluded)
        return GroupLimits(torch.from_numpy(groups), torch.zeros_like(at_most), at_most, chosen, excluded)

    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return one row for each conflict; rows of zeros fill up the sets with fewer."""
        parts = [self._positions[index] for index in indices]
        A = np.zeros((len(indices), max(1, max((len(p.lists) for p in parts), default=0)), size))
        for block, part in zip(A, parts, strict=True):
            block[: len(part.lists)] = part.masks(np.arange(len(part.lists)), size)
        upper = np.ones(A.shape[:2])
        return Rows(A, np.full_like(upper, -np.inf), upper)

    def reason(self, index: int, fixed: FixedItems) -> str | None:
        """Tell which two items that must be chosen exclude each other."""
        for part in self._positions[index].lists:
            must = [int(item) for item in np.unique(part) if fixed.chosen[0, item]]
            if len(must) > 1:
                return f"items {must[0]} and {must[1]} (counted from 0) must be chosen, and they exclude each other"
        return None
