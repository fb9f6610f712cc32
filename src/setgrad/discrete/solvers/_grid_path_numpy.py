"""Cheapest paths across a grid in NumPy: the same steps and results as `GridPath` in torch.

The batch is on the last axis, and the grid has a frame of infinity. Arrays are flat: a neighbour has the same offset
from every cell, so that an operation on rows of the grid is one pass through memory. The frame stays at infinity,
because entering it costs infinity.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def paths(cost: Any, start: tuple[int, int], goal: tuple[int, int], moves: list[int]) -> Any:
    """Return ones on the cells of the cheapest paths, like `cost` (count, height, width); `moves` include the frame."""
    count, height, width = cost.shape
    shape = (height + 2, width + 2, count)
    framed = np.full(shape, np.inf, cost.dtype)
    framed[1:-1, 1:-1] = cost.transpose(1, 2, 0)
    first, last = (((row + 1) * shape[1] + column + 1) * count for row, column in (start, goal))
    distance, rounds = _distances(framed, start[0], first, king=len(moves) == 8)
    path = _walk(distance, rounds, first + np.arange(count), last + np.arange(count), np.array(moves) * count)
    return path.reshape(shape)[1:-1, 1:-1].transpose(2, 0, 1)


def _distances(framed: Any, row: int, first: int, *, king: bool) -> tuple[Any, Any]:
    """Return the distance of every cell from the start, and the round in which it last fell."""
    (height, width, count), costs = framed.shape, framed.reshape(-1)
    line, cells = width * count, (height - 2) * (width - 2)
    distance = np.full_like(costs, np.inf)
    distance[first : first + count] = costs[first : first + count]
    # Short integers if they suffice: memory limits the speed of the rounds.
    rounds = np.zeros(costs.shape, np.int16 if cells < 2**15 - 1 else np.int32)
    lines, nearest, fell, fallen = (np.empty_like(costs, dtype) for dtype in (None, None, bool, rounds.dtype))
    for number in range(1, cells + 1):
        # A round reaches one row further; cells beyond do not change.
        low, high = max(1, row + 1 - number) * line, min(height - 1, row + 2 + number) * line
        rows = slice(low, high)
        np.minimum(distance[low - line : high - line], distance[low + line : high + line], out=lines[rows])
        if king:
            np.minimum(lines[rows], distance[rows], out=lines[rows])
        # The first and the last cell of these rows are in the frame and have no neighbour on one side.
        inner, left, right = (slice(low + by, high - 2 * count + by) for by in (count, 0, 2 * count))
        sides = lines if king else distance
        np.minimum(sides[left], sides[right], out=nearest[inner])
        np.minimum(nearest[inner], lines[inner], out=nearest[inner])
        np.add(nearest[inner], costs[inner], out=nearest[inner])
        if not np.less(nearest[inner], distance[inner], out=fell[inner]).any():
            break
        np.multiply(fell[inner], rounds.dtype.type(number), out=fallen[inner])
        np.maximum(rounds[inner], fallen[inner], out=rounds[inner])
        np.minimum(distance[inner], nearest[inner], out=distance[inner])
    return distance, rounds


def _walk(distance: Any, rounds: Any, start: Any, goal: Any, moves: Any) -> Any:
    """Return ones on the cells from the goal back to the start, through the nearest neighbours."""
    never, cell, trail = np.iinfo(rounds.dtype).max, goal, [goal]
    for _ in range(len(distance) // len(goal)):
        moving = cell != start
        if not moving.any():
            break
        neighbours = cell + moves[:, None]
        distances = distance.take(neighbours)
        last_fell = np.where(distances > np.minimum.reduce(distances, axis=0), never, rounds.take(neighbours))
        cell = cell + moves.take(last_fell.argmin(0)) * moving
        trail.append(cell)
    path = np.zeros_like(distance)
    path[np.concatenate(trail)] = 1
    return path
