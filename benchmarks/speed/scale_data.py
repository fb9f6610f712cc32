"""A table of any number of rows, written to Parquet files part by part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

# Rows of a row group.
GROUP_ROWS = 2**17
_SMALLEST, _MOST_CHOSEN, _BRANDS = 10, 20, 50


def write_parts(folder: Path, rows: int, *, largest: int, seed: int, part_rows: int) -> int:
    """Write a table to a folder and return its number of sets. Sets go on from one file to the next.

    The logarithms of the sizes of sets are uniform. The value of an item depends on its numbers, its brand and a fact
    of the set, and the best 1 to 20 items are chosen, at most a fifth of the set.

    Args:
        folder: The folder.
        rows: The number of rows.
        largest: The size of the largest sets.
        seed: The seed.
        part_rows: Rows of a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    sets = drawn = number = 0
    rest: pa.Table | None = None
    while drawn < rows:
        lengths = _sizes(rng, min(part_rows, rows - drawn), rows - drawn, largest)
        part = _draw(rng, lengths, sets)
        sets, drawn = sets + len(lengths), drawn + int(lengths.sum())
        rest = part if rest is None else pa.concat_tables([rest, part])
        # The last set of a file may go on in the next one.
        cut = part_rows if drawn < rows else rest.num_rows
        path = folder / f"{number:05}.parquet"
        parquet.write_table(rest.slice(0, cut), path, row_group_size=min(GROUP_ROWS, part_rows // 2))
        rest, number = rest.slice(cut), number + 1
    return sets


def _sizes(rng: np.random.Generator, wanted: int, left: int, largest: int) -> np.ndarray:
    """Return sizes of as few sets as have the wanted number of rows, and of at most the rows that are left."""
    drawn = np.exp(rng.uniform(np.log(_SMALLEST), np.log(largest + 1), wanted // _SMALLEST + 1)).astype(np.int64)
    ends = np.cumsum(drawn)
    count = int(np.searchsorted(ends, wanted)) + 1
    drawn[count - 1] -= max(0, int(ends[count - 1]) - left)
    return drawn[:count]


def _draw(rng: np.random.Generator, lengths: np.ndarray, first: int) -> pa.Table:
    total = int(lengths.sum())
    ids = np.repeat(np.arange(len(lengths)), lengths)
    numbers = rng.normal(size=(6, total)).astype(np.float32)
    brand, season = rng.integers(0, _BRANDS, total), rng.integers(0, 2, len(lengths))
    value = numbers[0] + numbers[1] * numbers[2] + np.where(season[ids] == 1, numbers[3], -numbers[3]) + brand % 5 * 0.3
    wanted = np.minimum(rng.integers(1, _MOST_CHOSEN + 1, len(lengths)), np.maximum(1, lengths // 5))
    order = np.lexsort((-value, ids))
    rank = np.empty(total, np.int64)
    rank[order] = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = {"set": pa.array(ids + first)} | {f"f{index}": pa.array(row) for index, row in enumerate(numbers)}
    names = pa.array([f"brand {number}" for number in range(_BRANDS)])
    columns["brand"] = names.take(pa.array(brand))
    columns["season"] = pa.array(np.array(["summer", "winter"])[season[ids]])
    return pa.table({**columns, "chosen": pa.array(rank < wanted[ids])})
