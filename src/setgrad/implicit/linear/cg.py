"""Conjugate gradients, for symmetric positive definite systems, and for any system through its normal equations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._loop import Residual as Fn
from setgrad.implicit._loop import Solver, Step, iterate
from setgrad.implicit._status import Outcome
from setgrad.implicit._vectors import dot, over
from setgrad.implicit.linear._base import (
    LinearSolver,
    Operator,
    Residual,
    linear_limits,
    refuse_diagonal,
    run_krylov,
    size_of,
)


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
        """Solve; a sample is done when the residual of the normal equations is small."""
        refuse_diagonal(self, diagonal)
        operator = Operator(residual, start)

        def normal(x: Tensor) -> Tensor:
            return operator.apply_transposed(residual(x))

        steps = _Steps(lambda p: operator.apply_transposed(operator.apply(p)), None)
        right = operator.apply_transposed(operator.b)
        limits = linear_limits(self.tol, self.max_steps, self.check_every, operator.b)
        found = iterate(steps, normal, start, limits, size_of(right))
        norm = torch.linalg.vector_norm(residual(found.value), dim=-1)
        return Outcome(found.value, found.status, norm, found.steps)


@final
@dataclass(frozen=True)
class _State:
    direction: Tensor
    rho: Tensor


@final
@dataclass(frozen=True)
class _Steps(Solver):
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
