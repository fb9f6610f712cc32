"""The texts of earlier chunks of a table, so that each text is taken apart once."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from setgrad.columns._column import FittedColumn
from setgrad.columns._encoded import Encoded
from setgrad.sets._columns import Column, is_text

# With more numbers than this, earlier texts are forgotten.
_MOST_NUMBERS = 2**24


@final
class TextMemory:
    """Encodes the chunks of a column of texts, of which later chunks often repeat the texts.

    Args:
        column: The column.
    """

    def __init__(self, column: FittedColumn) -> None:
        self._column = column
        self._texts = pa.array([], pa.large_string())
        # The first row, of zeros, stands for gaps.
        self._values = np.zeros((1, column.width), dtype=np.float32)

    def encode(self, source: Column) -> Encoded:
        """Return the numbers of the items of a chunk, as the column does."""
        if not is_text(source.array.type):
            return self._column.encode_distinct([source])
        encoded = source.array.cast(pa.large_string()).dictionary_encode()
        texts = encoded.dictionary
        new = texts.filter(pc.invert(pc.is_in(texts, value_set=self._texts)))
        if len(new):
            if self._values.size > _MOST_NUMBERS:
                self._texts, self._values, new = self._texts[:0], self._values[:1], texts
            self._values = np.concatenate([self._values, self._column.encode([replace(source, array=new)])])
            self._texts = pa.concat_arrays([self._texts, new])
        places = 1 + pc.index_in(texts, value_set=self._texts).to_numpy(zero_copy_only=False)
        rows = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        return Encoded(self._values, np.append(places, 0)[rows])
