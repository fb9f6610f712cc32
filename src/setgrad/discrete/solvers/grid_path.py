"""Cheapest paths across a grid by value iteration on the whole batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers import _grid_path_host
from setgrad.discrete.solvers._arrays import small_arrays
from setgrad.discrete.solvers._shapes import slices, unit
from setgrad.errors import OptionError, ShapeError

# The host asks the device only now and then whether all instances are done: rounds too many change nothing.
_PATIENCE = 8
# Cells of the batch up to which NumPy is faster than torch with a few threads, and of a part that fits the cache.
_SMALL, _ROOM = 2**18, 2**17


@final
@dataclass(frozen=True, eq=False)
class GridPath(CombinatorialSolver):
    """The cheapest path from one cell of a grid to another; theta holds the cost of every cell, (*batch, h, w).

    z is 1 on the cells of the path, both ends included. The sense is "min" by default; with "max", theta is minus the
    costs. A cheapest simple path with negative costs is a hard problem, and estimators do ask with perturbed costs, so
    **costs below 0 count as 0**: the answer is then best for the clamped costs. Keep costs positive (softplus) for the
    exact best point. Of equal paths the same one is always taken: read from the goal, through cells
    that fewer rounds of the iteration reach, and of these through the lower numbers.

    Args:
        neighbours: 8 for king's moves, 4 for moves along rows and columns.
        start: Row and column of the first cell; negative numbers count from the end.
        goal: Row and column of the last cell.

    Example:
        >>> GridPath()(torch.tensor([[1.0, 1.0, 9.0], [9.0, 9.0, 1.0], [9.0, 9.0, 1.0]]))
        tensor([[1., 1., 0.],
                [0., 0., 1.],
                [0., 0., 1.]])
    """

    neighbours: int = 8
    start: tuple[int, int] = (0, 0)
    goal: tuple[int, int] = (-1, -1)
    sense: str = field(default="min", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours not in (4, 8):
            raise OptionError(f"a cell has 4 or 8 neighbours, not {self.neighbours}")

    @property
    def dims(self) -> int:
        """Rows by columns."""
        return 2

    def check(self, theta: Tensor) -> None:
        """Refuse ends that lie outside the grid."""
        super().check(theta)
        height, width = theta.shape[-2:]
        for row, column in (self.start, self.goal):
            if not (-height <= row < height and -width <= column < width):
                raise ShapeError(f"the cell ({row}, {column}) lies outside a grid of {height} x {width}")

    def solve(self, theta: Tensor) -> Tensor:
        """Spread distances from the start, then walk back from the goal."""
        height, width = theta.shape[-2:]
        cost = (theta * -unit(2 * height * width)).clamp(min=0).reshape(-1, height, width)
        start, goal = ((row % height, column % width) for row, column in (self.start, self.goal))
        arrays = small_arrays(cost.numel(), _SMALL, cost)
        if arrays is None:
            return self._by_torch(cost, start, goal).reshape(theta.shape)
        moves = self._moves(width + 2)
        # No part is of less than 32 instances, however large the grid: NumPy would spend its time between the steps.
        parts = slices(len(cost), min(height * width, _ROOM // 32), _ROOM)
        z = np.concatenate([_grid_path_host.paths(arrays[0][part], start, goal, moves) for part in parts])
        return torch.from_numpy(z).reshape(theta.shape)

    def _by_torch(self, cost: Tensor, start: tuple[int, int], goal: tuple[int, int]) -> Tensor:
        """The same on any device, for costs (count, height, width)."""
        # The batch goes last, where it is contiguous whatever part of the grid an operation touches.
        cost = cost.permute(1, 2, 0).contiguous()
        distance, round_ = self._spread(cost, *start)
        wide = distance.shape[1]
        path = self._walk(distance, round_, *((row + 1) * wide + column + 1 for row, column in (start, goal)))
        return path[1:-1, 1:-1].permute(2, 0, 1)

    def _spread(self, cost: Tensor, row: int, column: int) -> tuple[Tensor, Tensor]:
        """Distance of every cell in a frame of infinity, and the round in which it last fell."""
        height, width, count = cost.shape
        framed = cost.new_full((height + 2, width + 2, count), torch.inf)
        framed[row + 1, column + 1] = cost[row, column]
        rounds = torch.zeros(framed.shape, dtype=torch.int32, device=cost.device)
        for number in range(1, height * width + 1):
            # A round reaches one cell further: what lies beyond is left alone.
            rows, columns = (slice(max(0, at - number), at + number + 1) for at in (row, column))
            around = framed[rows.start : rows.stop + 2, columns.start : columns.stop + 2]
            inner = around[1:-1, 1:-1]
            lines = torch.minimum(around[:-2], around[2:])
            if self.neighbours == 8:
                lines = torch.minimum(lines, around[1:-1])
                near = torch.minimum(lines[:, :-2], lines[:, 2:])
            else:
                near = torch.minimum(around[1:-1, :-2], around[1:-1, 2:])
            new = torch.minimum(near, lines[:, 1:-1]).add_(cost[rows, columns])
            fell = new < inner
            if number % _PATIENCE == 0 and not bool(fell.any()):
                break
            rounds[1:-1, 1:-1][rows, columns].masked_fill_(fell, number)
            torch.minimum(inner, new, out=inner)
        return framed, rounds

    def _walk(self, distance: Tensor, round_: Tensor, start: int, goal: int) -> Tensor:
        """Mark the cells from the goal back to the start.

        A neighbour at the least distance is always one that the path may come from. Across cells that cost nothing
        the distance stands still; there the least round leads back, because a cell falls only after the one it
        followed. So the walk cannot turn in a circle.
        """
        wide, count = distance.shape[1:]
        far, when = distance.reshape(-1, count), round_.reshape(-1, count)
        moves = torch.tensor(self._moves(wide), device=distance.device)[:, None]
        here = torch.full((count,), goal, device=distance.device)
        path = torch.zeros_like(far)
        path[goal] = 1
        for number in range(1, len(far)):
            near = here + moves
            away = far.gather(0, near)
            late = when.gather(0, near).masked_fill_(away > away.amin(0), 2**31 - 1)
            back = near.gather(0, late.argmin(0, keepdim=True))[0]
            here = torch.where(here == start, here, back)
            path.scatter_(0, here[None], 1)
            if number % _PATIENCE == 0 and bool((here == start).all()):
                break
        return path.reshape(distance.shape)

    def _moves(self, wide: int) -> list[int]:
        """Steps to the neighbours, in the order of their numbers."""
        steps = [-wide - 1, -wide, -wide + 1, -1, 1, wide - 1, wide, wide + 1]
        return steps if self.neighbours == 8 else [-wide, -1, 1, wide]
