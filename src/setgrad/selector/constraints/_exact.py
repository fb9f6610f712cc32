"""Integer programs without the tolerance of a solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from setgrad import discrete
from setgrad.discrete.solvers._cuts import Cut, solve_with_cuts
from setgrad.selector.constraints._rows import cut_of_row


@final
@dataclass(frozen=True)
class ExactBackend(discrete.Backend):
    """Solves binary programs by HiGHS; points that break a constraint within its tolerance are cut off.

    Only the rounding of the sum itself is allowed: three times 0.1 is more than 0.3 in floats, and is feasible.
    """

    def find(self, program: discrete.Program) -> tuple[np.ndarray | None, discrete.Status]:
        """Solve again with more cuts until the point is feasible."""
        return solve_with_cuts(discrete.HiGHS(time_limit=self.time_limit), program, partial(_find_cut, program))


def _find_cut(program: discrete.Program, point: np.ndarray) -> Cut | None:
    """Return an inequality that cuts off a point that breaks a constraint; None if it breaks none."""
    for row, lower, upper in zip(program.A, program.lower, program.upper, strict=True):
        cut = cut_of_row(row, lower, upper, point)
        if cut is not None:
            return cut
    return None
