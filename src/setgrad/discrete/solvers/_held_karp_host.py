"""The dynamic programme of Held and Karp in NumPy: the same steps as in torch, and the same answers."""

from __future__ import annotations

from typing import Any

import numpy as np


def tours(cost: Any, layers: list[tuple[Any, Any, Any]]) -> Any:
    """The best order of the cities, (count, n), for costs (count, n, n) and the tables of row numbers of all layers."""
    count, n = cost.shape[:2]
    others = n - 1
    cost = np.ascontiguousarray(cost.transpose(1, 2, 0))
    first, legs = cost[0, 1:], cost[1:, 1:].reshape(-1, count)
    best = np.full((2**others * others, count), np.inf, cost.dtype)
    each = np.arange(others)
    best[2**each * others + each] = first
    for here, before, leg in layers:
        ways = best.take(before, axis=0)
        ways += legs.take(leg, axis=0)
        best[here] = np.minimum.reduce(ways, axis=1)
    # From the last city back. The numbers of one set, or of one city, lie `wide` apart from those of the next.
    wide, lane = others * count, np.arange(count) + each[:, None] * count
    left = np.full(count, 2**others - 1)
    tour = np.empty((n, count), np.intp)
    tour[0], tour[1] = -1, (best[-others:] + first).argmin(0)
    for at in range(2, n):
        city = tour[at - 1]
        left ^= 1 << city
        tour[at] = (best.take(left * wide + lane) + legs.take(city * wide + lane)).argmin(0)
    return tour.T + 1
