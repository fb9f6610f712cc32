"""A backend that takes no point for allowed because it is nearly so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import numpy.typing as npt

from setgrad.discrete import Backend, HiGHS, Program, Status

_EPSILON = np.finfo(np.float64).eps


@final
@dataclass(frozen=True)
class Exact(Backend):
    """Solves programs of zeros and ones; a point that breaks a constraint within the tolerance is cut off by name.

    What remains is the rounding of the sum itself: three times 0.1 is more than 0.3 in floats, and fits all the same.
    """

    inner: Backend = field(default_factory=HiGHS)

    def find(self, program: Program) -> tuple[npt.NDArray[np.float64] | None, Status]:
        """Ask again until the answer holds."""
        while True:
            point, status = self.inner.solve(program)
            if point is None or _holds(program, point):
                return point, status
            # Every other point of zeros and ones differs in one place or more.
            cut = 2 * point - 1
            program = replace(
                program,
                A=np.vstack([program.A, cut]),
                lower=np.append(program.lower, -np.inf),
                upper=np.append(program.upper, point.sum() - 1),
            )


def _holds(program: Program, point: npt.NDArray[np.float64]) -> bool:
    sums = program.A @ point
    slack = len(point) * _EPSILON * (np.abs(program.A) @ point)
    return bool(((sums <= program.upper + slack) & (sums >= program.lower - slack)).all())
