"""What every kind of column has: the numbers that it gives an item, and what the model does with them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

from setgrad.columns._encoded import Encoded
from setgrad.columns._part import Part

if TYPE_CHECKING:
    from setgrad.sets._columns import Column


@final
@dataclass(frozen=True, eq=False)
class TrainingColumn:
    """A column of the rows that a model is trained on.

    Attributes:
        columns: The values; several columns for numbers that belong together.
        sets: The number of the set of each row.
        context: Whether the values are the same for all items of a set.
    """

    columns: Sequence[Column]
    sets: np.ndarray
    context: bool

    @property
    def first(self) -> Column:
        """The only column, or the first of several."""
        return self.columns[0]


@dataclass(frozen=True, kw_only=True)
class FittedColumn(abc.ABC):
    """How one column of a table becomes numbers, as the training rows decided it.

    To add a kind, write a class and enter it in `KINDS`. Its fields are JSON values: texts, numbers, booleans, and
    tuples of them.

    Attributes:
        name: The column of the table.
        context: Whether it had one value in each set.
    """

    name: str
    context: bool

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that are read."""
        return (self.name,)

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """What the numbers of an item are."""

    @classmethod
    @abc.abstractmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it.

        Raises:
            DataError: If the values cannot be read as this kind.
        """

    @abc.abstractmethod
    def encode_distinct(self, columns: Sequence[Column]) -> Encoded:
        """Return the numbers of the items of a chunk.

        Raises:
            DataError: If a value cannot be read.
        """

    @final
    def encode(self, columns: Sequence[Column]) -> np.ndarray:
        """Return the numbers of the items of a chunk, `(rows, width)`; errors are those of `encode_distinct`."""
        return self.encode_distinct(columns).block

    def count_new_gaps(self, columns: Sequence[Column]) -> int:
        """Return how many values of a chunk are missing, if none was missing in training; else 0."""
        return 0

    def count_unknown(self, encoded: Encoded) -> tuple[int, int]:
        """Return how many of the numbers of a chunk stand for values that training did not show, and for any value."""
        return 0, 0

    @property
    def unknown_share(self) -> float:
        """How many of the training values count as unknown, as a share."""
        return 0.0

    @property
    def is_sound(self) -> bool:
        """Whether the fields, each of its type, fit together; a damaged file may hold others."""
        return True

    @property
    def note(self) -> str:
        """What was learned about the values, for people."""
        return ""

    @property
    def width(self) -> int:
        """How many numbers an item has."""
        return sum(part.width for part in self.parts)
