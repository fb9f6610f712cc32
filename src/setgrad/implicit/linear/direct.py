"""The dense solver: LU factors of each sample's matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.implicit._linalg import solve_checked
from setgrad.implicit._loop import Residual
from setgrad.implicit._solution import Outcome
from setgrad.implicit.linear._base import LinearSolver, Operator


@final
@dataclass(frozen=True)
class Direct(LinearSolver):
    """Build each matrix from n products and factorise it: exact, and the fastest for few unknowns.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> a = torch.ones(1, requires_grad=True)
        >>> fixed_point(lambda y, a: 0.5 * y + a, torch.zeros(1), a, adjoint=Direct()).value.backward()
        >>> round(a.grad.item(), 4)
        2.0
    """

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Solve the system; a sample without an inverse is SINGULAR, one with NaN is NONFINITE."""
        operator = Operator(residual, start)
        x, is_singular, _ = solve_checked(operator.dense(), operator.b)
        norm = torch.linalg.vector_norm(residual(x), dim=-1)
        status = torch.where(is_singular, int(Status.SINGULAR), int(Status.CONVERGED))
        status = torch.where(norm.isfinite(), status, int(Status.NONFINITE))
        return Outcome(x, status, norm, torch.ones_like(status))
