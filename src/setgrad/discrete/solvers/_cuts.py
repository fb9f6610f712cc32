"""Binary programs whose constraints hold exactly, although backends have tolerances."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from setgrad._status import Status
from setgrad.discrete.solvers._pool import Array
from setgrad.discrete.solvers.backends import Backend, Program

# Coefficients of a constraint, and its upper bound.
Cut = tuple[Array, float]


def solve_with_cuts(
    backend: Backend, program: Program, find_cut: Callable[[Array], Cut | None]
) -> tuple[Array | None, Status]:
    """Return the best point for which `find_cut` returns None, and the status.

    For any other point `find_cut` returns a constraint that excludes it, and the backend solves the program again. The
    time limit of the backend applies to all its calls together.
    """
    limit, start = backend.time_limit, time.monotonic()
    while True:
        point, status = backend.solve(program)
        cut = None if point is None else find_cut(point)
        if cut is None:
            return point, status
        if limit is not None:
            left = limit - (time.monotonic() - start)
            if left <= 0:
                return None, Status.NOT_FOUND
            backend = replace(backend, time_limit=left)
        program = program.with_row(*cut)


def cover_cut(weights: Array, capacity: float, point: Array) -> Cut | None:
    """Return a cover inequality that excludes a point whose weights, 0 or more, exceed the capacity; None if they fit.

    The lightest items are removed as long as the rest is too heavy. Of the remaining items, together with all items as
    heavy as the heaviest of them, a feasible set has at least one less: the inequality excludes all such sets at once.
    """
    cover = point > 0.5
    # Exact sums do not depend on the order, so the inequality excludes no feasible set.
    if math.fsum(weights[cover]) <= capacity:
        return None
    for item in np.argsort(weights):
        if cover[item]:
            cover[item] = False
            if math.fsum(weights[cover]) <= capacity:
                cover[item] = True
                break
    return (cover | (weights >= weights[cover].max())).astype(np.float64), float(cover.sum() - 1)
