"""The best items whose weights fit a budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete._solver import Solved, Solver
from setgrad.discrete._status import Status
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


@final
@dataclass(frozen=True, eq=False)
class Knapsack(Solver):
    """The items of the largest total worth whose weights together are at most the budget; theta is (*batch, n).

    Whole weights are solved by dynamic programming on theta's device, in time n * budget (both divided by the weights'
    common divisor), exactly up to the rounding of sums in theta's precision. Other weights, and budgets above 20,000
    steps, go to an integer program on the host (`pip install "setgrad[solvers]"`), where the sum may exceed the budget
    by no more than the rounding of such a sum; write prices in cents to stay with whole numbers. Equal items go to the
    lower index; items worth 0 or less are never taken. A budget below 0 makes the instance INFEASIBLE.

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
        object.__setattr__(self, "_whole", _steps(weights, budget))

    def check(self, theta: Tensor) -> None:
        """Refuse a theta with another number of items."""
        super().check(theta)
        if as_tensor(self.weights).shape[-1] != theta.shape[-1]:
            raise ShapeError(f"there are {as_tensor(self.weights).shape[-1]} weights, but {theta.shape[-1]} entries")

    def solve(self, theta: Tensor) -> Solved:
        """Fill the table, or hand the instances to the pool."""
        batch, n = theta.shape[:-1], theta.shape[-1]
        if self._whole is None:
            return self._on_host(theta)
        weights, budget = (part.to(theta.device) for part in self._whole)
        room = spread("budget", budget, batch).reshape(-1)
        if weights.ndim > 1:
            weights = spread("weights", weights, batch, n).reshape(-1, n)
        z = best_items(bounded(theta, n).reshape(-1, n), weights, room.clamp(min=0))
        return Solved(z.reshape(theta.shape), _status(room).reshape(batch))

    def _on_host(self, theta: Tensor) -> Solved:
        batch, n = theta.shape[:-1], theta.shape[-1]
        weights = to_host(spread("weights", as_tensor(self.weights), batch, n)).reshape(-1, n)
        room = to_host(spread("budget", as_tensor(self.budget), batch)).reshape(-1)
        # Three times 0.1 is more than 0.3 in floats, and must fit all the same.
        kind = as_tensor(self.weights).dtype
        room = room * (1 + n * torch.finfo(kind if kind.is_floating_point else torch.float64).eps)
        jobs = list(zip(to_host(theta).reshape(-1, n), weights, room, strict=True))
        return gather(self.pool.map(partial(_branch_and_bound, self.backend), jobs), theta)


def _steps(weights: Tensor, budget: Tensor) -> tuple[Tensor, Tensor] | None:
    if not bool((weights == weights.round()).all()) or weights.numel() == 0 or float(weights.max()) > _HEAVIEST:
        return None
    whole = weights.long()
    divisor = max(1, int(np.gcd.reduce(whole.reshape(-1).cpu().numpy())))
    # More than all items weigh is no different from just that.
    budget = budget.double().clamp(-1, float(whole.sum(-1).max())).floor().long()
    room = torch.div(budget, divisor, rounding_mode="floor")
    return (whole // divisor, room) if int(room.max()) <= MOST_STEPS else None


def _status(room: Tensor) -> Tensor:
    return torch.where(room < 0, Status.INFEASIBLE, Status.SOLVED)


def _branch_and_bound(backend: Backend, job: tuple[Array, Array, Array]) -> tuple[Array | None, Status]:
    """Solve one instance; a set that is too heavy by less than the backend's tolerance is cut off by name."""
    value, weights, room = job
    n = len(value)
    if room < 0:
        return None, Status.INFEASIBLE
    # What cannot be in any answer leaves before the solver comes.
    most = ((value > 0) & (weights <= room)).astype(float)
    weights = weights * most
    rows, upper = [weights], [min(float(room), float(weights.sum()))]
    while True:
        program = Program(
            value,
            A=np.stack(rows),
            lower=np.full(len(rows), -np.inf),
            upper=np.array(upper),
            least=np.zeros(n),
            most=most,
            integer=np.ones(n, dtype=bool),
        )
        point, status = backend.solve(program)
        if point is None or weights @ point <= room:
            return point, status
        rows.append(point)
        upper.append(point.sum() - 1)
