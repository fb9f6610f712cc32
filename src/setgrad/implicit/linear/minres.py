"""MINRES, for symmetric systems, definite or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._linalg import dot, norm, safe_divide
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit._solution import Outcome
from setgrad.implicit.linear._base import LinearSolver, Operator, reject_preconditioner, run_krylov


@final
@dataclass(frozen=True)
class MINRES(LinearSolver):
    """Minimise the residual over the Krylov space of a symmetric matrix, definite or not: one product per step.

    Args:
        tol: Norm of the residual relative to the norm of b; by default a little above rounding.
        max_steps: Largest number of steps.
        check_every: Number of steps between two checks of convergence, which wait for a GPU.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import argmin
        >>> a = torch.ones(1, requires_grad=True)
        >>> argmin(lambda y, a: ((y - a) ** 2).sum(-1), torch.zeros(1), a, adjoint=MINRES()).value.backward()
        >>> round(a.grad.item(), 4)
        1.0
    """

    tol: float | None = None
    max_steps: int = 500
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Solve the system by the Lanczos recurrence and one Givens rotation per step."""
        reject_preconditioner(self, inverse_diagonal)
        operator = Operator(residual, start)
        return run_krylov(self, _Lanczos(operator), operator, start)


@final
@dataclass(frozen=True)
class _State:
    """The last two Lanczos vectors, directions (with their products with A) and rotations.

    `remainder` is the part of the right-hand side that is left in the rotated basis.
    """

    previous_v: Tensor
    v: Tensor
    beta: Tensor
    directions: tuple[Tensor, Tensor]
    products: tuple[Tensor, Tensor]
    rotations: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    remainder: Tensor


@final
@dataclass(frozen=True)
class _Lanczos(EquationSolver):
    operator: Operator

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> _State:
        length = norm(residual)
        zero, one = torch.zeros_like(length), torch.ones_like(length)
        zeros = torch.zeros_like(residual)
        v = safe_divide(-residual, length)
        return _State(zeros, v, zero, (zeros, zeros), (zeros, zeros), ((one, zero), (one, zero)), length)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _State) -> Step:
        product = self.operator.apply(state.v)
        alpha = dot(state.v, product)
        w = product - alpha * state.v - state.beta * state.previous_v
        beta = norm(w)
        (c1, s1), (c2, s2) = state.rotations
        # The new column of the tridiagonal matrix after the last two rotations, from top to bottom.
        above = s1 * state.beta
        middle = c2 * c1 * state.beta + s2 * alpha
        low = -s2 * c1 * state.beta + c2 * alpha
        radius = torch.sqrt(low * low + beta * beta)
        c, s = safe_divide(low, radius), safe_divide(beta, radius)
        (d1, d2), (p1, p2) = state.directions, state.products
        direction = safe_divide(state.v - above * d1 - middle * d2, radius)
        direction_product = safe_divide(product - above * p1 - middle * p2, radius)
        length = c * state.remainder
        new_state = _State(
            state.v,
            safe_divide(w, beta),
            beta,
            (d2, direction),
            (p2, direction_product),
            ((c2, s2), (c, s)),
            -s * state.remainder,
        )
        return Step(y + length * direction, residual + length * direction_product, new_state)
