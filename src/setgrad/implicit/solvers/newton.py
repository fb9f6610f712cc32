"""Newton's method, and Broyden's, which learns the Jacobian on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._derivatives import jacobian
from setgrad.implicit._loop import Residual, Solver, Step
from setgrad.implicit.linear.direct import solve_dense


@final
@dataclass(frozen=True)
class Newton(Solver):
    """Solve the linearised equation with the exact Jacobian of each sample; quadratic near a solution."""

    damping: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise OptionError(f"damping must lie in (0, 1], not {self.damping}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> None:
        """There is nothing to remember."""

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: None) -> Step:
        """One linear solve for each sample."""
        move, singular = solve_dense(jacobian(fn, y), residual)
        y = y - self.damping * move
        return Step(y, fn(y), None, singular)


@final
@dataclass(frozen=True)
class Broyden(Solver):
    """One exact Jacobian at the start, then rank-one corrections that agree with the last step."""

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse Jacobian at the start, and where it is singular."""
        matrix = jacobian(fn, y)
        inverse, info = torch.linalg.inv_ex(matrix)
        return inverse, info != 0

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
