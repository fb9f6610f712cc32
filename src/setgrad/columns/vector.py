"""Vectors: lists of numbers of one length, or numbered columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._encoded import Encoded
from setgrad.columns._part import Part
from setgrad.columns._values import read_quantities
from setgrad.sets._columns import Column


@final
@dataclass(frozen=True, kw_only=True)
class VectorColumn(FittedColumn):
    """A vector for each item, as it is. The numbers of a missing vector are 0.

    Attributes:
        columns: The columns of numbers that make it up; empty for one column of lists.
        length: How many numbers a vector has.
    """

    columns: tuple[str, ...]
    length: int

    @property
    def is_sound(self) -> bool:
        """Whether there are numbers, as many as columns."""
        return self.length >= 1 and len(self.columns) in (0, self.length)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that are read."""
        return self.columns or (self.name,)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The numbers."""
        return (Part.vector(self.length, context=self.context),)

    @property
    def note(self) -> str:
        """How many numbers there are."""
        return f"{self.length} numbers"

    @classmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it."""
        columns = training.columns
        if len(columns) > 1:
            names = tuple(column.name for column in columns)
            return cls(name=name, context=training.context, columns=names, length=len(names))
        lengths = _lengths(columns[0])
        known = lengths[lengths > 0]
        length = int(known[0]) if len(known) else 1
        _read_lists(columns[0], length)
        return cls(name=name, context=training.context, columns=(), length=length)

    def encode_distinct(self, columns: Sequence[Column]) -> Encoded:
        """Return the vectors of a chunk."""
        if self.columns:
            return Encoded(np.nan_to_num(np.stack([read_quantities(column) for column in columns], 1)))
        return Encoded(_read_lists(columns[0], self.length))


def _lengths(column: Column) -> np.ndarray:
    """Return the number of entries of each list; 0 for a gap."""
    dtype = column.array.type
    if types.is_null(dtype):
        return np.zeros(len(column.array), dtype=np.int64)
    if types.is_fixed_size_list(dtype):
        return np.where(column.array.is_valid().to_numpy(zero_copy_only=False), dtype.list_size, 0)
    if not (types.is_list(dtype) or types.is_large_list(dtype)):
        raise column.error(0, f"{column.value(0)!r} is not a list of numbers but {dtype}; name another kind of column")
    lengths: np.ndarray = pc.list_value_length(column.array).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths


def _read_lists(column: Column, length: int) -> np.ndarray:
    lengths = _lengths(column)
    if not lengths.any():
        return np.zeros((len(lengths), length))
    wrong = (lengths != length) & (lengths > 0)
    if wrong.any():
        first = int(wrong.argmax())
        raise column.error(first, f"the list has {lengths[first]} numbers, others have {length}; make them equal")
    # A list array of fixed size has entries also for its gaps; flatten leaves them out.
    entries = column.array.filter(pa.array(lengths > 0)).flatten()
    try:
        values = entries.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise column.error(0, f"the lists hold {entries.type}, not numbers; leave the column out") from None
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(lengths > 0)[int((~np.isfinite(values)).argmax()) // length])
        raise column.error(row, "the list holds a number that is missing or not finite; correct it")
    block = np.zeros((len(lengths), length))
    block[lengths > 0] = values.reshape(-1, length)
    return block
