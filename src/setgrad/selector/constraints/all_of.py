"""Several constraints at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, TypeAlias, final

import numpy as np

from setgrad.discrete import CombinatorialSolver, IntegerProgram
from setgrad.errors import OptionError, ShapeError
from setgrad.selector.constraints._base import Constraint, FixedItems, LinearConstraint
from setgrad.selector.constraints._exact import ExactBackend
from setgrad.selector.constraints._rows import Rows
from setgrad.selector.constraints.budget import Budget
from setgrad.selector.constraints.items import FixingConstraint
from setgrad.selector.constraints.size_range import SizeRange

# What users may pass as a constraint: one, a solver, or a list of constraints that all hold.
AnyConstraint: TypeAlias = Constraint | CombinatorialSolver | Sequence[LinearConstraint]


@final
@dataclass(frozen=True, eq=False)
class AllOf(LinearConstraint):
    """Several constraints at once, as one integer program for each set (`pip install "setgrad[solvers]"`).

    Items that must or must not be chosen need no integer program beside one `Budget` of whole costs, one `Groups`, one
    `SizeRange`, or one `Conflicts` in which no item is part of two.

    Args:
        parts: Linear constraints, several of a kind if needed. An `AllOf` among them stands for its parts.

    Raises:
        OptionError: If a part is not a `LinearConstraint`.
        ShapeError: If the parts belong to different sets.

    Examples:
        >>> import torch, setgrad as sg
        >>> both = AllOf([sg.Budget([[3, 4, 5]], budget=9), SizeRange(max_size=1)])
        >>> both.solver(np.array([0]), 3)(torch.tensor([[1.0, 3.0, 2.0]]))
        tensor([[0., 1., 0.]])
    """

    parts: Sequence[LinearConstraint]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Sequence) or not self.parts:
            raise OptionError("AllOf takes a list of at least one constraint, such as Budget, Groups or SizeRange")
        parts = list(_flat(self.parts))
        object.__setattr__(self, "parts", parts)
        counts = {part.count for part in parts if part.count is not None}
        known = [part.sizes for part in parts if part.sizes is not None]
        if len(counts) > 1 or any(not np.array_equal(sizes, known[0]) for sizes in known):
            raise ShapeError("the parts of AllOf belong to different sets; give each of them the same sets, in order")

    @property
    def sizes(self) -> np.ndarray | None:
        """Sizes of the sets that the parts belong to."""
        return next((part.sizes for part in self.parts if part.sizes is not None), None)

    @property
    def count(self) -> int | None:
        """Number of sets that the parts belong to."""
        return next((part.count for part in self.parts if part.count is not None), None)

    def check(self, sizes: np.ndarray) -> None:
        """Check that all parts belong to sets of these sizes.

        Raises:
            DataError: If a set has no such item.
            ShapeError: If there are other sets.
        """
        for part in self.parts:
            part.check(sizes)

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the keys of the only part, or of sets of one size that one kind of solver solves."""
        if len(self.parts) == 1:
            return self.parts[0].batch_keys(indices, sizes)
        main = self._main
        # Budget and Conflicts mark the sets that need an integer program by a negative key.
        return sizes if main is None else sizes * np.where(main.batch_keys(indices, sizes) < 0, -1, 1)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return the solver of the only part, a fast solver beside fixed items, or an integer program."""
        if len(self.parts) == 1:
            return self.parts[0].solver(indices, size)
        main = self._main
        fast = None if main is None else main.solver_beside(indices, size, self.fixed(indices, size))
        if fast is not None:
            return fast
        A, lower, upper = self.rows(indices, size)
        return IntegerProgram(A, upper=upper, lower=lower, backend=ExactBackend())

    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return the rows of all parts."""
        parts = [part.rows(indices, size) for part in self.parts]
        return Rows(*(np.concatenate(arrays, 1) for arrays in zip(*parts, strict=True)))

    def allows(self, indices: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return which subsets all parts allow."""
        return np.logical_and.reduce([part.allows(indices, points) for part in self.parts])

    def is_hopeless(self, indices: np.ndarray, size: int) -> np.ndarray:
        """Return for which sets one part alone excludes every subset."""
        return np.logical_or.reduce([part.is_hopeless(indices, size) for part in self.parts])

    def fixed(self, indices: np.ndarray, size: int) -> FixedItems:
        """Return the items that the parts fix."""
        return reduce(or_, (part.fixed(indices, size) for part in self.parts))

    def reason(self, index: int, fixed: FixedItems) -> str | None:
        """Return the first reason that one part can tell."""
        both = np.flatnonzero(fixed.chosen & fixed.excluded)
        if len(both):
            return f"item {both[0]} (counted from 0) must be chosen, and must not"
        texts = [part.reason(index, fixed) for part in self.parts]
        sizes = [part for part in self.parts if isinstance(part, SizeRange)]
        for budget in (part for part in self.parts if isinstance(part, Budget)):
            texts += [budget.reason_for_size(index, fixed, part.smallest(index)) for part in sizes]
        return next((text for text in texts if text is not None), None)

    @property
    def _main(self) -> LinearConstraint | None:
        """The only part that does more than to fix items; None if there are several."""
        others = [part for part in self.parts if not isinstance(part, FixingConstraint)]
        return None if len(others) > 1 else (others or [SizeRange()])[0]


def as_constraint(constraint: AnyConstraint) -> Any:
    """Return one constraint or solver for what a user passed; a list without entries allows every subset.

    Raises:
        OptionError: If an entry of the list is not a `LinearConstraint`.
        ShapeError: If its entries belong to different sets.

    Examples:
        >>> as_constraint([SizeRange(1, 2)])
        SizeRange(min_size=1, max_size=2)
    """
    if not isinstance(constraint, (list, tuple)):
        return constraint
    return AllOf(constraint) if len(constraint) > 1 else (*constraint, SizeRange())[0]


def _flat(parts: Any) -> Iterator[LinearConstraint]:
    for part in parts:
        if isinstance(part, AllOf):
            yield from part.parts
        elif isinstance(part, LinearConstraint):
            yield part
        else:
            raise OptionError(
                f"several constraints at once are linear ones, such as Budget, Groups or SizeRange, not "
                f"{type(part).__name__}; a solver of setgrad.discrete stands alone"
            )
