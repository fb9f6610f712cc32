"""The dynamic program of Held and Karp in NumPy: the same steps and results as in torch."""

from __future__ import annotations

from typing import Any

import numpy as np


def tours(cost: Any, layers: list[tuple[Any, Any, Any]]) -> Any:
    """Return the best order of the cities, (count, n), for costs (count, n, n) and the row numbers of all layers."""
    count, n = cost.shape[:2]
    others = n - 1
    cost = np.ascontiguousarray(cost.transpose(1, 2, 0))
    first, legs = cost[0, 1:], cost[1:, 1:].reshape(-1, count)
    best = np.full((2**others * others, count), np.inf, cost.dtype)
    each = np.arange(others)
    best[2**each * others + each] = first
    for pairs, previous, leg in layers:
        paths = best.take(previous, axis=0)
        paths += legs.take(leg, axis=0)
        best[pairs] = np.minimum.reduce(paths, axis=1)
    # From the last city back. Entries of one set, or of one city, are `stride` apart from those of the next.
    stride, lane = others * count, np.arange(count) + each[:, None] * count
    remaining = np.full(count, 2**others - 1)
    tour = np.empty((n, count), np.intp)
    tour[0], tour[1] = -1, (best[-others:] + first).argmin(0)
    for step in range(2, n):
        city = tour[step - 1]
        remaining ^= 1 << city
        tour[step] = (best.take(remaining * stride + lane) + legs.take(city * stride + lane)).argmin(0)
    return tour.T + 1
