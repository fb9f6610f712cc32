"""Optimal lengths of round trips by integer programs, to check the local search for more than 12 cities."""

from __future__ import annotations

import itertools

import numpy as np
from torch import Tensor


def optimal_length(distances: Tensor) -> float:
    """Return the length of the shortest round trip for symmetric distances `(n, n)`.

    Every city has two legs; as long as a solution consists of several trips, each of them is forbidden.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, vstack

    n = len(distances)
    legs = list(itertools.combinations(range(n), 2))
    cost = np.array([float(distances[i, j]) for i, j in legs])
    rows = csr_array(np.array([[city in leg for leg in legs] for city in range(n)], float))
    least, most = [2.0] * n, [2.0] * n
    while True:
        constraint = LinearConstraint(rows, least, most)
        found = milp(cost, integrality=np.ones(len(legs)), bounds=Bounds(0, 1), constraints=constraint)
        trips = _trips(n, [leg for leg, value in zip(legs, found.x, strict=True) if value > 0.5])
        if len(trips) == 1:
            return float(found.fun)
        # At least two legs leave the cities of a trip.
        cuts = np.array([[(i in trip) != (j in trip) for i, j in legs] for trip in trips], float)
        rows = csr_array(vstack([rows, cuts]))
        least, most = [*least, *[2.0] * len(trips)], [*most, *[np.inf] * len(trips)]


def _trips(n: int, legs: list[tuple[int, int]]) -> list[set[int]]:
    """Return the cities of each trip."""
    group = list(range(n))
    for i, j in legs:
        group = [group[i] if g == group[j] else g for g in group]
    return [{city for city in range(n) if group[city] == g} for g in set(group)]
