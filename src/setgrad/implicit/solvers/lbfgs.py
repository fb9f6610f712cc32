"""Limited-memory BFGS, for `argmin` with many unknowns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._linalg import dot, safe_divide
from setgrad.implicit._loop import EquationSolver, Residual, Step

# The line search accepts a length once the slope has fallen to this fraction in size; then the curvature is positive.
_SLOPE_FRACTION = 0.9
_MAX_TRIALS = 20


@final
@dataclass(frozen=True, eq=False)
class _LineSearch:
    """The line search of each sample, and its history of moves and changes of the gradient, `(window, *batch, n)`.

    The newest entry of the history is the last; entries of zeros have no effect.
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
    """Quasi-Newton steps from the last changes of the gradient, with a line search on the slope.

    One step of the loop tries one length in the line search of each sample: it doubles the length until the zero of the
    slope is bracketed, then bisects. So no sample waits for another, and the host does not wait for the device.

    Args:
        window: Number of past changes to use, at least 1.

    Raises:
        OptionError: If the window is below 1.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import argmin
        >>> solution = argmin(lambda y: ((y - 2) ** 2).sum(-1), torch.zeros(1), solver=LBFGS())
        >>> round(solution.value.item(), 3)
        2.0
    """

    window: int = 10

    def __post_init__(self) -> None:
        if self.window < 1:
            raise OptionError(f"window must be at least 1, not {self.window}")

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> _LineSearch:
        """Return a line search along the negative gradient, with an empty history."""
        empty = residual.new_zeros(self.window, *residual.shape)
        # Without a history the size of the gradient says nothing about the length of a step.
        length = 1.0 / residual.abs().sum(-1, keepdim=True).clamp(min=1.0)
        return _new_search(residual, length, empty, empty)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _LineSearch) -> Step:
        """Try one length; samples that accept it move and start a new line search."""
        trial = y + state.length * state.direction
        gradient = fn(trial)
        slope = dot(gradient, state.direction)
        too_short, too_long = slope < _SLOPE_FRACTION * state.slope, ~(slope <= -_SLOPE_FRACTION * state.slope)
        accept = ~(too_short | too_long) | (state.trials >= _MAX_TRIALS)
        moves, changes = _update_history(state, accept, trial - y, gradient - residual)
        new = _new_search(gradient, torch.ones_like(state.length), moves, changes)
        low, high = torch.where(too_short, state.length, state.low), torch.where(too_long, state.length, state.high)
        next_length = torch.where(high.isinf(), 2 * state.length, (low + high) / 2)
        search = _LineSearch(
            torch.where(accept, new.direction, state.direction),
            torch.where(accept, new.slope, state.slope),
            torch.where(accept, new.low, low),
            torch.where(accept, new.high, high),
            torch.where(accept, new.length, next_length),
            torch.where(accept, new.trials, state.trials + 1),
            moves,
            changes,
        )
        return Step(torch.where(accept, trial, y), torch.where(accept, gradient, residual), search)


def _new_search(gradient: Tensor, length: Tensor, moves: Tensor, changes: Tensor) -> _LineSearch:
    """Start a line search along the quasi-Newton direction, or along -gradient where that does not descend."""
    direction = -_inverse_hessian_product(gradient, moves, changes)
    slope = dot(gradient, direction)
    uphill = ~(slope < 0)
    direction = torch.where(uphill, -gradient, direction)
    slope = torch.where(uphill, -dot(gradient, gradient), slope)
    low, high = torch.zeros_like(length), torch.full_like(length, torch.inf)
    return _LineSearch(direction, slope, low, high, length, torch.ones_like(length), moves, changes)


def _update_history(state: _LineSearch, accept: Tensor, move: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """Append the last change for samples that moved and where the curvature is positive."""
    useful = accept & (dot(move, change) > 1e-12 * dot(change, change))
    return (
        torch.where(useful, torch.cat([state.moves[1:], move[None]]), state.moves),
        torch.where(useful, torch.cat([state.changes[1:], change[None]]), state.changes),
    )


def _inverse_hessian_product(gradient: Tensor, moves: Tensor, changes: Tensor) -> Tensor:
    """Return the product by the two-loop recursion."""
    one = torch.ones_like(gradient[..., :1])
    rho = safe_divide(one, dot(moves, changes))
    q, weights = gradient, []
    for i in reversed(range(len(moves))):
        weight = rho[i] * dot(moves[i], q)
        q = q - weight * changes[i]
        weights.append(weight)
    size = dot(changes[-1], changes[-1])
    q = torch.where(size > 0, dot(moves[-1], changes[-1]) * safe_divide(one, size), 1.0) * q
    for i, weight in zip(range(len(moves)), reversed(weights), strict=True):
        q = q + moves[i] * (weight - rho[i] * dot(changes[i], q))
    return q
