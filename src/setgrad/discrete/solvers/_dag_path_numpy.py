"""Cheapest paths in a graph without cycles, in NumPy: the same steps and results as `Levels.cheapest` in torch."""

from __future__ import annotations

from typing import Any

import numpy as np


def cheapest(
    cost: Any, start: Any, goal: Any, *, place: Any, sizes: tuple[int, ...], into: Any, source: Any
) -> tuple[Any, Any]:
    """Return ones on the edges of the cheapest paths, and whether there is a path; the tables are those of `Levels`.

    Instances are on the last axis. The node of an instance has a flat index: its place times the number of instances,
    plus the number of the instance.
    """
    (count, edges), (nodes, max_edges) = cost.shape, into.shape
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
        via_edge, level_distance = total[low:high], distance[low:high]
        via_edge += distance.take(source[low:high], axis=0)
        np.minimum(level_distance, np.minimum.reduce(via_edge, axis=1), out=level_distance)
        low = high
    reachable = np.isfinite(distance.reshape(-1)[goal])
    # The first of the cheapest edges into each node; a comparison for each edge is faster than argmin over a few.
    first = np.full((nodes, count), max_edges - 1)
    for number in reversed(range(max_edges - 1)):
        first = np.where(total[:, number] == distance, number, first)
    first += np.arange(0, nodes * max_edges, max_edges)[:, None]
    edge, previous = into.take(first) + rows * edges, source.take(first) * count + rows
    edge, previous = edge.reshape(-1), previous.reshape(-1)
    # At the start, stay there, and mark an edge that does not exist.
    edge[start], previous[start] = count * edges, start
    z = np.zeros(count * edges + 1, cost.dtype)
    trail = [np.where(reachable, goal, start)]
    for _ in sizes[2:]:
        trail.append(previous.take(trail[-1]))
    z[edge.take(np.concatenate(trail))] = 1
    return z[:-1].reshape(count, edges), reachable
