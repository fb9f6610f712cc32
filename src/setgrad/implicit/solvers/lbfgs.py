"""Limited-memory BFGS, for arg min with many unknowns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit._vectors import dot

# A length is accepted when the slope along the direction has fallen to this part; then curvature is positive.
_SLOPE = 0.9
_TRIALS = 20


@final
@dataclass(frozen=True, eq=False)
class _Search:
    """Where each sample is in its line search, and the changes that it remembers, `(window, *batch, n)`.

    The newest comes last; a memory of zeros counts for nothing.
    """

    direction: Tensor
    slope: Tensor
    low: Tensor
    high: Tensor
    length: Tensor
    trials: Tensor
    moves: Tensor
    changes: Tensor


@final
@dataclass(frozen=True)
class LBFGS(EquationSolver):
    """Quasi-Newton steps from the last `window` changes of the gradient, with a line search on the slope.

    A step tries one length, for each sample in a search of its own, so that no sample waits for another and the host
    for none: doubling until the slope is bracketed, then halving.
    """

    window: int = 10

    def __post_init__(self) -> None:
        if self.window < 1:
            raise OptionError(f"window must be at least 1, not {self.window}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> _Search:
        """Down the gradient; without a memory its length says nothing about the length of a step."""
        nothing = residual.new_zeros(self.window, *residual.shape)
        length = 1.0 / residual.abs().sum(-1, keepdim=True).clamp(min=1.0)
        return _fresh(residual, length, nothing, nothing)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _Search) -> Step:
        """Try a length; where it will do, go there, remember the change and turn."""
        there = y + state.length * state.direction
        gradient = fn(there)
        now = dot(gradient, state.direction)
        steep, past = now < _SLOPE * state.slope, ~(now <= -_SLOPE * state.slope)
        accept = ~(steep | past) | (state.trials >= _TRIALS)
        moves, changes = _remember(state, accept, there - y, gradient - residual)
        turned = _fresh(gradient, torch.ones_like(state.length), moves, changes)
        low, high = torch.where(steep, state.length, state.low), torch.where(past, state.length, state.high)
        middle = torch.where(high.isinf(), 2 * state.length, (low + high) / 2)
        following = _Search(
            torch.where(accept, turned.direction, state.direction),
            torch.where(accept, turned.slope, state.slope),
            torch.where(accept, turned.low, low),
            torch.where(accept, turned.high, high),
            torch.where(accept, turned.length, middle),
            torch.where(accept, turned.trials, state.trials + 1),
            moves,
            changes,
        )
        return Step(torch.where(accept, there, y), torch.where(accept, gradient, residual), following)


def _fresh(gradient: Tensor, length: Tensor, moves: Tensor, changes: Tensor) -> _Search:
    """A new search along the quasi-Newton direction."""
    direction = -_inverse_product(gradient, moves, changes)
    slope = dot(gradient, direction)
    # A direction that does not descend comes from useless memories: fall back to the gradient.
    uphill = ~(slope < 0)
    direction = torch.where(uphill, -gradient, direction)
    slope = torch.where(uphill, -dot(gradient, gradient), slope)
    zero = torch.zeros_like(length)
    return _Search(
        direction, slope, zero, torch.full_like(length, torch.inf), length, torch.ones_like(length), moves, changes
    )


def _remember(state: _Search, accept: Tensor, move: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """The memories of the samples that moved, with the last change added where it shows positive curvature."""
    useful = accept & (dot(move, change) > 1e-12 * dot(change, change))
    return (
        torch.where(useful, torch.cat([state.moves[1:], move[None]]), state.moves),
        torch.where(useful, torch.cat([state.changes[1:], change[None]]), state.changes),
    )


def _inverse_product(gradient: Tensor, moves: Tensor, changes: Tensor) -> Tensor:
    """The two-loop recursion."""
    rho = _inverse(dot(moves, changes))
    q, weights = gradient, []
    for i in reversed(range(len(moves))):
        weight = rho[i] * dot(moves[i], q)
        q = q - weight * changes[i]
        weights.append(weight)
    size = dot(changes[-1], changes[-1])
    q = torch.where(size > 0, dot(moves[-1], changes[-1]) * _inverse(size), 1.0) * q
    for i, weight in zip(range(len(moves)), reversed(weights), strict=True):
        q = q + moves[i] * (weight - rho[i] * dot(changes[i], q))
    return q


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1.0 / torch.where(x > 0, x, 1.0), 0.0)
