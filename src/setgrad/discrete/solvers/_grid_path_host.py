"""Cheapest paths across a grid in NumPy: the rounds and the walk of `GridPath`, and its answers.

The batch goes last, and the grid has a frame of infinity. All is kept flat: a neighbour is then the same distance away
from every cell, so that a step over some rows of the grid is one run through memory. What it makes of the frame is
infinite again, because entering the frame costs infinity.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def paths(cost: Any, start: tuple[int, int], goal: tuple[int, int], moves: list[int]) -> Any:
    """Ones on the cells of the cheapest paths, (count, height, width), for such costs; moves count with the frame."""
    count, height, width = cost.shape
    shape = (height + 2, width + 2, count)
    framed = np.full(shape, np.inf, cost.dtype)
    framed[1:-1, 1:-1] = cost.transpose(1, 2, 0)
    first, last = (((row + 1) * shape[1] + column + 1) * count for row, column in (start, goal))
    distance, rounds = _spread(framed, start[0], first, king=len(moves) == 8)
    path = _walk(distance, rounds, first + np.arange(count), last + np.arange(count), np.array(moves) * count)
    return path.reshape(shape)[1:-1, 1:-1].transpose(2, 0, 1)


def _spread(framed: Any, row: int, first: int, *, king: bool) -> tuple[Any, Any]:
    """Distance of every cell from the start, and the round in which it last fell."""
    (height, width, count), costs = framed.shape, framed.reshape(-1)
    line, cells = width * count, (height - 2) * (width - 2)
    distance = np.full_like(costs, np.inf)
    distance[first : first + count] = costs[first : first + count]
    # Short numbers where they suffice: the rounds are bound by memory.
    rounds = np.zeros(costs.shape, np.int16 if cells < 2**15 - 1 else np.int32)
    lines, near, fell, fallen = (np.empty_like(costs, dtype) for dtype in (None, None, bool, rounds.dtype))
    for number in range(1, cells + 1):
        # A round reaches one row further: what lies beyond is left alone.
        low, high = max(1, row + 1 - number) * line, min(height - 1, row + 2 + number) * line
        here = slice(low, high)
        np.minimum(distance[low - line : high - line], distance[low + line : high + line], out=lines[here])
        if king:
            np.minimum(lines[here], distance[here], out=lines[here])
        # The first and the last cell of these rows belong to the frame and have no neighbour on one side.
        here, left, right = (slice(low + by, high - 2 * count + by) for by in (count, 0, 2 * count))
        sides = lines if king else distance
        np.minimum(sides[left], sides[right], out=near[here])
        np.minimum(near[here], lines[here], out=near[here])
        np.add(near[here], costs[here], out=near[here])
        if not np.less(near[here], distance[here], out=fell[here]).any():
            break
        np.multiply(fell[here], rounds.dtype.type(number), out=fallen[here])
        np.maximum(rounds[here], fallen[here], out=rounds[here])
        np.minimum(distance[here], near[here], out=distance[here])
    return distance, rounds


def _walk(distance: Any, rounds: Any, start: Any, goal: Any, moves: Any) -> Any:
    """Mark the cells from the goal back to the start: to the nearest neighbour, of equally near ones the first."""
    never, here, trail = np.iinfo(rounds.dtype).max, goal, [goal]
    for _ in range(len(distance) // len(goal)):
        going = here != start
        if not going.any():
            break
        near = here + moves[:, None]
        away = distance.take(near)
        late = np.where(away > np.minimum.reduce(away, axis=0), never, rounds.take(near))
        here = here + moves.take(late.argmin(0)) * going
        trail.append(here)
    path = np.zeros_like(distance)
    path[np.concatenate(trail)] = 1
    return path
