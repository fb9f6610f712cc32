"""The plain iteration with a damping that each sample finds for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit._vectors import dot

# A step that went too far turns the residual round: half as far next time. Else a little further.
_SHRINK, _GROW = 0.5, 1.2


@final
@dataclass(frozen=True)
class AdaptivePicard(EquationSolver):
    """Follow the residual, less far after a step that turned it round: for maps that overshoot, as where items repel.

    Converges where some damping does, without knowing it, and takes whole steps where the map contracts. Starts with
    `damping`.
    """

    damping: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise OptionError(f"damping must lie in (0, 1], not {self.damping}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> Tensor:
        """The damping of each sample, `(*batch, 1)`."""
        return torch.full_like(residual[..., :1], self.damping)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: Tensor) -> Step:
        """Move along the residual and look which way it points there."""
        y = y + state * residual
        found = fn(y)
        turned = dot(residual, found) < 0
        return Step(y, found, torch.where(turned, _SHRINK * state, (_GROW * state).clamp(max=1.0)))

    def part(self, state: Tensor, rows: Tensor) -> Tensor:
        """Each sample has its own."""
        return state[rows]
