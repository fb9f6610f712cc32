"""Conjugate gradients, for symmetric positive definite systems, and for any system through its normal equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status, is_status
from setgrad.implicit._loop import EquationSolver, Step, iterate
from setgrad.implicit._loop import Residual as Fn
from setgrad.implicit._outcome import Outcome
from setgrad.implicit._vectors import dot, norm, over
from setgrad.implicit.linear._base import (
    LinearSolver,
    Operator,
    Residual,
    linear_limits,
    refuse_diagonal,
    run_krylov,
    size_of,
)

# A residual may come out this many times the tolerance when it is computed anew.
_DRIFT = 10.0


@final
@dataclass(frozen=True)
class CG(LinearSolver):
    """Conjugate gradients: one product a step, four vectors of memory. The system must be symmetric, as for argmin."""

    tol: float | None = None
    max_steps: int = 500
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Solve; a direction of no or negative curvature makes a sample SINGULAR."""
        operator = Operator(residual, start)
        steps = _Steps(operator.apply, diagonal)
        return run_krylov(steps, operator, start, self.tol, self.max_steps, self.check_every)


@final
@dataclass(frozen=True)
class NormalCG(LinearSolver):
    """Conjugate gradients on A^T A x = A^T b: for any square system, two products a step, at the squared condition."""

    tol: float | None = None
    max_steps: int = 1000
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Solve; a sample whose residual the matrix cannot reach any more is SINGULAR."""
        refuse_diagonal(self, diagonal)
        operator = Operator(residual, start)
        limits = linear_limits(self.tol, self.max_steps, self.check_every, operator.b)
        scale = size_of(operator.b)
        found = iterate(_NormalSteps(operator), residual, start, limits, scale)
        # The loop saw a residual that was updated, not computed, and at the squared condition they drift apart.
        left = torch.linalg.vector_norm(residual(found.value), dim=-1)
        drifted = is_status(found.status, Status.CONVERGED) & (left > _DRIFT * limits.tol * scale(start))
        status = torch.where(drifted, int(Status.STALLED), found.status)
        return Outcome(found.value, status, left, found.steps)


@final
@dataclass(frozen=True)
class _State:
    direction: Tensor
    rho: Tensor


@final
@dataclass(frozen=True)
class _Steps(EquationSolver):
    apply: Callable[[Tensor], Tensor]
    inverse: Tensor | None

    def begin(self, fn: Fn, y: Tensor, residual: Tensor) -> _State:
        z = self._precondition(-residual)
        return _State(z, dot(-residual, z))

    def step(self, fn: Fn, y: Tensor, residual: Tensor, state: _State) -> Step:
        p, rho = state.direction, state.rho
        product = self.apply(p)
        curvature = dot(p, product)
        singular = ~(curvature > 0)
        alpha = torch.where(singular, 0.0, rho / torch.where(singular, 1.0, curvature))
        y, residual = y + alpha * p, residual + alpha * product
        z = self._precondition(-residual)
        following = dot(-residual, z)
        beta = over(following, rho)
        # A direction of zero belongs to a sample that is done: it is not singular.
        return Step(y, residual, _State(z + beta * p, following), (singular & (rho > 0))[..., 0])

    def _precondition(self, r: Tensor) -> Tensor:
        return r if self.inverse is None else self.inverse * r


@final
@dataclass(frozen=True)
class _NormalState:
    direction: Tensor
    # Squared norm of A^T r, and the largest |A p| / |p| so far: a number like the norm of A.
    rho: Tensor
    size: Tensor


@final
@dataclass(frozen=True, eq=False)
class _NormalSteps(EquationSolver):
    operator: Operator

    def begin(self, fn: Fn, y: Tensor, residual: Tensor) -> _NormalState:
        z = -self.operator.apply_transposed(residual)
        rho = dot(z, z)
        return _NormalState(z, rho, torch.zeros_like(rho))

    def step(self, fn: Fn, y: Tensor, residual: Tensor, state: _NormalState) -> Step:
        p, rho = state.direction, state.rho
        product = self.operator.apply(p)
        curvature = dot(product, product)
        # The normal equations are solved as well as the type allows, and the system itself is not.
        negligible = rho.sqrt() < torch.finfo(y.dtype).eps * state.size * norm(residual)
        alpha = rho / torch.where(curvature > 0, curvature, 1.0)
        y, residual = y + alpha * p, residual + alpha * product
        z = -self.operator.apply_transposed(residual)
        following = dot(z, z)
        size = torch.maximum(state.size, over(norm(product), norm(p)))
        new = _NormalState(z + over(following, rho) * p, following, size)
        return Step(y, residual, new, ((curvature == 0) | negligible)[..., 0])
