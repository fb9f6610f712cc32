"""Limited-memory BFGS, for arg min with many unknowns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._loop import Residual, Solver, Step
from setgrad.implicit._vectors import dot

# A step is accepted when the slope along it has fallen to this part; then curvature is positive where it counts.
_SLOPE = 0.9
_TRIALS = 20


@final
@dataclass(frozen=True)
class LBFGS(Solver):
    """Quasi-Newton steps from the last `window` changes of the gradient, with a line search on the slope."""

    window: int = 10

    def __post_init__(self) -> None:
        if self.window < 1:
            raise OptionError(f"window must be at least 1, not {self.window}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> list[tuple[Tensor, Tensor]]:
        """No changes are known yet."""
        return []

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: list[tuple[Tensor, Tensor]]) -> Step:
        """Search along the quasi-Newton direction; remember the change where it shows positive curvature."""
        direction = -_inverse_product(residual, state)
        slope = dot(residual, direction)
        # A direction that does not descend comes from useless memories: fall back to the gradient.
        uphill = ~(slope < 0)
        direction = torch.where(uphill, -residual, direction)
        slope = torch.where(uphill, -dot(residual, residual), slope)
        # Without a memory the length of the gradient says nothing about the length of a step.
        first = torch.ones_like(slope) if state else (1.0 / residual.abs().sum(-1, keepdim=True).clamp(min=1.0))
        there, gradient = _search(fn, y, direction, slope, first)
        move, change = there - y, gradient - residual
        useful = dot(move, change) > 1e-12 * dot(change, change)
        kept = (torch.where(useful, move, 0.0), torch.where(useful, change, 0.0))
        return Step(there, gradient, [*state, kept][-self.window :])


def _search(fn: Residual, y: Tensor, direction: Tensor, slope: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """A length along the direction where the slope is small: doubling until it is bracketed, then halving."""
    low, high = torch.zeros_like(length), torch.full_like(length, torch.inf)
    there, gradient = y, y
    for _ in range(_TRIALS):
        there = y + length * direction
        gradient = fn(there)
        now = dot(gradient, direction)
        steep, past = now < _SLOPE * slope, ~(now <= -_SLOPE * slope)
        if not bool((steep | past).any()):
            break
        low, high = torch.where(steep, length, low), torch.where(past, length, high)
        middle = torch.where(high.isinf(), 2 * length, (low + high) / 2)
        length = torch.where(steep | past, middle, length)
    return there, gradient


def _inverse_product(gradient: Tensor, memory: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The two-loop recursion; a memory of zeros counts for nothing."""
    q, weights = gradient, []
    for move, change in reversed(memory):
        rho = _inverse(dot(move, change))
        weight = rho * dot(move, q)
        q = q - weight * change
        weights.append((rho, weight))
    if memory:
        scale = torch.ones_like(gradient[..., :1])
        for move, change in memory:
            seen = dot(change, change) > 0
            scale = torch.where(seen, dot(move, change) * _inverse(dot(change, change)), scale)
        q = scale * q
    for (move, change), (rho, weight) in zip(memory, reversed(weights), strict=True):
        q = q + move * (weight - rho * dot(change, q))
    return q


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1.0 / torch.where(x > 0, x, 1.0), 0.0)
