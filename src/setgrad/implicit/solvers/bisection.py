"""Bisection, for bracketed roots of separate scalar equations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._loop import EquationSolver, Residual, Step


@final
@dataclass(frozen=True, eq=False)
class Bisection(EquationSolver):
    """Halve a bracket [low, high] around each root.

    Each coordinate of the residual must depend on its own unknown only and change its sign within the bracket. A sample
    without a change of sign gets the status SINGULAR.

    Args:
        low: Lower end, a number or a tensor that broadcasts to y.
        high: Upper end.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import root
        >>> solution = root(lambda y: y**3 - 8, torch.zeros(1), solver=Bisection(0.0, 10.0))
        >>> round(solution.value.item(), 3)
        2.0
    """

    low: float | Tensor
    high: float | Tensor

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return both ends, the sign at the lower one, and a mask of the samples without a change of sign."""
        low, high = _expand(self.low, y), _expand(self.high, y)
        at_low, at_high = fn(low), fn(high)
        unbracketed = (at_low * at_high > 0).any(-1)
        return low, high, at_low.sign(), unbracketed

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor]) -> Step:
        """Evaluate the middle and keep the half in which the sign changes."""
        low, high, sign, unbracketed = state
        middle = (low + high) / 2
        value = fn(middle)
        below = value.sign() == sign
        state = (torch.where(below, middle, low), torch.where(below, high, middle), sign, unbracketed)
        return Step(middle, value, state, unbracketed)


def _expand(end: float | Tensor, y: Tensor) -> Tensor:
    # full_like, because copying a number to the device would wait for it.
    return end.to(y).expand_as(y) if isinstance(end, Tensor) else torch.full_like(y, end)
