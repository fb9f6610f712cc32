"""Any function of the user's as a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.solvers._host import WHOLE, HostPool
from setgrad.errors import SolverError


@final
@dataclass(frozen=True, eq=False)
class Custom(CombinatorialSolver):
    """A function as a solver. Its answers are checked: their shape, and that they are whole numbers.

    An answer that is not whole gets the status FRACTIONAL, one with NaN the status INFEASIBLE, one with infinity the
    status UNBOUNDED; the other instances stay as they are. `sense` says what the function does: it sees theta as you
    pass it, whatever the sense.

    Args:
        function: Without a pool: from theta (*batch, *instance) to z of the same shape, or to a `SolverResult`. With a pool:
            from the array of one instance to an array of the same shape, or to None if it has no answer.
        dims: How many axes at the end of theta make one instance.
        whole: Whether answers must be whole numbers.
        pool: Set to call the function on one instance at a time, as NumPy arrays, on the host.

    Example:
        >>> Custom(lambda theta: (theta > theta.mean(-1, keepdim=True)).float())(torch.tensor([1.0, 2.0, 6.0]))
        tensor([0., 0., 1.])
    """

    function: Callable[[Any], Any]
    dims: int = field(default=1, kw_only=True)
    whole: bool = field(default=True, kw_only=True)
    pool: HostPool | None = field(default=None, kw_only=True)

    def solve(self, theta: Tensor) -> SolverResult:
        """Call the function, and look at what it returns."""
        # A copy, because the function may write into what it gets.
        theta = theta.clone() if self.sense == "max" else -theta
        answer = self.function(theta) if self.pool is None else self._each(self.pool, theta)
        value, status = (answer.value, answer.status) if isinstance(answer, SolverResult) else (answer, None)
        if not isinstance(value, Tensor) or value.shape != theta.shape:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise SolverError(
                f"the function returned an answer of {what}; it must be a tensor of theta's shape {tuple(theta.shape)}"
            )
        batch = theta.shape[: theta.ndim - self.dims]
        value = value.to(theta)
        status = (
            torch.zeros(batch, dtype=torch.long, device=theta.device) if status is None else status.to(theta.device)
        )
        near = value.round() if self.whole else value
        flat = value.reshape(*batch, -1)
        holds = ((near - value).abs() <= WHOLE).reshape(*batch, -1).all(-1)
        wrong = torch.where(holds, status, Status.FRACTIONAL)
        wrong = torch.where(flat.isinf().any(-1), Status.UNBOUNDED, wrong)
        wrong = torch.where(flat.isnan().any(-1), Status.INFEASIBLE, wrong)
        return SolverResult(near, torch.where(status == Status.SOLVED, wrong, status))

    def _each(self, pool: HostPool, theta: Tensor) -> Tensor:
        shape = theta.shape[theta.ndim - self.dims :]
        arrays = theta.detach().cpu().numpy().reshape(-1, *shape)
        answers = [np.full(shape, np.nan) if a is None else np.asarray(a) for a in pool.map(self.function, arrays)]
        for answer in answers:
            if answer.shape != tuple(shape):
                raise SolverError(
                    f"the function returned an array of shape {answer.shape} for an instance of shape {tuple(shape)}; "
                    "both must be the same"
                )
        return torch.from_numpy(np.stack(answers).astype(np.float64)).to(theta).reshape(theta.shape)
