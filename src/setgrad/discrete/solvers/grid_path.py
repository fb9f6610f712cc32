"""Cheapest paths across a grid by value iteration on a whole batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers import _grid_path_numpy
from setgrad.discrete.solvers._limits import batch_slices, sum_scale
from setgrad.discrete.solvers._numpy import numpy_views
from setgrad.errors import OptionError, ShapeError

# The CPU asks the device only now and then whether all instances are done: more rounds change nothing.
_CHECK_INTERVAL = 8
# NumPy is faster than torch with a few threads up to this many cells; a part of the batch that fits the cache.
_NUMPY_LIMIT, _MEMORY_LIMIT = 2**18, 2**17


@final
@dataclass(frozen=True, eq=False)
class GridPath(CombinatorialSolver):
    """The cheapest path from one cell of a grid to another; theta holds the cost of every cell, (*batch, h, w).

    z is 1 on the cells of the path, both ends included. The sense is "min" by default; with "max", theta is minus the
    costs. A cheapest simple path with negative costs is NP-hard, and estimators solve for perturbed costs, so **costs
    below 0 count as 0**: the path is then optimal for the clamped costs. Keep costs positive (softplus) for the exact
    optimum. Ties are broken from the goal backwards: towards cells that the iteration reached in fewer rounds, then
    towards lower cell numbers.

    Args:
        neighbours: 8 to include diagonal moves, 4 for moves along rows and columns.
        start: Row and column of the first cell; negative numbers count from the end.
        goal: Row and column of the last cell.

    Raises:
        OptionError: If neighbours is not 4 or 8.

    Examples:
        >>> GridPath()(torch.tensor([[1.0, 1.0, 9.0], [9.0, 9.0, 1.0], [9.0, 9.0, 1.0]]))
        tensor([[1., 1., 0.],
                [0., 0., 1.],
                [0., 0., 1.]])
    """

    dims: ClassVar[int] = 2
    neighbours: int = 8
    start: tuple[int, int] = (0, 0)
    goal: tuple[int, int] = (-1, -1)
    sense: str = field(default="min", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours not in (4, 8):
            raise OptionError(f"a cell has 4 or 8 neighbours, not {self.neighbours}")

    def check(self, theta: Tensor) -> None:
        """Raise a ShapeError if the start or the goal is outside the grid."""
        super().check(theta)
        height, width = theta.shape[-2:]
        for row, column in (self.start, self.goal):
            if not (-height <= row < height and -width <= column < width):
                raise ShapeError(f"the cell ({row}, {column}) lies outside a grid of {height} x {width}")

    def solve(self, theta: Tensor) -> Tensor:
        """Compute distances from the start, then walk back from the goal."""
        height, width = theta.shape[-2:]
        cost = (theta * -sum_scale(2 * height * width)).clamp(min=0).reshape(-1, height, width)
        start, goal = ((row % height, column % width) for row, column in (self.start, self.goal))
        arrays = numpy_views(cost.numel(), _NUMPY_LIMIT, cost)
        if arrays is None:
            return self._solve_in_torch(cost, start, goal).reshape(theta.shape)
        moves = self._moves(width + 2)
        # Parts have 32 instances or more, however large the grid: NumPy has overhead for each step.
        parts = batch_slices(len(cost), min(height * width, _MEMORY_LIMIT // 32), _MEMORY_LIMIT)
        z = np.concatenate([_grid_path_numpy.paths(arrays[0][part], start, goal, moves) for part in parts])
        return torch.from_numpy(z).reshape(theta.shape)

    def _solve_in_torch(self, cost: Tensor, start: tuple[int, int], goal: tuple[int, int]) -> Tensor:
        """Compute the same on any device, for costs (count, height, width)."""
        # The batch is on the last axis, where it is contiguous for every part of the grid.
        cost = cost.permute(1, 2, 0).contiguous()
        distance, round_ = self._distances(cost, *start)
        stride = distance.shape[1]
        path = self._walk(distance, round_, *((row + 1) * stride + column + 1 for row, column in (start, goal)))
        return path[1:-1, 1:-1].permute(2, 0, 1)

    def _distances(self, cost: Tensor, row: int, column: int) -> tuple[Tensor, Tensor]:
        """Return the distance of every cell in a frame of infinity, and the round in which it last fell."""
        height, width, count = cost.shape
        framed = cost.new_full((height + 2, width + 2, count), torch.inf)
        framed[row + 1, column + 1] = cost[row, column]
        rounds = torch.zeros(framed.shape, dtype=torch.int32, device=cost.device)
        for number in range(1, height * width + 1):
            # A round reaches one cell further; cells beyond do not change.
            rows, columns = (slice(max(0, at - number), at + number + 1) for at in (row, column))
            around = framed[rows.start : rows.stop + 2, columns.start : columns.stop + 2]
            inner = around[1:-1, 1:-1]
            lines = torch.minimum(around[:-2], around[2:])
            if self.neighbours == 8:
                lines = torch.minimum(lines, around[1:-1])
                sideways = torch.minimum(lines[:, :-2], lines[:, 2:])
            else:
                sideways = torch.minimum(around[1:-1, :-2], around[1:-1, 2:])
            new = torch.minimum(sideways, lines[:, 1:-1]).add_(cost[rows, columns])
            fell = new < inner
            if number % _CHECK_INTERVAL == 0 and not bool(fell.any()):
                break
            rounds[1:-1, 1:-1][rows, columns].masked_fill_(fell, number)
            torch.minimum(inner, new, out=inner)
        return framed, rounds

    def _walk(self, distance: Tensor, round_: Tensor, start: int, goal: int) -> Tensor:
        """Return ones on the cells from the goal back to the start.

        The path may always come from a neighbour at the smallest distance. Across cells that cost nothing the distance
        does not change; there the smallest round leads back, because the distance of a cell falls only after that of
        its predecessor. So the walk cannot enter a cycle.
        """
        stride, count = distance.shape[1:]
        flat_distance, flat_round = distance.reshape(-1, count), round_.reshape(-1, count)
        moves = torch.tensor(self._moves(stride), device=distance.device)[:, None]
        cell = torch.full((count,), goal, device=distance.device)
        path = torch.zeros_like(flat_distance)
        path[goal] = 1
        for number in range(1, len(flat_distance)):
            neighbours = cell + moves
            distances = flat_distance.gather(0, neighbours)
            rounds = flat_round.gather(0, neighbours).masked_fill_(distances > distances.amin(0), 2**31 - 1)
            back = neighbours.gather(0, rounds.argmin(0, keepdim=True))[0]
            cell = torch.where(cell == start, cell, back)
            path.scatter_(0, cell[None], 1)
            if number % _CHECK_INTERVAL == 0 and bool((cell == start).all()):
                break
        return path.reshape(distance.shape)

    def _moves(self, stride: int) -> list[int]:
        """Return the offsets of the neighbours in the flat grid, in ascending order."""
        moves = [-stride - 1, -stride, -stride + 1, -1, 1, stride - 1, stride, stride + 1]
        return moves if self.neighbours == 8 else [-stride, -1, 1, stride]
