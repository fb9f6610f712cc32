"""A backend for binary programs that returns no point that breaks a constraint within the tolerance of the solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import numpy.typing as npt

from setgrad.discrete import Backend, HiGHS, Program, Status
from setgrad.discrete.solvers._cuts import Cut, cover_cut, solve_with_cuts

_EPSILON = np.finfo(np.float64).eps


@final
@dataclass(frozen=True)
class ExactBackend(Backend):
    """Solves binary programs by HiGHS; points that break a constraint within its tolerance are cut off.

    Only the rounding of the sum itself is allowed: three times 0.1 is more than 0.3 in floats, and is feasible.
    """

    def find(self, program: Program) -> tuple[npt.NDArray[np.float64] | None, Status]:
        """Solve again with more cuts until the point is feasible."""
        return solve_with_cuts(HiGHS(time_limit=self.time_limit), program, partial(_find_cut, program))


def _find_cut(program: Program, point: npt.NDArray[np.float64]) -> Cut | None:
    """Return an inequality that cuts off a point that breaks a constraint; None if it breaks none."""
    rounding = len(point) * _EPSILON
    for row, lower, upper in zip(program.A, program.lower, program.upper, strict=True):
        slack = rounding * (np.abs(row) @ point)
        if (row >= 0).all():
            cut = cover_cut(row, upper + rounding * abs(upper), point)
            if cut is not None:
                return cut
            upper = np.inf
        if not lower - slack <= row @ point <= upper + slack:
            # Every other binary point differs in at least one entry.
            return 2 * point - 1, point.sum() - 1
    return None
