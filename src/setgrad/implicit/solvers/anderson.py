"""Anderson acceleration: a fixed-point iteration that extrapolates from its last steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._linalg import least_squares, norm
from setgrad.implicit._loop import EquationSolver, Residual, Step, check_damping

# A sample whose residual grew by more than this factor forgets its history.
_RESTART_FACTOR = 10.0


@final
@dataclass(frozen=True)
class Anderson(EquationSolver):
    """Combine the last steps so that a linear model of the residual is smallest, for each sample.

    Faster than `Picard` on maps that contract slowly.

    Args:
        window: Number of past steps to combine, at least 1.
        damping: Step length in (0, 1].

    Raises:
        OptionError: If an argument is out of range.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> solution = fixed_point(lambda y: 0.99 * y + 1, torch.zeros(1), solver=Anderson())
        >>> round(solution.value.item(), 3)
        100.0
    """

    window: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise OptionError(f"window must be at least 1, not {self.window}")
        check_damping(self.damping)

    def init(self, fn: Residual, y: Tensor, residual: Tensor) -> _History:
        """Return an empty history."""
        empty = y.new_zeros(*y.shape, 0)
        return _History(y, residual, empty, empty)

    def step(self, fn: Residual, y: Tensor, residual: Tensor, state: _History) -> Step:
        """Fit the residual by its past changes and move to where the fit vanishes."""
        history = state.append(y, residual, self.window)
        plain = self.damping * residual
        move = plain
        if history.changes.shape[-1]:
            usable = history.changes.isfinite().flatten(-2).all(-1)[..., None, None]
            # The newest change comes first: of two dependent columns the earlier one gets the weight.
            newest_first = torch.where(usable, history.changes, 0.0).flip(-1)
            # A nearly dependent change would get a weight that amplifies rounding.
            rtol = torch.finfo(y.dtype).eps ** (1 / 3)
            weights = least_squares(newest_first, residual.nan_to_num(0.0, 0.0, 0.0), rtol=rtol).flip(-1)
            move = move - ((history.moves + self.damping * history.changes) @ weights[..., None])[..., 0]
            # Where the map jumps, the changes can explain the residual without any move; then take a plain step.
            stuck = norm(move) <= torch.finfo(y.dtype).eps ** 0.5 * norm(plain)
            move = torch.where(stuck, plain, move)
        return Step(y + move, fn(y + move), history)

    def select_state(self, state: _History, rows: Tensor) -> _History:
        """Return the history of these samples."""
        return _History(state.y[rows], state.residual[rows], state.moves[rows], state.changes[rows])


@final
@dataclass(frozen=True)
class _History:
    """The last iterate and residual, and the last changes of both, `(*batch, n, window)`."""

    y: Tensor
    residual: Tensor
    moves: Tensor
    changes: Tensor

    def append(self, y: Tensor, residual: Tensor, window: int) -> _History:
        if y is self.y:
            return self
        grew = norm(residual) > _RESTART_FACTOR * norm(self.residual)
        moves = torch.cat([self.moves, (y - self.y)[..., None]], -1)[..., -window:]
        changes = torch.cat([self.changes, (residual - self.residual)[..., None]], -1)[..., -window:]
        forget = grew[..., None]
        return _History(y, residual, moves.masked_fill(forget, 0.0), changes.masked_fill(forget, 0.0))
