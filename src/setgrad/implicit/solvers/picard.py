"""The plain iteration: follow the residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._loop import EquationSolver, Residual, Step


@final
@dataclass(frozen=True)
class Picard(EquationSolver):
    """y + damping * (g(y) - y): converges where the map is a contraction, and with damping in some places more."""

    damping: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise OptionError(f"damping must lie in (0, 1], 1 for the undamped iteration, not {self.damping}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> None:
        """There is nothing to remember."""

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: None) -> Step:
        """Move along the residual."""
        y = y + self.damping * residual
        return Step(y, fn(y), None)

    def part(self, state: None, rows: Tensor) -> None:
        """There is nothing to divide."""


@final
@dataclass(frozen=True)
class GradientDescent(EquationSolver):
    """y - rate * gradient, for arg min."""

    rate: float

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise OptionError(f"rate must be above 0, not {self.rate}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> None:
        """There is nothing to remember."""

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: None) -> Step:
        """Move against the gradient."""
        y = y - self.rate * residual
        return Step(y, fn(y), None)
