"""The best items whose weights fit a budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._cuts import cut_too_heavy, solve_with_cuts
from setgrad.discrete.solvers._host import Array, HostPool, gather, to_host
from setgrad.discrete.solvers._knapsack_table import best_items
from setgrad.discrete.solvers._parameters import as_tensor, spread
from setgrad.discrete.solvers._shapes import bounded
from setgrad.discrete.solvers.backends import Backend, HiGHS, Program
from setgrad.errors import OptionError, ShapeError

# A budget of more steps than this makes the table slower than branch and bound.
MOST_STEPS = 20_000
# Sums of such weights stay within the whole numbers of a long.
_HEAVIEST = 2.0**40
# Whole numbers up to this are numbers of double precision, in which backends count.
_LARGEST = 2**53


@final
@dataclass(frozen=True, eq=False)
class Knapsack(CombinatorialSolver):
    """The items of the largest total worth whose weights together are at most the budget; theta is (*batch, n).

    Whole weights are solved by dynamic programming on theta's device, in time n * budget (both divided by the weights'
    common divisor), exactly up to the rounding of sums in theta's precision; a budget that rounding alone keeps below a
    whole number is that number. Other weights, and budgets above 20,000 steps, go to an integer program on the host
    (`pip install "setgrad[solvers]"`), where the sum may exceed the budget by no more than the rounding of the weights
    in their dtype; write prices in cents to stay with whole numbers. Of items equal in worth and weight those of lower
    index are taken first; items worth 0 or less are never taken. A budget below 0 makes the instance INFEASIBLE.

    Args:
        weights: What each item weighs, 0 or more: (*batch, n).
        budget: How much fits: a number or (*batch).
        backend: Who solves a program on the host.
        pool: Who solves the instances there.

    Example:
        >>> Knapsack([2, 3, 4], budget=5)(torch.tensor([3.0, 4.0, 6.0]))
        tensor([1., 1., 0.])
    """

    weights: Any
    budget: Any
    backend: Backend = field(default_factory=HiGHS)
    pool: HostPool = field(default_factory=HostPool)
    # Whole weights and budgets as long, divided by their common divisor; None where the table does not serve.
    _whole: tuple[Tensor, Tensor] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        weights, budget = as_tensor(self.weights), as_tensor(self.budget)
        if not (weights.isfinite().all() and (weights >= 0).all()):
            raise OptionError("weights must be finite and 0 or more; an item that must not be taken gets theta below 0")
        if budget.isnan().any():
            raise OptionError("budget holds NaN")
        if weights.ndim == 0:
            raise ShapeError("weights must be (*batch, n), one for each item, not one number")
        if not weights.is_floating_point() and weights.numel() and int(weights.max()) > _LARGEST:
            raise OptionError(
                f"whole weights must be at most {_LARGEST}, as floats hold them; divide all by one number"
            )
        object.__setattr__(self, "_whole", _steps(weights, budget))

    def check(self, theta: Tensor) -> None:
        """Refuse a theta with another number of items."""
        super().check(theta)
        if as_tensor(self.weights).shape[-1] != theta.shape[-1]:
            raise ShapeError(f"there are {as_tensor(self.weights).shape[-1]} weights, but {theta.shape[-1]} entries")

    def solve(self, theta: Tensor) -> SolverResult:
        """Fill the table, or hand the instances to the pool."""
        batch, n = theta.shape[:-1], theta.shape[-1]
        found = self._on_host(theta) if self._whole is None else self._by_table(*self._whole, theta)
        weights = spread("weights", as_tensor(self.weights).to(theta.device), batch, n)
        return SolverResult(_leftmost(found.value, theta, weights), found.status)

    def _by_table(self, weights: Tensor, budget: Tensor, theta: Tensor) -> SolverResult:
        batch, n = theta.shape[:-1], theta.shape[-1]
        weights, budget = (part.to(theta.device) for part in (weights, budget))
        room = spread("budget", budget, batch).reshape(-1)
        if weights.ndim > 1:
            weights = spread("weights", weights, batch, n).reshape(-1, n)
        z = best_items(bounded(theta, n).reshape(-1, n), weights, room.clamp(min=0))
        return SolverResult(z.reshape(theta.shape), _status(room).reshape(batch))

    def _on_host(self, theta: Tensor) -> SolverResult:
        batch, n = theta.shape[:-1], theta.shape[-1]
        weights = to_host(spread("weights", as_tensor(self.weights), batch, n)).reshape(-1, n)
        room = to_host(spread("budget", as_tensor(self.budget), batch)).reshape(-1)
        # Three times 0.1 is more than 0.3 in floats, and must fit all the same.
        room = room * (1 + _rounding(as_tensor(self.weights), as_tensor(self.budget)))
        jobs = list(zip(to_host(theta).reshape(-1, n), weights, room.tolist(), strict=True))
        return gather(self.pool.map(partial(_branch_and_bound, self.backend), jobs), theta)


def _rounding(weights: Tensor, budget: Tensor) -> float:
    """By which part of itself a sum of weights may miss the budget because numbers were rounded; 0 for whole ones."""
    # Rounding changes each weight, and so their sum, by a part of itself that does not grow with n.
    each = [torch.finfo(part.dtype).eps for part in (weights, budget) if part.is_floating_point()]
    return float(max(each) + weights.shape[-1] * np.finfo(np.float64).eps) if each else 0.0


def _floor(budget: Tensor, rounding: float) -> Tensor:
    """The whole number below, or the one above where only rounding keeps the budget from it: 0.29 * 100 is 29."""
    nearest = budget.round()
    return torch.where(nearest - budget <= rounding * budget, nearest, budget.floor()).long()


def _steps(weights: Tensor, budget: Tensor) -> tuple[Tensor, Tensor] | None:
    if weights.numel() == 0 or float(weights.max()) > _HEAVIEST:
        return None
    whole = weights.long()
    if not bool((weights == whole).all()):
        return None
    divisor = max(1, int(np.gcd.reduce(whole.reshape(-1).cpu().numpy())))
    # More than all items weigh is no different from just that.
    limit = budget.double().clamp(-1, float(whole.sum(-1).max()))
    room = torch.div(_floor(limit, _rounding(weights, budget)), divisor, rounding_mode="floor")
    return (whole // divisor, room) if int(room.max()) <= MOST_STEPS else None


def _status(room: Tensor) -> Tensor:
    return torch.where(room < 0, Status.INFEASIBLE, Status.SOLVED)


def _branch_and_bound(backend: Backend, job: tuple[Array, Array, float]) -> tuple[Array | None, Status]:
    """Solve one instance."""
    value, weights, room = job
    n = len(value)
    if room < 0:
        return None, Status.INFEASIBLE
    # What cannot be in any answer leaves before the solver comes.
    most = ((value > 0) & (weights <= room)).astype(float)
    program = Program(
        value,
        A=(weights * most)[None],
        lower=np.array([-np.inf]),
        upper=np.array([min(room, float(weights @ most))]),
        least=np.zeros(n),
        most=most,
        integer=np.ones(n, dtype=bool),
    )
    return solve_with_cuts(backend, program, partial(cut_too_heavy, weights * most, room))


def _leftmost(z: Tensor, theta: Tensor, weights: Tensor) -> Tensor:
    """As many items of each worth and weight, but the first of them: rounding and backends choose as they like."""
    if theta.device.type == "cpu":
        # Where no two items are worth the same there are no twins; a GPU would have to wait for the answer.
        worths = theta.sort(-1).values
        if not bool((worths[..., 1:] == worths[..., :-1]).any()):
            return z
    by_weight = weights.argsort(dim=-1, stable=True)
    order = by_weight.gather(-1, theta.gather(-1, by_weight).argsort(dim=-1, stable=True))
    theta, weights = theta.gather(-1, order), weights.gather(-1, order)
    new = (theta[..., 1:] != theta[..., :-1]) | (weights[..., 1:] != weights[..., :-1])
    kind = torch.nn.functional.pad(new.long().cumsum(-1), (1, 0))
    # Kinds stay where they are, and within each the chosen items come first.
    chosen = 2 * kind - (2 * kind - z.gather(-1, order).long()).sort(-1).values
    return torch.empty_like(z).scatter_(-1, order, chosen.to(z))
