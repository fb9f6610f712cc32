"""Linear constraints without the tolerance of a solver: integer programs, and whether subsets are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from setgrad import discrete
from setgrad.discrete.solvers._cuts import Cut, cover_cut, solve_with_cuts
from setgrad.selector.constraints._base import Rows

_EPSILON = np.finfo(np.float64).eps


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
        cut = _cut_of_row(row, lower, upper, point)
        if cut is not None:
            return cut
    return None


def _cut_of_row(row: np.ndarray, lower: float, upper: float, point: np.ndarray) -> Cut | None:
    rounding = len(point) * _EPSILON
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


def rows_allow(rows: Rows, points: np.ndarray) -> np.ndarray:
    """Return which subsets satisfy the rows, by the rule of `ExactBackend`.

    Args:
        rows: The rows of b sets of one size.
        points: Booleans `(m, b, size)`.

    Returns:
        Booleans `(m, b)`.
    """
    sums = np.einsum("brn,mbn->mbr", rows.A, points.astype(np.float64))
    allowed = (rows.lower <= sums) & (sums <= rows.upper)
    # Sums of whole numbers are exact. Others that are near to a bound are decided by the slower rule itself.
    width = _rounding(rows)
    near = (np.abs(sums - rows.lower) <= width) | (np.abs(sums - rows.upper) <= width)
    for m, b, r in zip(*(near & ~_are_whole(rows)).nonzero(), strict=True):
        point = points[m, b].astype(np.float64)
        allowed[m, b, r] = _cut_of_row(rows.A[b, r], rows.lower[b, r], rows.upper[b, r], point) is None
    answer: np.ndarray = allowed.all(-1)
    return answer


def never_met(rows: Rows) -> np.ndarray:
    """Return for which sets one row alone excludes every subset, `(b,)`."""
    least, most, width = np.minimum(rows.A, 0).sum(-1), np.maximum(rows.A, 0).sum(-1), _rounding(rows)
    answer: np.ndarray = ((most + width < rows.lower) | (least - width > rows.upper)).any(-1)
    return answer


def _rounding(rows: Rows) -> np.ndarray:
    """Return more than the rounding of a sum of each row and of its bounds, `(b, rows)`."""
    bounds = (np.where(np.isfinite(bound), np.abs(bound), 0) for bound in (rows.lower, rows.upper))
    scale: np.ndarray = np.abs(rows.A).sum(-1) + sum(bounds)
    return 8 * rows.A.shape[-1] * _EPSILON * scale


def _are_whole(rows: Rows) -> np.ndarray:
    bounds = (~np.isfinite(bound) | (bound == np.round(bound)) for bound in (rows.lower, rows.upper))
    whole: np.ndarray = (np.round(rows.A) == rows.A).all(-1) & np.logical_and(*bounds)
    return whole
