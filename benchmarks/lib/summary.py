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
    """Mean of a score over folds or seeds, with the standard deviation and the standard error of the mean."""

    mean: float
    deviation: float
    error: float
    count: int

    def to_json(self) -> dict[str, float | None]:
        """The numbers, None where a spread is unknown."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.count < 2 else f"{self.mean:.1f} ± {self.deviation:.1f}"


@final
@dataclass(frozen=True)
class Difference:
    """How far one model is above another: in points, and in standard errors (NaN where the spread is unknown)."""

    points: float
    errors: float

    def __str__(self) -> str:
        return f"{self.points:+.1f}" + ("" if math.isnan(self.errors) else f" = {self.errors:+.1f} se")


def summarise(values: Sequence[float]) -> Summary:
    """Mean, deviation and error of the values; both spreads are unknown (NaN) for a single one.

    Example:
        >>> print(summarise([1.0, 3.0]))
        2.0 ± 1.4
    """
    if len(values) < 2:
        return Summary(values[0], math.nan, math.nan, 1)
    deviation = statistics.stdev(values)
    return Summary(statistics.fmean(values), deviation, deviation / math.sqrt(len(values)), len(values))


def paired_gaps(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """How far the first is above the second, for each number that both have.

    Example:
        >>> paired_gaps({0: 5.0, 1: 9.0, 2: 1.0}, {0: 4.0, 1: 7.0})
        [1.0, 2.0]
    """
    return [first[number] - second[number] for number in sorted(first.keys() & second.keys())]


def compare(first: Mapping[int, float], second: Mapping[int, float], *, paired: bool) -> Difference:
    """The difference of two models. Paired where a number means the same data for both, as it does for folds.

    Pairs take out that some folds are harder than others, for all models alike. With seeds the numbers have
    nothing in common, so the errors of both means add up.

    Example:
        >>> print(compare({0: 5.0, 1: 9.0}, {0: 4.0, 1: 7.0}, paired=True))
        +1.5 = +3.0 se
    """
    if paired:
        gaps = summarise(paired_gaps(first, second))
        points, error = gaps.mean, gaps.error
    else:
        one, two = summarise(list(first.values())), summarise(list(second.values()))
        points, error = one.mean - two.mean, math.hypot(one.error, two.error)
    if error == 0:
        return Difference(points, math.copysign(math.inf, points) if points else 0.0)
    return Difference(points, points / error)


def mean_cell(values: Sequence[float], form: str) -> str:
    """Mean and, if there are several, standard deviation; runs that diverged (NaN) are counted apart.

    Example:
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
