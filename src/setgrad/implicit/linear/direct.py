"""Dense LU factors of each sample: exact, and the quickest for small n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.implicit._factors import solve_marked
from setgrad.implicit._outcome import Outcome
from setgrad.implicit.linear._base import LinearSolver, Operator, Residual


@final
@dataclass(frozen=True)
class Direct(LinearSolver):
    """Build the matrix by n products and factorise it."""

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Solve; a sample without inverse is SINGULAR, one with NaN is NONFINITE."""
        operator = Operator(residual, start)
        x, singular = solve_dense(operator.dense(), operator.b)
        norm = torch.linalg.vector_norm(residual(x), dim=-1)
        status = torch.where(singular, int(Status.SINGULAR), int(Status.CONVERGED))
        status = torch.where(norm.isfinite(), status, int(Status.NONFINITE))
        return Outcome(x, status, norm, torch.ones_like(status))


def solve_dense(matrix: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Solve for each sample and say where the matrix is singular, `(*batch,)`; the solution is 0 there."""
    n = b.shape[-1]
    x, singular, _ = solve_marked(matrix.reshape(-1, n, n), b.reshape(-1, n))
    return x.reshape(b.shape), singular.reshape(b.shape[:-1])
