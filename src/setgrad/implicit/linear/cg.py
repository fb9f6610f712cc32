"""Conjugate gradients, for symmetric positive definite systems, and for any system through its normal equations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status, is_status
from setgrad.implicit._linalg import dot, norm, safe_divide
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit._solution import Outcome
from setgrad.implicit.linear._base import (
    LinearSolver,
    Operator,
    precondition,
    reject_preconditioner,
    relative_tolerance,
    run_krylov,
)

# The true residual may exceed the tolerance by this factor before a sample counts as STALLED.
_DRIFT_FACTOR = 10.0


@final
@dataclass(frozen=True)
class CG(LinearSolver):
    """Conjugate gradients, for symmetric positive definite systems such as those of `argmin`: one product per step.

    Args:
        tol: Norm of the residual relative to the norm of b; by default a little above rounding.
        max_steps: Largest number of steps.
        check_every: Number of steps between two checks of convergence, which wait for a GPU.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import argmin
        >>> a = torch.ones(1, requires_grad=True)
        >>> argmin(lambda y, a: ((y - a) ** 2).sum(-1), torch.zeros(1), a, adjoint=CG()).value.backward()
        >>> round(a.grad.item(), 4)
        1.0
    """

    tol: float | None = None
    max_steps: int = 500
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Solve the system; a sample with a direction of zero or negative curvature is SINGULAR."""
        operator = Operator(residual, start)
        steps = _Steps(operator, inverse_diagonal)
        return run_krylov(self, steps, operator, start)


@final
@dataclass(frozen=True)
class NormalCG(LinearSolver):
    """Conjugate gradients on A^T A x = A^T b, for any square system: two products per step, squared condition number.

    Args:
        tol: Norm of the residual relative to the norm of b; by default a little above rounding.
        max_steps: Largest number of steps.
        check_every: Number of steps between two checks of convergence, which wait for a GPU.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> a = torch.ones(1, requires_grad=True)
        >>> fixed_point(lambda y, a: 0.5 * y + a, torch.zeros(1), a, adjoint=NormalCG()).value.backward()
        >>> round(a.grad.item(), 4)
        2.0
    """

    tol: float | None = None
    max_steps: int = 1000
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Solve the system; a sample whose residual is orthogonal to the range of A is SINGULAR."""
        reject_preconditioner(self, inverse_diagonal)
        operator = Operator(residual, start)
        outcome = run_krylov(self, _NormalSteps(operator), operator, start)
        # The loop used a residual from a recurrence, which drifts from the true one at the squared condition number.
        true_norm = torch.linalg.vector_norm(residual(outcome.value), dim=-1)
        b_norm = torch.linalg.vector_norm(operator.b, dim=-1)
        tol = relative_tolerance(self.tol, operator.b.dtype)
        drifted = is_status(outcome.status, Status.CONVERGED) & (true_norm > _DRIFT_FACTOR * tol * b_norm)
        status = torch.where(drifted, int(Status.STALLED), outcome.status)
        return replace(outcome, status=status, residual=true_norm)


@final
@dataclass(frozen=True)
class _State:
    direction: Tensor
    rho: Tensor


@final
@dataclass(frozen=True)
class _Steps(EquationSolver):
    operator: Operator
    inverse_diagonal: Tensor | None

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> _State:
        z = precondition(self.inverse_diagonal, -residual)
        return _State(z, dot(-residual, z))

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _State) -> Step:
        p, rho = state.direction, state.rho
        product = self.operator.apply(p)
        curvature = dot(p, product)
        not_positive = ~(curvature > 0)
        alpha = torch.where(not_positive, 0.0, rho / torch.where(not_positive, 1.0, curvature))
        y, residual = y + alpha * p, residual + alpha * product
        z = precondition(self.inverse_diagonal, -residual)
        next_rho = dot(-residual, z)
        beta = safe_divide(next_rho, rho)
        # A direction of zero belongs to a sample that is done, not to a singular one.
        return Step(y, residual, _State(z + beta * p, next_rho), (not_positive & (rho > 0))[..., 0])


@final
@dataclass(frozen=True)
class _NormalState:
    """The direction, the squared norm of A^T r, and the largest |A p| / |p| so far, an estimate of the norm of A."""

    direction: Tensor
    rho: Tensor
    matrix_norm: Tensor


@final
@dataclass(frozen=True, eq=False)
class _NormalSteps(EquationSolver):
    operator: Operator

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> _NormalState:
        z = -self.operator.apply_transposed(residual)
        rho = dot(z, z)
        return _NormalState(z, rho, torch.zeros_like(rho))

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _NormalState) -> Step:
        p, rho = state.direction, state.rho
        product = self.operator.apply(p)
        curvature = dot(product, product)
        # The normal equations are solved up to rounding, but the system itself is not.
        negligible = rho.sqrt() < torch.finfo(y.dtype).eps * state.matrix_norm * norm(residual)
        alpha = rho / torch.where(curvature > 0, curvature, 1.0)
        y, residual = y + alpha * p, residual + alpha * product
        z = -self.operator.apply_transposed(residual)
        next_rho = dot(z, z)
        matrix_norm = torch.maximum(state.matrix_norm, safe_divide(norm(product), norm(p)))
        new_state = _NormalState(z + safe_divide(next_rho, rho) * p, next_rho, matrix_norm)
        return Step(y, residual, new_state, ((curvature == 0) | negligible)[..., 0])
