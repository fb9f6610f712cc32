"""Means and spreads of repeated runs, and differences between them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import final


@final
@dataclass(frozen=True)
class Summary:
    """Mean of a score over folds or seeds, its standard deviation, and the standard error of the mean."""

    mean: float
    deviation: float
    error: float
    count: int

    def to_json(self) -> dict[str, float | None]:
        """Return the numbers by name, None where a spread is unknown."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.count < 2 else f"{self.mean:.1f} ± {self.deviation:.1f}"


@final
@dataclass(frozen=True)
class Difference:
    """How far one model is above another, in points and in standard errors (NaN where the spread is unknown)."""

    points: float
    errors: float

    def __str__(self) -> str:
        return f"{self.points:+.1f}" + ("" if math.isnan(self.errors) else f" = {self.errors:+.1f} se")


def summarise(values: Sequence[float]) -> Summary:
    """Return mean, deviation and error of the values; both spreads of a single value are NaN.

    Examples:
        >>> print(summarise([1.0, 3.0]))
        2.0 ± 1.4
    """
    if len(values) < 2:
        return Summary(values[0], math.nan, math.nan, 1)
    deviation = statistics.stdev(values)
    return Summary(statistics.fmean(values), deviation, deviation / math.sqrt(len(values)), len(values))


def paired_differences(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Return how far the first is above the second, for each fold that both have.

    Examples:
        >>> paired_differences({0: 5.0, 1: 9.0, 2: 1.0}, {0: 4.0, 1: 7.0})
        [1.0, 2.0]
    """
    return [first[number] - second[number] for number in sorted(first.keys() & second.keys())]


def compare(first: Mapping[int, float], second: Mapping[int, float], *, paired: bool) -> Difference:
    """Return the difference of two models, by fold or seed.

    Folds are paired, because a fold is the same data for both models: that removes how hard a fold is. Seeds are not,
    because the same seed has nothing in common between models: the errors of both means add up.

    Examples:
        >>> print(compare({0: 5.0, 1: 9.0}, {0: 4.0, 1: 7.0}, paired=True))
        +1.5 = +3.0 se
    """
    if paired:
        differences = summarise(paired_differences(first, second))
        points, error = differences.mean, differences.error
    else:
        one, two = summarise(list(first.values())), summarise(list(second.values()))
        points, error = one.mean - two.mean, math.hypot(one.error, two.error)
    if error == 0:
        return Difference(points, math.copysign(math.inf, points) if points else 0.0)
    return Difference(points, points / error)


def mean_cell(values: Sequence[float], form: str) -> str:
    """Return mean and, for several values, standard deviation; diverged runs (NaN) are counted separately.

    Examples:
        >>> mean_cell([1.0, 3.0, float("nan")], ".1f")
        '2.0 ± 1.4 (1 of 3 diverged)'
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "diverged" if values else "-"
    summary = summarise(known)
    spread = f" ± {summary.deviation:{form}}" if summary.count > 1 else ""
    lost = f" ({len(values) - len(known)} of {len(values)} diverged)" if len(known) < len(values) else ""
    return f"{summary.mean:{form}}{spread}{lost}"
