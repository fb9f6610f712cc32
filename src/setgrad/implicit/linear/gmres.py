"""Restarted GMRES, for any square system."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._linalg import least_squares, norm, safe_divide
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit._solution import Outcome
from setgrad.implicit.linear._base import LinearSolver, Operator, precondition, run_krylov


@final
@dataclass(frozen=True)
class GMRES(LinearSolver):
    """Minimise the residual over a Krylov space, then restart from the minimum. One step of the loop is one cycle.

    Args:
        tol: Norm of the residual relative to the norm of b; by default a little above rounding.
        restart: Number of vectors of a cycle, at least 1.
        max_steps: Largest number of cycles.
        check_every: Number of cycles between two checks of convergence, which wait for a GPU.

    Raises:
        OptionError: If `restart` is below 1.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> a = torch.ones(1, requires_grad=True)
        >>> fixed_point(lambda y, a: 0.5 * y + a, torch.zeros(1), a, adjoint=GMRES()).value.backward()
        >>> round(a.grad.item(), 4)
        2.0
    """

    tol: float | None = None
    restart: int = 20
    max_steps: int = 50
    check_every: int = 1

    def __post_init__(self) -> None:
        if self.restart < 1:
            raise OptionError(f"restart must be at least 1, not {self.restart}")

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Solve the system; the steps of the result count products, not cycles."""
        operator = Operator(residual, start)
        size = min(self.restart, start.shape[-1])
        outcome = run_krylov(self, _Cycle(operator, size, inverse_diagonal), operator, start)
        return replace(outcome, steps=outcome.steps * size)


@final
@dataclass(frozen=True)
class _Cycle(EquationSolver):
    operator: Operator
    size: int
    inverse_diagonal: Tensor | None

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> None:
        return None

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: None) -> Step:
        r = precondition(self.inverse_diagonal, -residual)
        r_norm = norm(r)
        basis = [safe_divide(r, r_norm)]
        # Column j of the Hessenberg matrix, (*batch, size + 1).
        columns: list[Tensor] = []
        for j in range(self.size):
            w = precondition(self.inverse_diagonal, self.operator.apply(basis[j]))
            vectors = torch.stack(basis, -1)
            # Twice, because one pass loses orthogonality to rounding.
            h = (vectors.mT @ w[..., None])[..., 0]
            w = w - (vectors @ h[..., None])[..., 0]
            correction = (vectors.mT @ w[..., None])[..., 0]
            w = w - (vectors @ correction[..., None])[..., 0]
            length = norm(w)
            # The space is exhausted: the remainder is rounding, and must not become a direction.
            length = torch.where(length <= 1e-14 * norm(h), 0.0, length)
            basis.append(safe_divide(w, length))
            padding = h.new_zeros(*h.shape[:-1], self.size - j - 1)
            columns.append(torch.cat([h + correction, length, padding], -1))
        hessenberg = torch.stack(columns, -1)
        right = torch.cat([r_norm, r_norm.new_zeros(*r_norm.shape[:-1], self.size)], -1)
        is_finite = hessenberg.isfinite().all(-1).all(-1)[..., None, None]
        # The columns beyond an exhausted space are zero, and get weight 0.
        rtol = 100 * torch.finfo(y.dtype).eps
        weights = least_squares(torch.where(is_finite, hessenberg, 0.0), right, rtol=rtol)
        y = y + (torch.stack(basis[:-1], -1) @ weights[..., None])[..., 0]
        y = torch.where(is_finite[..., 0], y, torch.nan)
        return Step(y, fn(y), None)
