"""Bisection: roots that are bracketed, each coordinate an equation of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._loop import EquationSolver, Residual, Step


@final
@dataclass(frozen=True, eq=False)
class Bisection(EquationSolver):
    """Halve the bracket. Every coordinate of the residual must depend on its own unknown alone and change its sign.

    A sample whose bracket shows no change of sign is SINGULAR.
    """

    low: float | Tensor
    high: float | Tensor

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both ends, the sign at the lower one, and which samples are not bracketed."""
        low, high = _spread(self.low, y), _spread(self.high, y)
        at_low, at_high = fn(low), fn(high)
        unbracketed = (at_low * at_high > 0).any(-1)
        return low, high, at_low.sign(), unbracketed

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor]) -> Step:
        """Look at the middle and keep the half where the sign changes."""
        low, high, sign, unbracketed = state
        middle = (low + high) / 2
        value = fn(middle)
        below = value.sign() == sign
        state = (torch.where(below, middle, low), torch.where(below, high, middle), sign, unbracketed)
        return Step(middle, value, state, unbracketed)


def _spread(end: float | Tensor, y: Tensor) -> Tensor:
    # A number becomes a tensor where y is: copying it there would wait for the device.
    return end.to(y).expand_as(y) if isinstance(end, Tensor) else torch.full_like(y, end)
