"""Where each set of a table begins, found in one pass over its ids, with a few numbers a set in memory.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from setgrad._progress import slow_bar
from setgrad.errors import DataError
from setgrad.sets._columns import Column, read_booleans, row_error
from setgrad.sets._ids import find_starts, read_ids
from setgrad.sets._parquet import ParquetTable

# Weights of the bytes of an id in its hash; longer ids use them again.
_WEIGHTS = np.random.default_rng(0).integers(0, 2**64, 2**10, dtype=np.uint64) | np.uint64(1)


@final
@dataclass(frozen=True, eq=False)
class SetIndex:
    """Where each set of a table begins.

    Attributes:
        starts: The first row of each set, and the number of all rows.
        sizes: The number of chosen items of each set; None if no column tells.
    """

    starts: np.ndarray
    sizes: np.ndarray | None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of items of each set."""
        lengths: np.ndarray = np.diff(self.starts)
        return lengths

    @staticmethod
    def read(table: ParquetTable, set_id: str, chosen: str | None) -> SetIndex:
        """Read the ids, and what was chosen, of a table.

        Raises:
            DataError: If the rows of a set are apart, or values cannot be read.
        """
        seen, starts, sums = SeenSets(table, set_id), [], []
        names = [set_id] if chosen is None else [set_id, chosen]
        total = 0
        for chunk, starting in seen.follow(names):
            starts.append(starting)
            if chosen is not None:
                counts = np.cumsum(read_booleans(chunk[chosen]))
                # What was chosen before each start.
                before = np.concatenate([[0], counts])[starting - chunk[chosen].first_row]
                sums.append(total + before)
                total += int(counts[-1])
        all_starts = np.concatenate([*starts, [table.rows]]).astype(np.int64)
        sizes = None if chosen is None else np.diff(np.concatenate([*sums, [total]]))
        return SetIndex(all_starts, sizes)


@final
class SeenSets:
    """Follows the sets of a table from its first row on, and notices one that comes back.

    It keeps eight bytes for each set.

    Args:
        table: The table.
        set_id: The column of the ids.
    """

    def __init__(self, table: ParquetTable, set_id: str) -> None:
        self._table, self._set_id = table, set_id
        self._hashes: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []

    def follow(self, names: list[str]) -> Iterator[tuple[dict[str, Column], np.ndarray]]:
        """Yield the chunks of some columns, and the rows of the table at which sets start in each.

        Raises:
            DataError: After the last chunk, if the rows of a set are apart.
        """
        table, previous, row = self._table, None, 0
        with slow_bar(table.rows, "rows") as progress:
            # Without the limit of tables that are read whole.
            for batch in table.source.batches(names):
                chunk = {name: Column.from_batch(table.name, batch, name, row) for name in names}
                ids = read_ids(chunk[self._set_id])
                starts = find_starts(ids, previous)
                self._hashes.append(_hashes(ids.take(pa.array(starts))))
                self._rows.append(starts + row)
                yield chunk, starts + row
                previous, row = ids[-1], row + batch.num_rows
                progress.update(row)
        self._check()

    def _check(self) -> None:
        """Raise for the first set that starts twice."""
        hashes, rows = np.concatenate(self._hashes), np.concatenate(self._rows)
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        # In the order of the table; two sets with one hash may still have different ids.
        for place in again[np.argsort(rows[order[again + 1]])]:
            first, second = int(rows[order[place]]), int(rows[order[place + 1]])
            if self._id_at(first) == self._id_at(second):
                text = (
                    f"set {self._id_at(second)!r} appears again after other sets (it began at row {first + 1}); where "
                    "data are streamed, the rows of a set must be together: sort the table by "
                    f"{self._set_id!r} first"
                )
                raise row_error(self._table.name, self._set_id, second, text)

    def _id_at(self, row: int) -> Any:
        (batch,) = self._table.read_range(row, row + 1).batches([self._set_id])
        return read_ids(Column.from_batch(self._table.name, batch, self._set_id, row))[0].as_py()


def _hashes(ids: pa.Array) -> np.ndarray:
    """Return a hash of 64 bits for each id."""
    if types.is_binary(ids.type) or types.is_large_binary(ids.type) or types.is_fixed_size_binary(ids.type):
        texts = ids.cast(pa.large_binary())
    else:
        try:
            texts = ids.cast(pa.large_string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"ids of type {ids.type} cannot be streamed: {error}; write them as texts") from None
    if not len(texts):
        return np.empty(0, np.uint64)
    lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    content = texts.buffers()[2]
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content is not None else np.empty(0, np.uint8)
    places = np.arange(len(data)) - np.repeat(ends - lengths, lengths)
    # One more than the byte, so that a text and the same text with zeros behind it differ.
    terms = (data.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[places % len(_WEIGHTS)]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return sums[ends] - sums[ends - lengths]
