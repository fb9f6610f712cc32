"""Newton's method, and Broyden's, which learns the Jacobian on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._derivatives import jacobian
from setgrad.implicit._factors import factorise
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit.linear.direct import solve_dense


@final
@dataclass(frozen=True)
class Newton(EquationSolver):
    """Solve the linearised equation with the exact Jacobian of each sample; quadratic near a solution.

    A step that would make the residual larger is not taken: the sample tries half of it next, and doubles again after
    each success up to `damping`.
    """

    damping: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise OptionError(f"damping must lie in (0, 1], not {self.damping}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> Tensor:
        """The part of a full step that each sample takes, `(*batch, 1)`."""
        return torch.full_like(residual[..., :1], self.damping)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: Tensor) -> Step:
        """One linear solve for each sample."""
        move, singular = solve_dense(jacobian(fn, y), residual)
        there = y - state * move
        found = fn(there)
        better = torch.linalg.vector_norm(found, dim=-1) < torch.linalg.vector_norm(residual, dim=-1)
        accept = better[..., None]
        part = torch.where(accept, (2 * state).clamp(max=self.damping), state / 2)
        return Step(torch.where(accept, there, y), torch.where(accept, found, residual), part, singular)


@final
@dataclass(frozen=True)
class Broyden(EquationSolver):
    """One exact Jacobian at the start, then rank-one corrections that agree with the last step."""

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse Jacobian at the start, and where it is singular."""
        matrix = jacobian(fn, y)
        n = y.shape[-1]
        factors, singular = factorise(matrix.reshape(-1, n, n))
        unit = torch.eye(n, dtype=y.dtype, device=y.device).expand_as(factors.lu)
        inverse = torch.linalg.lu_solve(factors.lu, factors.pivots, unit)
        inverse = torch.where(singular[:, None, None], 0.0, inverse)
        return inverse.reshape(matrix.shape), singular.reshape(y.shape[:-1])

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: tuple[Tensor, Tensor]) -> Step:
        """Move, then correct the inverse by Sherman and Morrison's formula."""
        inverse, singular = state
        move = -(inverse @ residual[..., None])[..., 0]
        there = fn(y + move)
        shifted = (inverse @ (there - residual)[..., None])[..., 0]
        across = (move[..., None, :] @ inverse)[..., 0, :]
        denominator = (across * (there - residual)).sum(-1)
        usable = (denominator.abs() > 0) & denominator.isfinite()
        factor = ((move - shifted) / torch.where(usable, denominator, 1.0)[..., None])[..., None]
        inverse = torch.where(usable[..., None, None], inverse + factor * across[..., None, :], inverse)
        return Step(y + move, there, (inverse, torch.zeros_like(singular)), singular)
