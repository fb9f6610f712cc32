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
from setgrad.columns._encoded import Encoded
from setgrad.columns._part import Part
from setgrad.columns._values import encode_keys
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
        rare: Share of the values of the training rows that are among the others.
    """

    values: tuple[str, ...]
    buckets: int
    rare: float

    @property
    def is_sound(self) -> bool:
        """Whether there is a code for unknown values."""
        return self.buckets >= 1

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
        rows, keys = encode_keys(training.first)
        known = rows >= 0
        values = np.array(keys.to_pylist(), dtype=object)
        # Sets, not rows, are independent examples.
        pairs = np.sort(training.sets[known] * max(1, len(values)) + rows[known])
        counts = np.bincount(pairs[np.diff(pairs, prepend=-1) > 0] % max(1, len(values)), minlength=len(values))
        order = sorted(np.flatnonzero(counts >= _FEWEST_SETS), key=lambda code: (-counts[code], values[code]))
        buckets = 1 if len(order) <= _MOST_VALUES else _BUCKETS
        kept = tuple(str(values[code]) for code in order[:_MOST_VALUES])
        has_own = np.zeros(len(values), dtype=bool)
        has_own[order[:_MOST_VALUES]] = True
        rare = float(1 - has_own[rows[known]].mean()) if known.any() else 0.0
        return cls(name=name, context=training.context, values=kept, buckets=buckets, rare=rare)

    def encode_distinct(self, columns: Sequence[Column]) -> Encoded:
        """Return the codes of a chunk, one for each row."""
        rows, keys = encode_keys(columns[0])
        # The last one stands for gaps, whose row is -1.
        return Encoded(np.append(self.codes(keys), 0)[:, None], rows)

    @property
    def unknown_share(self) -> float:
        """Share of the values of the training rows that are rare."""
        return self.rare

    def count_unknown(self, encoded: Encoded) -> tuple[int, int]:
        """Return the number of values without a code of their own, and of all values but gaps."""
        block = encoded.block
        return int(((block > 0) & (block <= self.buckets)).sum()), int((block > 0).sum())

    def codes(self, values: pa.Array) -> np.ndarray:
        """Return the codes of different values."""
        found = pc.fill_null(pc.index_in(values, value_set=self._vocabulary), -1).to_numpy(zero_copy_only=False)
        codes = found.astype(np.int64) + 1 + self.buckets
        unknown = np.flatnonzero(found < 0)
        if self.buckets == 1 or not len(unknown):
            codes[unknown] = 1
            return codes
        texts = values.take(pa.array(unknown)).to_pylist()
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
