"""The knapsack problem: the best items whose weights fit a budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._cuts import cover_cut, solve_with_cuts
from setgrad.discrete.solvers._knapsack_table import best_items
from setgrad.discrete.solvers._limits import scale_for_sum
from setgrad.discrete.solvers._parameters import as_tensor, broadcast_parameter
from setgrad.discrete.solvers._pool import Array, WorkerPool, stack_results, to_numpy
from setgrad.discrete.solvers.backends import Backend, HiGHS, Program
from setgrad.errors import OptionError, ShapeError

# With more budget steps than this, the table is slower than branch and bound.
MOST_STEPS = 20_000
# Sums of weights up to this fit into 64-bit integers.
_HEAVIEST = 2.0**40
# Double precision, in which backends compute, represents whole numbers up to this.
_LARGEST = 2**53


@final
@dataclass(frozen=True, eq=False)
class Knapsack(CombinatorialSolver):
    """The items with the largest total value whose total weight is at most the budget; theta is (*batch, n).

    Whole weights are solved by dynamic programming on theta's device, in time n * budget (both divided by the weights'
    greatest common divisor), exactly up to the rounding of sums in theta's precision. A budget that is below a whole
    number only by rounding counts as that number. Other weights, and budgets above 20,000 steps, are solved as integer
    programs on the CPU (`pip install "setgrad[solvers]"`); there the total weight may exceed the budget by the rounding
    of the weights in their dtype. Write prices in cents to use whole numbers. Of items with equal value and weight, the
    lower index is chosen first; items with theta of 0 or less are never chosen. A budget below 0 is INFEASIBLE.

    Args:
        weights: The weight of each item, 0 or more: (*batch, n).
        budget: The maximum total weight: a number or (*batch).
        backend: Solves integer programs on the CPU.
        pool: The workers that solve them.

    Raises:
        OptionError: If a weight is negative, not finite or too large, or the budget is NaN.
        ShapeError: If weights is a single number.

    Examples:
        >>> Knapsack([2, 3, 4], budget=5)(torch.tensor([3.0, 4.0, 6.0]))
        tensor([1., 1., 0.])
    """

    weights: Any
    budget: Any
    backend: Backend = field(default_factory=HiGHS)
    pool: WorkerPool = field(default_factory=WorkerPool)
    # Whole weights and budgets as integers, divided by their common divisor; None if the table cannot be used.
    _whole: tuple[Tensor, Tensor] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        weights, budget = as_tensor(self.weights), as_tensor(self.budget)
        if not (weights.isfinite().all() and (weights >= 0).all()):
            raise OptionError("weights must be finite and 0 or more; exclude an item by a theta below 0")
        if budget.isnan().any():
            raise OptionError("budget contains NaN")
        if weights.ndim == 0:
            raise ShapeError("weights must be (*batch, n), one for each item, not one number")
        if not weights.is_floating_point() and weights.numel() and int(weights.max()) > _LARGEST:
            raise OptionError(
                f"whole weights must be at most {_LARGEST}, the largest in double precision; divide weights and budget"
            )
        object.__setattr__(self, "_whole", _integer_steps(weights, budget))

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if theta has another number of items than weights."""
        super().check(theta)
        if as_tensor(self.weights).shape[-1] != theta.shape[-1]:
            raise ShapeError(f"there are {as_tensor(self.weights).shape[-1]} weights, but {theta.shape[-1]} entries")

    def solve(self, theta: Tensor) -> SolverResult:
        """Use the table, or solve integer programs in the pool."""
        batch, n = theta.shape[:-1], theta.shape[-1]
        result = self._solve_programs(theta) if self._whole is None else self._solve_by_table(*self._whole, theta)
        weights = broadcast_parameter("weights", as_tensor(self.weights).to(theta.device), batch, n)
        return SolverResult(_prefer_lower_index(result.value, theta, weights), result.status)

    def _solve_by_table(self, weights: Tensor, budget: Tensor, theta: Tensor) -> SolverResult:
        batch, n = theta.shape[:-1], theta.shape[-1]
        weights, budget = (part.to(theta.device) for part in (weights, budget))
        capacity = broadcast_parameter("budget", budget, batch).reshape(-1)
        if weights.ndim > 1:
            weights = broadcast_parameter("weights", weights, batch, n).reshape(-1, n)
        z = best_items(scale_for_sum(theta, n).reshape(-1, n), weights, capacity.clamp(min=0))
        return SolverResult(z.reshape(theta.shape), _status(capacity).reshape(batch))

    def _solve_programs(self, theta: Tensor) -> SolverResult:
        batch, n = theta.shape[:-1], theta.shape[-1]
        weights = to_numpy(broadcast_parameter("weights", as_tensor(self.weights), batch, n)).reshape(-1, n)
        capacity = to_numpy(broadcast_parameter("budget", as_tensor(self.budget), batch)).reshape(-1)
        # In floats three times 0.1 is more than 0.3, but must fit all the same.
        capacity = capacity * (1 + _rounding(as_tensor(self.weights), as_tensor(self.budget)))
        jobs = list(zip(to_numpy(theta).reshape(-1, n), weights, capacity.tolist(), strict=True))
        return stack_results(self.pool.map(partial(_branch_and_bound, self.backend), jobs), theta)


