"""BiCGSTAB, for any square system, with short recurrences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._linalg import dot
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit._solution import Outcome
from setgrad.implicit.linear._base import LinearSolver, Operator, reject_preconditioner, run_krylov


@final
@dataclass(frozen=True)
class BiCGSTAB(LinearSolver):
    """Stabilised biconjugate gradients: two products per step, no basis to store; convergence may be irregular.

    Args:
        tol: Norm of the residual relative to the norm of b; by default a little above rounding.
        max_steps: Largest number of steps.
        check_every: Number of steps between two checks of convergence, which wait for a GPU.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> a = torch.ones(1, requires_grad=True)
        >>> fixed_point(lambda y, a: 0.5 * y + a, torch.zeros(1), a, adjoint=BiCGSTAB()).value.backward()
        >>> round(a.grad.item(), 4)
        2.0
    """

    tol: float | None = None
    max_steps: int = 500
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Solve the system; a sample whose recurrence breaks down restarts it."""
        reject_preconditioner(self, inverse_diagonal)
        operator = Operator(residual, start)
        return run_krylov(self, _Steps(operator), operator, start)


@final
@dataclass(frozen=True)
class _State:
    shadow: Tensor
    direction: Tensor
    rho: Tensor


@final
@dataclass(frozen=True)
class _Steps(EquationSolver):
    operator: Operator

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> _State:
        return _State(-residual, -residual, dot(residual, residual))

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _State) -> Step:
        r, p = -residual, state.direction
        product = self.operator.apply(p)
        alpha, is_zero_alpha = _divide(state.rho, dot(state.shadow, product))
        s = r - alpha * product
        s_product = self.operator.apply(s)
        omega, _ = _divide(dot(s_product, s), dot(s_product, s_product))
        y = y + alpha * p + omega * s
        r = s - omega * s_product
        rho = dot(state.shadow, r)
        # beta = (rho / previous rho) (alpha / omega); restart where a denominator vanishes.
        rho_ratio, is_zero_rho = _divide(rho, state.rho)
        step_ratio, is_zero_omega = _divide(alpha, omega)
        restart = is_zero_alpha | is_zero_rho | is_zero_omega
        direction = torch.where(restart, r, r + rho_ratio * step_ratio * (p - omega * product))
        shadow = torch.where(restart, r, state.shadow)
        return Step(y, -r, _State(shadow, direction, torch.where(restart, dot(r, r), rho)))


def _divide(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return a / b, or 0 where b is too small, and a mask of these places."""
    too_small = ~(b.abs() > torch.finfo(b.dtype).tiny)
    return torch.where(too_small, 0.0, a / torch.where(too_small, 1.0, b)), too_small
