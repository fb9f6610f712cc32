"""Any function as a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._pool import WorkerPool, round_points
from setgrad.errors import SolverError


@final
@dataclass(frozen=True, eq=False)
class CallableSolver(CombinatorialSolver):
    """A function as a solver. Its results must have the right shape and be whole numbers.

    A result that is not whole gets the status FRACTIONAL, one with NaN the status INFEASIBLE, one with infinity the
    status UNBOUNDED; the other instances are not affected. `sense` says what the function does: the function gets theta
    as you pass it, whatever the sense.

    Args:
        function: Without a pool: from theta (*batch, *instance) to z of the same shape, or to a `SolverResult`. With a
            pool: from the array of one instance to an array of the same shape, or to None if there is no solution.
        dims: The number of axes at the end of theta that form one instance.
        whole: Whether results must be whole numbers.
        pool: Set it to call the function with one instance at a time, as NumPy arrays on the CPU.

    Examples:
        >>> CallableSolver(lambda theta: (theta > theta.mean(-1, keepdim=True)).float())(torch.tensor([1.0, 2.0, 6.0]))
        tensor([0., 0., 1.])
    """

    function: Callable[[Any], Any]
    dims: int = field(default=1, kw_only=True)
    whole: bool = field(default=True, kw_only=True)
    pool: WorkerPool | None = field(default=None, kw_only=True)

    def solve(self, theta: Tensor) -> SolverResult:
        """Call the function and check its results.

        Raises:
            SolverError: If a result does not have the shape of theta.
        """
        # A copy, because the function may modify its argument.
        theta = theta.clone() if self.sense == "max" else -theta
        output = self.function(theta) if self.pool is None else self._solve_each(self.pool, theta)
        value = output.value if isinstance(output, SolverResult) else output
        if not isinstance(value, Tensor) or value.shape != theta.shape:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise SolverError(
                f"the function returned an answer of {what}; it must be a tensor of theta's shape {tuple(theta.shape)}"
            )
        result = round_points(value.to(theta), self.dims, whole=self.whole)
        if not isinstance(output, SolverResult):
            return result
        status = output.status.to(theta.device)
        return SolverResult(result.value, torch.where(status == Status.SOLVED, result.status, status))

    def _solve_each(self, pool: WorkerPool, theta: Tensor) -> Tensor:
        shape = theta.shape[theta.ndim - self.dims :]
        arrays = theta.detach().cpu().numpy().reshape(-1, *shape)
        points = [np.full(shape, np.nan) if z is None else np.asarray(z) for z in pool.map(self.function, arrays)]
        for point in points:
            if point.shape != tuple(shape):
                raise SolverError(
                    f"the function returned an array of shape {point.shape} for an instance of shape {tuple(shape)}; "
                    "both must be the same"
                )
        return torch.from_numpy(np.stack(points).astype(np.float64)).to(theta).reshape(theta.shape)
