"""A table of sets in Parquet files, and small limits, so that it has many blocks and windows."""

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from setgrad.selector import _examples, _stream, _stream_fit
from setgrad.sets import _blocks
from tests.selector.conftest import TINY

ROLES: dict[str, Any] = {"set_id": "set", "chosen": "chosen"}
OPTIONS = {**TINY, "max_epochs": 3, "patience": 50}


def make_rows(sets=120, seed=0, largest=40):
    """Return a table of sets of random sizes with gaps, categories, a fact of the set and weights."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, largest, sets)
    total, ids = int(lengths.sum()), np.repeat(rng.permutation(sets), lengths)
    price = rng.normal(size=total)
    return pa.table(
        {
            "set": [f"set {number}" for number in ids],
            "price": pa.array(np.where(rng.random(total) < 0.1, np.nan, price), from_pandas=True),
            "stars": rng.integers(1, 6, total),
            "brand": rng.choice(["a", "b", "c"], total),
            "season": np.where(ids % 2 == 0, "summer", "winter"),
            "weight": rng.random(total) + 0.1,
            "chosen": price > 0.5,
            "depth": rng.normal(size=total),
        }
    )


def write_parts(folder, rows, cuts=(), group=50):
    """Write rows to files that end at the cuts, in row groups of so many rows."""
    folder.mkdir(exist_ok=True)
    ends = [*cuts, rows.num_rows]
    for number, (first, end) in enumerate(zip([0, *cuts], ends, strict=True)):
        parquet.write_table(rows.slice(first, end - first), folder / f"{number}.parquet", row_group_size=group)
    return folder


def shrink(monkeypatch, *, block=100, window=400, part=3):
    """Let tables have many blocks, epochs many windows, and windows many parts."""
    monkeypatch.setattr(_blocks, "BLOCK_ROWS", block)
    monkeypatch.setattr(_stream, "WINDOW_ITEMS", window)
    monkeypatch.setattr(_examples, "_PART_STEPS", part)


def shrink_sample(monkeypatch, rows=200):
    """Let columns be understood from few rows."""
    monkeypatch.setattr(_stream_fit, "SAMPLE_ROWS", rows)
    monkeypatch.setattr(_stream_fit, "_SAMPLE_SETS", 20)
