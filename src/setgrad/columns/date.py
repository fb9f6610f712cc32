"""Dates and times: the days since the first one, and the place in the year, the week and the day.

The weekday of a whole set is a category, because it decides together with others; that of an item is a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._encoded import Encoded
from setgrad.columns._part import Part
from setgrad.columns._values import DAY_FORMATS, count_gaps, find_day_format, read_days
from setgrad.columns.number import with_flag
from setgrad.sets._columns import Column, is_text

_YEAR, _WEEK = 365.2425, 7.0
# 1970 began on a Thursday.
_FIRST_WEEKDAY = 3


@final
@dataclass(frozen=True, kw_only=True)
class DateColumn(FittedColumn):
    """A column of dates or times.

    Attributes:
        day_format: How texts write a day; empty for the standard way.
        first: The first day of the training rows, counted from 1970.
        fill: What stands for a missing one, the median, in days since the first.
        flag: Whether a number says that the value is missing.
        periods: Lengths in days of the cycles within which the place counts: those that training rows tell apart.
    """

    day_format: str
    first: float
    fill: float
    flag: bool
    periods: tuple[float, ...]

    @property
    def is_sound(self) -> bool:
        """Whether days can be read."""
        return self.day_format in ("", *DAY_FORMATS) and all(period > 0 for period in self.periods)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The days since the first, the flag, and sine and cosine of each place; then the weekday."""
        numbers = Part(1 + self.flag + 2 * len(self.periods), context=self.context, compared=1)
        weekday = Part(1, 8, 7, context=True) if self.context else Part(1)
        return (numbers, weekday) if self._has_weekday else (numbers,)

    @property
    def _has_weekday(self) -> bool:
        return _WEEK in self.periods

    @property
    def note(self) -> str:
        """How texts are read."""
        return f"read as {self.day_format}" if self.day_format else ""

    @classmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it."""
        column = training.first
        # Texts that are no dates raise in the standard format.
        day_format = (find_day_format(column) or "") if is_text(column.array.type) else ""
        days = read_days(column, day_format)
        known = days[~np.isnan(days)]
        first, last = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        periods = []
        if last - first > _YEAR / 4:
            periods.append(_YEAR)
        if last - first >= 1:
            periods.append(_WEEK)
        if (known % 1 != 0).any():
            periods.append(1.0)
        return cls(
            name=name,
            context=training.context,
            day_format=day_format,
            first=first,
            fill=float(np.median(known)) - first if len(known) else 0.0,
            flag=len(known) < len(days),
            periods=tuple(periods),
        )

    def count_new_gaps(self, columns: Sequence[Column]) -> int:
        """Return the number of gaps of a chunk, if there is no flag."""
        return 0 if self.flag else count_gaps(columns[0])

    def encode_distinct(self, columns: Sequence[Column]) -> Encoded:
        """Return the numbers of a chunk; the cycles of a gap are at 0, and its weekday too."""
        days = read_days(columns[0], self.day_format)
        from_monday = days + _FIRST_WEEKDAY
        angles = 2 * np.pi * from_monday[:, None] / np.array(self.periods)
        cycles = np.nan_to_num(np.concatenate([np.sin(angles), np.cos(angles)], 1))
        # From 1 for Monday; a gap has none.
        weekday = np.nan_to_num(from_monday // 1 % _WEEK + 1)[:, None] if self._has_weekday else cycles[:, :0]
        own = with_flag(days - self.first, self.fill, flag=self.flag)
        return Encoded(np.concatenate([own, cycles, weekday], 1))
