"""Anderson acceleration: the plain iteration, extrapolated from the last few steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._least_squares import least_squares
from setgrad.implicit._loop import EquationSolver, Residual, Step
from setgrad.implicit._vectors import norm

# A residual that grew by more than this makes the past useless: the sample starts its window anew.
_RESTART = 10.0


@final
@dataclass(frozen=True)
class Anderson(EquationSolver):
    """Combine the last `window` steps so that the linear model of the residual is smallest; each sample on its own."""

    window: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise OptionError(f"window must be at least 1, not {self.window}")
        if not 0 < self.damping <= 1:
            raise OptionError(f"damping must lie in (0, 1], not {self.damping}")

    def begin(self, fn: Residual, y: Tensor, residual: Tensor) -> _Past:
        """An empty window."""
        nothing = y.new_zeros(*y.shape, 0)
        return _Past(y, residual, nothing, nothing)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _Past) -> Step:
        """Fit the residual by its past changes and move to where it would vanish."""
        past = state.seen(y, residual, self.window)
        plain = self.damping * residual
        move = plain
        if past.changes.shape[-1]:
            usable = past.changes.isfinite().flatten(-2).all(-1)[..., None, None]
            # The newest change first: of two that say the same it is the one that counts.
            newest = torch.where(usable, past.changes, 0.0).flip(-1)
            # A change that says hardly anything new would get a weight that blows rounding up.
            least = torch.finfo(y.dtype).eps ** (1 / 3)
            weights = least_squares(newest, residual.nan_to_num(0.0, 0.0, 0.0), least=least).flip(-1)
            move = move - ((past.moves + self.damping * past.changes) @ weights[..., None])[..., 0]
            # Where the map jumps, changes can explain the residual without any move: a plain step leads out of there.
            stuck = norm(move) <= torch.finfo(y.dtype).eps ** 0.5 * norm(plain)
            move = torch.where(stuck, plain, move)
        return Step(y + move, fn(y + move), past)

    def part(self, state: _Past, rows: Tensor) -> _Past:
        """The window of each sample is its own."""
        return _Past(state.y[rows], state.residual[rows], state.moves[rows], state.changes[rows])


@final
@dataclass(frozen=True)
class _Past:
    """The last iterate with its residual, and the moves and changes of the residual in the window, `(*batch, n, w)`."""

    y: Tensor
    residual: Tensor
    moves: Tensor
    changes: Tensor

    def seen(self, y: Tensor, residual: Tensor, window: int) -> _Past:
        """The past once an iterate has been reached."""
        if y is self.y:
            return self
        grew = norm(residual) > _RESTART * norm(self.residual)
        moves = torch.cat([self.moves, (y - self.y)[..., None]], -1)[..., -window:]
        changes = torch.cat([self.changes, (residual - self.residual)[..., None]], -1)[..., -window:]
        forget = grew[..., None]
        return _Past(y, residual, moves.masked_fill(forget, 0.0), changes.masked_fill(forget, 0.0))
