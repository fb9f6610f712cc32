"""Linear inequalities of several sets: which subsets satisfy them, without the tolerance of a solver."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np

from setgrad.discrete.solvers._cuts import Cut, cover_cut

_EPSILON = np.finfo(np.float64).eps


@final
class Rows(NamedTuple):
    """The inequalities lower <= A z <= upper of several sets: A `(sets, rows, size)`, bounds `(sets, rows)`."""

    A: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def cut_of_row(row: np.ndarray, lower: float, upper: float, point: np.ndarray) -> Cut | None:
    """Return an inequality that cuts off a point that breaks a row; None if it does not.

    Only the rounding of the sum itself is allowed.
    """
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
        allowed[m, b, r] = cut_of_row(rows.A[b, r], rows.lower[b, r], rows.upper[b, r], point) is None
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