def _rounding(weights: Tensor, budget: Tensor) -> float:
    """Return by which fraction a sum of weights may differ from the budget through rounding; 0 for whole numbers."""
    # Rounding changes each weight, and so their sum, by a fraction that does not grow with n.
    each = [torch.finfo(part.dtype).eps for part in (weights, budget) if part.is_floating_point()]
    return float(max(each) + weights.shape[-1] * np.finfo(np.float64).eps) if each else 0.0


def _floor(budget: Tensor, rounding: float) -> Tensor:
    """Return the whole number below, or the one above if only rounding separates it: 0.29 * 100 is 29."""
    nearest = budget.round()
    return torch.where(nearest - budget <= rounding * budget, nearest, budget.floor()).long()


def _integer_steps(weights: Tensor, budget: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return weights and budgets as integers, divided by the common divisor; None if the table cannot be used."""
    if weights.numel() == 0 or float(weights.max()) > _HEAVIEST:
        return None
    whole = weights.long()
    if not bool((weights == whole).all()):
        return None
    divisor = max(1, int(np.gcd.reduce(whole.reshape(-1).cpu().numpy())))
    # A budget above the total weight makes no difference.
    limit = budget.double().clamp(-1, float(whole.sum(-1).max()))
    capacity = torch.div(_floor(limit, _rounding(weights, budget)), divisor, rounding_mode="floor")
    return (whole // divisor, capacity) if int(capacity.max()) <= MOST_STEPS else None


def _status(capacity: Tensor) -> Tensor:
    return torch.where(capacity < 0, Status.INFEASIBLE, Status.SOLVED)


def _branch_and_bound(backend: Backend, job: tuple[Array, Array, float]) -> tuple[Array | None, Status]:
    """Solve one instance: its values, weights and capacity."""
    value, weights, capacity = job
    n = len(value)
    if capacity < 0:
        return None, Status.INFEASIBLE
    # Leave out items that cannot be part of a solution.
    max_value = ((value > 0) & (weights <= capacity)).astype(float)
    program = Program(
        value,
        A=(weights * max_value)[None],
        lower=np.array([-np.inf]),
        upper=np.array([min(capacity, float(weights @ max_value))]),
        min_value=np.zeros(n),
        max_value=max_value,
        integer=np.ones(n, dtype=bool),
    )
    return solve_with_cuts(backend, program, partial(cover_cut, weights * max_value, capacity))


def _prefer_lower_index(z: Tensor, theta: Tensor, weights: Tensor) -> Tensor:
    """Return the same number of items of each value and weight, but those of lowest index; backends choose any."""
    if theta.device.type == "cpu":
        # Without items of equal value there is nothing to do; a GPU would have to wait for this check.
        values = theta.sort(-1).values
        if not bool((values[..., 1:] == values[..., :-1]).any()):
            return z
    by_weight = weights.argsort(dim=-1, stable=True)
    order = by_weight.gather(-1, theta.gather(-1, by_weight).argsort(dim=-1, stable=True))
    theta, weights = theta.gather(-1, order), weights.gather(-1, order)
    new = (theta[..., 1:] != theta[..., :-1]) | (weights[..., 1:] != weights[..., :-1])
    kind = torch.nn.functional.pad(new.long().cumsum(-1), (1, 0))
    # Kinds keep their places, and within each kind the chosen items come first.
    chosen = 2 * kind - (2 * kind - z.gather(-1, order).long()).sort(-1).values
    return torch.empty_like(z).scatter_(-1, order, chosen.to(z))
