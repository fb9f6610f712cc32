"""Whether probabilities are right: of the items with a probability of 0.3, about 30 % should be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

_BINS = 10


@final
@dataclass(frozen=True, eq=False)
class Calibration:
    """Items in bins of equal width by their probability, without the empty bins.

    Attributes:
        counts: Number of items.
        predicted: Their mean probability.
        observed: Share of them that is in the right subsets.
    """

    counts: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Standard errors of the shares, if the items were independent."""
        error: np.ndarray = np.sqrt(self.observed * (1 - self.observed) / self.counts)
        return error

    @property
    def gap(self) -> float:
        """Mean distance between probability and share, over the items (expected calibration error)."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.counts))


def calibration_of(probability: np.ndarray, right: np.ndarray) -> Calibration:
    """Return the calibration of items.

    Args:
        probability: Their probabilities.
        right: Whether each is in its right subset.

    Examples:
        >>> found = calibration_of(np.array([0.1, 0.12, 0.9]), np.array([False, True, True]))
        >>> found.counts.tolist(), found.observed.tolist(), round(found.gap, 3)
        ([2, 1], [0.5, 1.0], 0.293)
    """
    p = probability.astype(np.float64)
    number = np.minimum((p * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(number, minlength=_BINS)
    filled = counts > 0
    predicted, observed = (np.bincount(number, values, _BINS)[filled] / counts[filled] for values in (p, right))
    return Calibration(counts[filled], predicted, observed)
