"""Newton's method, and Broyden's, which updates an approximate inverse Jacobian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._jacobian import jacobian
from setgrad.implicit._linalg import lu_factor, norm, solve_checked
from setgrad.implicit._loop import EquationSolver, Residual, Step, check_damping


@final
@dataclass(frozen=True)
class Newton(EquationSolver):
    """Solve the linearised equation with the exact Jacobian of each sample; converges quadratically near a solution.

    A step that would increase the residual is not taken: the sample tries half of it next, and doubles the length again
    after each success, up to `damping`.

    Args:
        damping: Largest step length, in (0, 1].

    Raises:
        OptionError: If the damping is out of range.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import root
        >>> solution = root(lambda y: y * y - 2, torch.ones(1), solver=Newton())
        >>> round(solution.value.item(), 3)
        1.414
    """

    damping: float = 1.0

    def __post_init__(self) -> None:
        check_damping(self.damping)

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> Tensor:
        """Return the step length of each sample, `(*batch, 1)`."""
        return torch.full_like(residual[..., :1], self.damping)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: Tensor) -> Step:
        """Solve one linear system for each sample and try the step."""
        move, is_singular, _ = solve_checked(jacobian(fn, y), residual)
        trial = y - state * move
        trial_residual = fn(trial)
        accept = norm(trial_residual) < norm(residual)
        length = torch.where(accept, (2 * state).clamp(max=self.damping), state / 2)
        return Step(torch.where(accept, trial, y), torch.where(accept, trial_residual, residual), length, is_singular)


@final
@dataclass(frozen=True)
class Broyden(EquationSolver):
    """Compute the exact Jacobian once, at the start, then correct its inverse by a rank-one update after each step.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import root
        >>> solution = root(lambda y: y * y - 2, torch.ones(1), solver=Broyden())
        >>> round(solution.value.item(), 3)
        1.414
    """

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inverse Jacobian at the start, and a mask of the samples where it is singular."""
        factors, is_singular = lu_factor(jacobian(fn, y))
        identity = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device).expand_as(factors.lu)
        inverse = torch.linalg.lu_solve(factors.lu, factors.pivots, identity)
        return torch.where(is_singular[..., None, None], 0.0, inverse), is_singular

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: tuple[Tensor, Tensor]) -> Step:
        """Move, then update the inverse with the Sherman-Morrison formula."""
        inverse, is_singular = state
        move = -(inverse @ residual[..., None])[..., 0]
        new_residual = fn(y + move)
        change = new_residual - residual
        predicted_move = (inverse @ change[..., None])[..., 0]
        row = (move[..., None, :] @ inverse)[..., 0, :]
        denominator = (row * change).sum(-1)
        usable = (denominator.abs() > 0) & denominator.isfinite()
        column = ((move - predicted_move) / torch.where(usable, denominator, 1.0)[..., None])[..., None]
        inverse = torch.where(usable[..., None, None], inverse + column * row[..., None, :], inverse)
        return Step(y + move, new_residual, (inverse, torch.zeros_like(is_singular)), is_singular)
