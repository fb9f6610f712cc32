"""A limit on the total cost of the chosen items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from setgrad.discrete import CombinatorialSolver, Knapsack
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.errors import DataError, ShapeError, parameter
from setgrad.selector.constraints._base import FixedItems, LinearConstraint
from setgrad.selector.constraints._input import as_sets, next_power_of_2
from setgrad.selector.constraints._rows import Rows
from setgrad.selector.constraints._solvers import BesideFixed
from setgrad.sets import Sets

# Larger whole numbers are not exact as floats.
_MAX_EXACT = 2.0**53


@final
@dataclass(frozen=True, eq=False)
class Budget(LinearConstraint):
    """The costs of the chosen items sum to at most the budget.

    Whole costs (cents) are solved by dynamic programming. Other costs need an integer program, and so do whole ones if
    the budget and the total cost of a set are both above 20,000 times their common divisor; that needs SciPy
    (`pip install "setgrad[solvers]"`).

    Args:
        costs: The cost of each item, at least 0: a `Sets` of numbers aligned with the sets, or one list for each set.
        budget: One number, or one for each set.

    Raises:
        DataError: If a cost is negative or not finite, or the budget is NaN.
        ShapeError: If costs or budget have the wrong shape.

    Examples:
        >>> Budget([[3, 4, 5], [2, 2]], budget=[8, 2]).solver(np.array([0]), 3)(torch.tensor([[1.0, 1.0, 1.5]]))
        tensor([[1., 0., 1.]])
    """

    costs: Any
    budget: Any
    # Costs and budgets in units of the common divisor of a set, and whether dynamic programming can solve the set.
    _units: Sets = field(init=False, repr=False)
    _budget_units: np.ndarray = field(init=False, repr=False)
    _is_whole: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        costs = as_sets("costs", self.costs)
        wrong = ~(costs.values.isfinite() & (costs.values >= 0))
        if bool(wrong.any()):
            item = int(wrong.nonzero()[0])
            number = int(costs.layout.ids[item])
            raise DataError(
                f"the cost of item {item - int(costs.layout.host_offsets[number])} of set {number} is "
                f"{costs.values[item].item():g}; costs are finite numbers of at least 0"
            )
        name = parameter("budget")
        try:
            budget = np.asarray(self.budget, dtype=np.float64)
        except (TypeError, ValueError):
            raise ShapeError(f"{name} must be one number, or one for each set, not {self.budget!r}") from None
        if budget.shape not in ((), (len(costs),)):
            raise ShapeError(f"{name} has shape {budget.shape}; give one number, or one for each of {len(costs)} sets")
        if np.isnan(budget).any():
            raise DataError(f"{name} holds NaN; use inf for no limit")
        budget = np.broadcast_to(budget, (len(costs),))
        values = costs.values.double().numpy()
        whole = _reduce(np.logical_and, (values == np.round(values)) & (values < _MAX_EXACT), costs)
        units = np.where(np.repeat(whole, costs.layout.host_lengths), values, 0).astype(np.int64)
        divisor = np.maximum(_reduce(np.gcd, units, costs), 1)
        units //= np.repeat(divisor, costs.layout.host_lengths)
        budget_units = np.clip(np.floor(budget / divisor), -1, _reduce(np.add, units, costs)).astype(np.int64)
        derived = {
            "costs": costs,
            "budget": budget,
            "_units": costs.with_values(torch.from_numpy(units)),
            "_budget_units": budget_units,
            "_is_whole": whole & (budget_units <= MOST_STEPS),
        }
        for attribute, value in derived.items():
            object.__setattr__(self, attribute, value)

    @property
    def sizes(self) -> np.ndarray:
        """Number of costs of each set."""
        return self.costs.layout.host_lengths

    def batch_keys(self, indices: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Group sets whose sizes differ by less than a factor of 2; integer programs are solved one by one anyway."""
        return np.where(self._is_whole[indices], next_power_of_2(sizes), -sizes)

    def solver(self, indices: np.ndarray, size: int) -> CombinatorialSolver:
        """Return a knapsack solver."""
        if self._is_whole[indices].all():
            return Knapsack(self._units.take(indices).padded()[0], budget=self._budget_units[indices])
        return Knapsack(self.costs.take(indices).padded()[0], budget=self.budget[indices])

    def rows(self, indices: np.ndarray, size: int) -> Rows:
        """Return one row with the costs."""
        # Where a table of whole costs solves the set, the row is whole too: both then allow the same subsets.
        is_whole = self._is_whole[indices]
        units, costs = (part.take(indices).padded()[0].double().numpy() for part in (self._units, self.costs))
        # Larger by the rounding error of the costs in their own dtype.
        dtype = self.costs.dtype
        limit = self.budget[indices] * (1 + (torch.finfo(dtype).eps if dtype.is_floating_point else 0))
        upper = np.where(is_whole, self._budget_units[indices], limit)[:, None]
        return Rows(np.where(is_whole[:, None], units, costs)[:, None], np.full_like(upper, -np.inf), upper)

    def solver_beside(self, indices: np.ndarray, size: int, fixed: FixedItems) -> CombinatorialSolver | None:
        """Return a knapsack solver for what the chosen items leave of the budget, if costs are whole."""
        # The rest of a budget of fractions would be rounded.
        if not self._is_whole[indices].all():
            return None
        units = self._units.take(indices).padded()[0]
        chosen, excluded = torch.from_numpy(fixed.chosen), torch.from_numpy(fixed.excluded)
        rest = torch.from_numpy(self._budget_units[indices]) - (units * chosen).sum(-1)
        return BesideFixed(Knapsack(units, budget=rest, on_failure="mask"), chosen, excluded)

    def reason(self, index: int, fixed: FixedItems) -> str | None:
        """Tell that the budget is below 0, or that the items that must be chosen cost more."""
        budget, spent = self.budget[index], float(self.costs[index].double().numpy()[fixed.chosen[0]].sum())
        if budget < 0:
            return f"the budget {budget:.15g} is below 0"
        if spent <= budget * (1 + 1e-6):
            return None
        return f"the items that must be chosen cost {spent:.15g}, more than the budget {budget:.15g}"

    def reason_for_size(self, index: int, fixed: FixedItems, size: int) -> str | None:
        """Tell that no subset of at least this size is cheap enough."""
        costs, budget = self.costs[index].double().numpy(), self.budget[index]
        is_open = ~(fixed.chosen[0] | fixed.excluded[0])
        others = np.sort(costs[is_open])[: max(0, size - int(fixed.chosen.sum()))]
        spent = float(costs[fixed.chosen[0]].sum() + others.sum())
        if spent <= budget * (1 + 1e-6):
            return None
        return f"its cheapest subset of {size} items costs {spent:.15g}, more than the budget {budget:.15g}"


def _reduce(operation: np.ufunc, values: np.ndarray, sets: Sets) -> np.ndarray:
    """Reduce the values of each set; a set without items gives the identity of the operation."""
    out = np.full(len(sets), 1 if operation is np.logical_and else 0, dtype=values.dtype)
    filled = sets.layout.host_lengths > 0
    if filled.any():
        out[filled] = operation.reduceat(values, sets.layout.host_offsets[:-1][filled])
    return out
