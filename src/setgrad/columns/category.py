"""Categories and ids: a code for each value, for which the model learns a vector."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._part import Part
from setgrad.columns._values import as_texts
from setgrad.sets._columns import Column

# Values that get a vector of their own; the others share vectors by their hash.
_MOST_VALUES, _BUCKETS = 2**15, 2**12
# A value in fewer training sets than this teaches nothing about itself.
_FEWEST_SETS = 2
# Up to this many values each has a number of its own before training, as in one-hot features.
_ONE_HOT, _DIM = 32, 32


@dataclass(frozen=True, kw_only=True)
class AbstractCodedColumn(FittedColumn):
    """A column of values that are the same or not.

    The code of a missing value is 0. Those of values that are rare in training, or not in it, are 1 to `buckets`: their
    vectors are learned from the rare values. The others follow, in the order of `values`.

    Attributes:
        values: The values with a code of their own, the most frequent first.
        buckets: Number of codes that the other values share.
    """

    values: tuple[str, ...]
    buckets: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """One code."""
        codes = 1 + self.buckets + len(self.values)
        return (Part(1, codes, codes - 1 if codes <= _ONE_HOT else _DIM, self.context),)

    @property
    def note(self) -> str:
        """How many values have a vector."""
        return f"{len(self.values)} values, and rare ones together"

    @classmethod
    def fit(cls, name: str, training: TrainingColumn) -> Self:
        """Return the column as these training rows decide it."""
        encoded = as_texts(training.first).dictionary_encode()
        known = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
        codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)[known].astype(np.int64)
        values = np.array(encoded.dictionary.to_pylist(), dtype=object)
        # Sets, not rows, are independent examples.
        pairs = np.unique(training.sets[known] * max(1, len(values)) + codes)
        counts = np.bincount(pairs % max(1, len(values)), minlength=len(values))
        order = sorted(np.flatnonzero(counts >= _FEWEST_SETS), key=lambda code: (-counts[code], values[code]))
        buckets = 1 if len(order) <= _MOST_VALUES else _BUCKETS
        kept = tuple(str(values[code]) for code in order[:_MOST_VALUES])
        return cls(name=name, context=training.context, values=kept, buckets=buckets)

    def encode(self, columns: Sequence[Column]) -> np.ndarray:
        """Return the codes of a chunk, `(rows, 1)`."""
        encoded = as_texts(columns[0]).dictionary_encode()
        codes = self.codes(encoded.dictionary)
        indices = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        return np.append(codes, 0)[indices][:, None]

    def codes(self, values: pa.Array) -> np.ndarray:
        """Return the codes of different values."""
        found = pc.fill_null(pc.index_in(values, value_set=self._vocabulary), -1).to_numpy(zero_copy_only=False)
        codes = found.astype(np.int64) + 1 + self.buckets
        unknown = np.flatnonzero(found < 0)
        texts = values.take(pa.array(unknown)).to_pylist() if len(unknown) else []
        codes[unknown] = [1 + zlib.crc32(text.encode()) % self.buckets for text in texts]
        return codes

    @cached_property
    def _vocabulary(self) -> pa.Array:
        return pa.array(self.values, pa.large_string())


@final
class CategoryColumn(AbstractCodedColumn):
    """A column of categories."""


@final
class IdColumn(AbstractCodedColumn):
    """A column of ids, of which the model learns a vector each. Items with an unknown id have their other features."""
