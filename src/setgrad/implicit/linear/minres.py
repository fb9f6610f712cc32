"""MINRES, for symmetric systems that need not be definite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._loop import EquationSolver, Step
from setgrad.implicit._loop import Residual as Fn
from setgrad.implicit._outcome import Outcome
from setgrad.implicit._vectors import dot, norm, over
from setgrad.implicit.linear._base import LinearSolver, Operator, Residual, refuse_diagonal, run_krylov


@final
@dataclass(frozen=True)
class MINRES(LinearSolver):
    """The smallest residual in the Krylov space of a symmetric matrix, definite or not: one product a step."""

    tol: float | None = None
    max_steps: int = 500
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Solve by Lanczos' three-term recurrence and one Givens rotation a step."""
        refuse_diagonal(self, diagonal)
        operator = Operator(residual, start)
        return run_krylov(_Lanczos(operator), operator, start, self.tol, self.max_steps, self.check_every)


@final
@dataclass(frozen=True)
class _State:
    """Lanczos vectors, the last two directions with their images under A, and the last two rotations."""

    v_before: Tensor
    v: Tensor
    beta: Tensor
    directions: tuple[Tensor, Tensor]
    images: tuple[Tensor, Tensor]
    rotations: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    # What is left of the right-hand side in the rotated basis.
    rest: Tensor


@final
@dataclass(frozen=True)
class _Lanczos(EquationSolver):
    operator: Operator

    def begin(self, fn: Fn, y: Tensor, residual: Tensor) -> _State:
        length = norm(residual)
        zero, one = torch.zeros_like(length), torch.ones_like(length)
        nothing = torch.zeros_like(residual)
        identity = (one, zero)
        return _State(
            nothing, over(-residual, length), zero, (nothing, nothing), (nothing, nothing), (identity, identity), length
        )

    def step(self, fn: Fn, y: Tensor, residual: Tensor, state: _State) -> Step:
        image = self.operator.apply(state.v)
        alpha = dot(state.v, image)
        w = image - alpha * state.v - state.beta * state.v_before
        beta = norm(w)
        (c1, s1), (c2, s2) = state.rotations
        # The new column of the tridiagonal matrix, rotated by the last two rotations: entries above the diagonal first.
        above = s1 * state.beta
        middle = c2 * c1 * state.beta + s2 * alpha
        low = -s2 * c1 * state.beta + c2 * alpha
        radius = torch.sqrt(low * low + beta * beta)
        c, s = over(low, radius), over(beta, radius)
        (d1, d2), (a1, a2) = state.directions, state.images
        direction = over(state.v - above * d1 - middle * d2, radius)
        pushed = over(image - above * a1 - middle * a2, radius)
        length = c * state.rest
        following = _State(
            state.v, over(w, beta), beta, (d2, direction), (a2, pushed), ((c2, s2), (c, s)), -s * state.rest
        )
        return Step(y + length * direction, residual + length * pushed, following)
