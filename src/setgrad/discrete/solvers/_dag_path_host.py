"""Cheapest paths in a graph without circles, in NumPy: the steps of `Levels.cheapest`, and its answers."""

from __future__ import annotations

from typing import Any

import numpy as np


def cheapest(
    cost: Any, start: Any, goal: Any, *, place: Any, sizes: tuple[int, ...], into: Any, source: Any
) -> tuple[Any, Any]:
    """Ones on the edges of the cheapest paths, and whether there is one; the tables are those of `Levels`.

    Instances run along the last axis, and a node of an instance has one number: its place times their count, plus the
    number of the instance.
    """
    (count, edges), (nodes, most) = cost.shape, into.shape
    rows = np.arange(count)
    start, goal = place[start] * count + rows, place[goal] * count + rows
    padded = np.full((edges + 1, count), np.inf, cost.dtype)
    padded[:-1] = cost.T
    total = padded.take(into, axis=0)
    distance = np.full((nodes, count), np.inf, cost.dtype)
    distance.reshape(-1)[start] = 0
    low = sizes[0]
    for size in sizes[1:]:
        high = low + size
        ways, here = total[low:high], distance[low:high]
        ways += distance.take(source[low:high], axis=0)
        np.minimum(here, np.minimum.reduce(ways, axis=1), out=here)
        low = high
    found = np.isfinite(distance.reshape(-1)[goal])
    # The first of the cheapest ways into each node; one comparison for each way is quicker than argmin over a few.
    first = np.full((nodes, count), most - 1)
    for way in reversed(range(most - 1)):
        first = np.where(total[:, way] == distance, way, first)
    first += np.arange(0, nodes * most, most)[:, None]
    edge, before = into.take(first) + rows * edges, source.take(first) * count + rows
    edge, before = edge.reshape(-1), before.reshape(-1)
    # Who is back at the start stays there, and marks an edge that does not exist.
    edge[start], before[start] = count * edges, start
    z = np.zeros(count * edges + 1, cost.dtype)
    trail = [np.where(found, goal, start)]
    for _ in sizes[2:]:
        trail.append(before.take(trail[-1]))
    z[edge.take(np.concatenate(trail))] = 1
    return z[:-1].reshape(count, edges), found
