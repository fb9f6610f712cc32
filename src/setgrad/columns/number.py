"""Quantities and truth values: a number for each item, and a flag where it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._encoded import Encoded
from setgrad.columns._part import Part
from setgrad.columns._values import count_gaps, read_quantities, read_truth
from setgrad.sets._columns import Column


@final
@dataclass(frozen=True, kw_only=True)
class NumberColumn(FittedColumn):
    """A column of quantities.

    Attributes:
        fill: What stands for a missing value: the median of the training rows.
        flag: Whether a second number says that the value is missing; it does if training rows have gaps.
    """

    fill: float
    flag: bool

    @property
    def parts(self) -> tuple[Part, ...]:
        """The quantity, and the flag."""
        return (Part(1 + self.flag, context=self.context, compared=1),)

    @classmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it."""
        values = read_quantities(training.first)
        missing = np.isnan(values)
        fill = float(np.median(values[~missing])) if not missing.all() else 0.0
        return cls(name=name, context=training.context, fill=fill, flag=bool(missing.any()))

    def encode_distinct(self, columns: Sequence[Column]) -> Encoded:
        """Return the quantities and the flags of a chunk."""
        return Encoded(with_flag(read_quantities(columns[0]), self.fill, flag=self.flag))

    def count_new_gaps(self, columns: Sequence[Column]) -> int:
        """Return the number of gaps of a chunk, if there is no flag."""
        return 0 if self.flag else count_gaps(columns[0])


@final
@dataclass(frozen=True, kw_only=True)
class BooleanColumn(FittedColumn):
    """A column of truth values: true / false, yes / no, 0 / 1.

    Attributes:
        flag: Whether a second number says that the value is missing.
    """

    flag: bool

    @property
    def parts(self) -> tuple[Part, ...]:
        """The truth value, and the flag."""
        return (Part(1 + self.flag, context=self.context),)

    @classmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it."""
        missing = np.isnan(read_truth(training.first))
        return cls(name=name, context=training.context, flag=bool(missing.any()))

    def encode_distinct(self, columns: Sequence[Column]) -> Encoded:
        """Return 1 for true, 0 for false, 0.5 for a gap, and the flags."""
        return Encoded(with_flag(read_truth(columns[0]), 0.5, flag=self.flag))

    def count_new_gaps(self, columns: Sequence[Column]) -> int:
        """Return the number of gaps of a chunk, if there is no flag."""
        return 0 if self.flag else count_gaps(columns[0])


def with_flag(values: np.ndarray, fill: float, *, flag: bool) -> np.ndarray:
    """Return values with gaps filled and, if asked for, a column of flags, `(rows, 1 or 2)`."""
    missing = np.isnan(values)
    filled = np.where(missing, fill, values)
    return np.stack([filled, missing], 1) if flag else filled[:, None]
