"""Programs of zeros and ones whose constraints hold to the last digit, though a backend has tolerances."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from setgrad._status import Status
from setgrad.discrete.solvers._host import Array
from setgrad.discrete.solvers.backends import Backend, Program

# Coefficients, and the most that their product with a point may be.
Cut = tuple[Array, float]


def solve_with_cuts(
    backend: Backend, program: Program, refuse: Callable[[Array], Cut | None]
) -> tuple[Array | None, Status]:
    """The best point that `refuse` lets pass; of any other it says what shuts it out, and the backend is asked again.

    The backend's time limit is one for all its programs together.
    """
    limit, start = backend.time_limit, time.monotonic()
    while True:
        point, status = backend.solve(program)
        cut = None if point is None else refuse(point)
        if cut is None:
            return point, status
        if limit is not None:
            left = limit - (time.monotonic() - start)
            if left <= 0:
                return None, Status.NOT_FOUND
            backend = replace(backend, time_limit=left)
        program = program.with_row(*cut)


def cut_too_heavy(weights: Array, room: float, point: Array) -> Cut | None:
    """What shuts out the chosen items if their weights, 0 or more, exceed the room; None if they fit.

    Items leave, the lightest first, as long as the rest is too heavy. Of what is left, and of all items as heavy as its
    heaviest, a set that fits has at least one less: one row shuts out all sets of such items, not this one alone.
    """
    cover = point > 0.5
    # Sums without rounding depend on no order: the row shuts out nothing that would pass.
    if math.fsum(weights[cover]) <= room:
        return None
    for item in np.argsort(weights):
        if cover[item]:
            cover[item] = False
            if math.fsum(weights[cover]) <= room:
                cover[item] = True
                break
    return (cover | (weights >= weights[cover].max())).astype(np.float64), float(cover.sum() - 1)
