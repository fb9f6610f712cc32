"""A backend that takes no point for allowed because it is nearly so."""

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
class Exact(Backend):
    """Solves programs of zeros and ones by HiGHS; points that break a constraint within its tolerance are shut out.

    What remains is the rounding of the sum itself: three times 0.1 is more than 0.3 in floats, and fits all the same.
    """

    def find(self, program: Program) -> tuple[npt.NDArray[np.float64] | None, Status]:
        """Ask again until the answer holds."""
        return solve_with_cuts(HiGHS(time_limit=self.time_limit), program, partial(_refuse, program))


def _refuse(program: Program, point: npt.NDArray[np.float64]) -> Cut | None:
    """What shuts out a point that breaks a constraint; None if it holds all of them."""
    rounding = len(point) * _EPSILON
    for row, lower, upper in zip(program.A, program.lower, program.upper, strict=True):
        slack = rounding * (np.abs(row) @ point)
        if (row >= 0).all():
            cut = cover_cut(row, upper + rounding * abs(upper), point)
            if cut is not None:
                return cut
            upper = np.inf
        if not lower - slack <= row @ point <= upper + slack:
            # Every other point of zeros and ones differs in one place or more.
            return 2 * point - 1, point.sum() - 1
    return None
