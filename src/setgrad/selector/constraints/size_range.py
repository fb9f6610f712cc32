"""A range of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from setgrad.discrete import CardinalityRange, CombinatorialSolver
from setgrad.errors import OptionError, ShapeError, parameter
from setgrad.selector.constraints._base import FixedItems, LinearConstraint
from setgrad.selector.constraints._rows import Rows
from setgrad.selector.constraints._solvers import GroupLimits

# Stands for no limit among whole numbers.
_NO_LIMIT = 2**31


@final
@dataclass(frozen=True, eq=False)
class SizeRange(LinearConstraint):
    """At least `min_size` and at most `max_size` items of each set; a set without items stays empty.

    Args:
        min_size: The smallest number of items, one number or one for each set. A set with fewer items has no allowed
            subset.
        max_size: The largest number of items, one number or one for each set; None for no limit.

    Raises:
        OptionError: If the range is empty or negative.
        ShapeError: If both have numbers for sets, and not for equally many.

    Examples:
        >>> SizeRange(1, 2).solver(np.array([0]), 3)(torch.tensor([[-3.0, -1.0, -2.0]]))
        tensor([[0., 1., 0.]])
    """

    min_size: int | Sequence[int] = 0
    max_size: int | Sequence[int] | None = None
    # Both as arrays: single numbers, or one for each set.
    _least: np.ndarray = field(init=False, repr=False)
    _most: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        least = _whole_numbers("min_size", self.min_size)
        most = _whole_numbers("max_size", _NO_LIMIT if self.max_size is None else self.max_size)
        if least.ndim and most.ndim and len(least) != len(most):
            raise ShapeError(
                f"{parameter('min_size')} has {len(least)} numbers and {parameter('max_size')} has {len(most)}; give "
                "one for each set"
            )
        if (least < 0).any() or (least > most).any():
            raise OptionError(
                f"SizeRange needs 0 <= {parameter('min_size')} <= {parameter('max_size')}, got "
                f"min_size={self.min_size}, max_size={self.max_size}"
            )
        object.__setattr__(self, "_least", least)
        object.__setattr__(self, "_most", most)

    @property
    def count(self) -> int | None:
        """Number of sets, if they have their own numbers."""
        return next((len(part) for part in (self._least, self._most) if part.ndim), None)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a solver for the best items.

        Raises:
            OptionError: If a set has fewer than `min_size` items.
        """
        least = self._limits(indices)[0]
        if len(least) and size < least.max():
            raise OptionError(f"cannot choose {least.max()} of {size} items; lower {parameter('min_size')}")
        if self.count is None:
            return CardinalityRange(int(self._least), None if self.max_size is None else int(self._most))
        return self.solver_beside(indices, size, FixedItems.none(len(indices), size))

    def solver_beside(self, indices: np.ndarray, size: int, fixed: FixedItems) -> CombinatorialSolver:
        """Return a solver for one group that holds all items."""
        least, most = (torch.from_numpy(part[:, None]) for part in self._limits(indices))
        groups = torch.zeros(len(indices), size, dtype=torch.long)
        return GroupLimits(groups, least, most, torch.from_numpy(fixed.chosen), torch.from_numpy(fixed.excluded))

    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return one row of ones."""
        least, most = (part[:, None].astype(np.float64) for part in self._limits(indices))
        return Rows(np.ones((len(indices), 1, size)), least, np.where(most < _NO_LIMIT, most, np.inf))

    def reason(self, index: int, fixed: FixedItems) -> str | None:
        """Tell that there are too few items, or that too many must be chosen."""
        least, most = (int(part[0]) for part in self._limits(np.array([index])))
        has, free, must = fixed.chosen.size, int((~fixed.excluded).sum()), int(fixed.chosen.sum())
        if has < least:
            return f"it needs at least {least} items and has {has}"
        if free < least:
            return f"it needs at least {least} items, and only {free} of its {has} may be chosen"
        return f"{must} items must be chosen, more than the largest size {most}" if must > most else None

    def smallest(self, index: int) -> int:
        """Return the smallest number of items of the set with this index."""
        return int(self._limits(np.array([index]))[0][0])

    def _limits(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        least, most = (p[indices] if p.ndim else np.full(len(indices), p) for p in (self._least, self._most))
        return least, most


def _whole_numbers(name: str, value: Any) -> np.ndarray:
    try:
        numbers = np.asarray(value)
    except ValueError:
        # Lists of different lengths have no shape; an object is rejected below.
        numbers = np.asarray(None)
    if not np.issubdtype(numbers.dtype, np.integer) or numbers.ndim > 1:
        raise OptionError(f"{parameter(name)} must be a whole number, or one for each set, not {value!r}")
    return numbers.astype(np.int64)
