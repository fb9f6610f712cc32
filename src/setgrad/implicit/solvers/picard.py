"""Solvers that step along the residual: Picard iteration, with fixed or adaptive damping, and gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._linalg import dot
from setgrad.implicit._loop import EquationSolver, Residual, Step, check_damping

# Factors of the adaptive damping after a step that reversed the residual, and after any other step.
_SHRINK, _GROW = 0.5, 1.2


@final
@dataclass(frozen=True)
class Picard(EquationSolver):
    """The plain fixed-point iteration y + damping * (fn(y) - y).

    Converges if the map is a contraction, and with damping below 1 for some other maps too.

    Args:
        damping: Step length in (0, 1].

    Raises:
        OptionError: If the damping is out of range.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> solution = fixed_point(torch.cos, torch.zeros(1), solver=Picard(damping=0.7))
        >>> round(solution.value.item(), 3)
        0.739
    """

    damping: float = 1.0

    def __post_init__(self) -> None:
        check_damping(self.damping)

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> None:
        """Return None: the iteration has no state."""

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: None) -> Step:
        """Move along the residual."""
        y = y + self.damping * residual
        return Step(y, fn(y), None)

    def select_state(self, state: None, rows: Tensor) -> None:
        """Return None: the iteration has no state."""


@final
@dataclass(frozen=True)
class AdaptivePicard(EquationSolver):
    """Picard iteration with a damping that adapts to each sample, for maps that overshoot.

    The damping is halved after a step that reversed the residual, and grows after any other step, up to 1. Converges
    where some fixed damping does.

    Args:
        damping: Damping of the first step, in (0, 1].

    Raises:
        OptionError: If the damping is out of range.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> solution = fixed_point(lambda y: 1 - 2 * y, torch.zeros(1), solver=AdaptivePicard())
        >>> round(solution.value.item(), 3)
        0.333
    """

    damping: float = 0.5

    def __post_init__(self) -> None:
        check_damping(self.damping)

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> Tensor:
        """Return the damping of each sample, `(*batch, 1)`."""
        return torch.full_like(residual[..., :1], self.damping)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: Tensor) -> Step:
        """Move along the residual and adapt the damping to the new residual."""
        y = y + state * residual
        new_residual = fn(y)
        overshot = dot(residual, new_residual) < 0
        return Step(y, new_residual, torch.where(overshot, _SHRINK * state, (_GROW * state).clamp(max=1.0)))

    def select_state(self, state: Tensor, rows: Tensor) -> Tensor:
        """Return the damping of these samples."""
        return state[rows]


@final
@dataclass(frozen=True)
class GradientDescent(EquationSolver):
    """The iteration y - rate * gradient, for `argmin`.

    Args:
        rate: Step length, above 0.

    Raises:
        OptionError: If the rate is not above 0.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import argmin
        >>> solution = argmin(lambda y: ((y - 2) ** 2).sum(-1), torch.zeros(1), solver=GradientDescent(0.3))
        >>> round(solution.value.item(), 3)
        2.0
    """

    rate: float

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise OptionError(f"rate must be above 0, not {self.rate}")

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> None:
        """Return None: the iteration has no state."""

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: None) -> Step:
        """Move against the gradient."""
        y = y - self.rate * residual
        return Step(y, fn(y), None)
