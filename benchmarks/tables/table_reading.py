"""Reading a mixed Parquet table: rows a second and peak memory, beside PyArrow that only decodes the file.

Claims checked: a table of five million rows with numbers, truth values, categories, dates, titles and ids is read and
encoded in chunks, at a fixed number of bytes for a row beside those of its numbers.

The table is written to a temporary folder: sets of 20 rows with price, stars (a tenth missing), stock, weight, sale,
brand (40), category (12, a dictionary), seen (minutes of two years), title (three words and a number, 20,000 of them),
device (of the set), product (20,000) and bought. "arrow" decodes all columns in chunks of the same size and keeps
nothing. "encode" reads the sets with columns that were fitted before, as `predict` does. "fit" reads the table into
memory, finds the kinds, fits the columns and reads the sets, as `SubsetSelector.fit` does before training, "fit with
ids" also learns the vocabulary of product, and "numbers" is `read_table` of price, stock and weight alone. Each runs in
a new process with one thread of torch, PyArrow with as many threads as it takes. Peaks are resident memory beyond what
the process has after reading a small table. "Result" is the size of the numbers of the sets.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from benchmarks.lib.machine import announce, memory_now, memory_peak, reset_peak
from benchmarks.lib.subprocess_measure import RETURN_MEMORY, measure_in_subprocess, serve_case
from benchmarks.lib.tables import format_bytes, table

ROWS, QUICK_ROWS, SET_ROWS, WRITTEN = 5_000_000, 4_000, 20, 500_000
WAYS = ("arrow", "numbers", "encode", "fit", "fit with ids")


@final
@dataclass(frozen=True)
class Case:
    """One measurement: a file, a small file of the same columns, the fitted columns, and what is done."""

    path: str
    small: str
    columns: str
    way: str


@final
@dataclass(frozen=True)
class Measured:
    """Seconds, bytes beyond the base, and bytes of the numbers of the sets."""

    seconds: float
    peak: int
    result: int
    rows: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the table (default: 5,000,000)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"default: {','.join(WAYS)}")
    parser.add_argument("--folder", type=Path, help="where the table is written (default: for temporary files)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print one row for each way."""
    machine = announce(torch.device("cpu"), 1)
    rows = QUICK_ROWS if options.quick else options.rows
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = write_shop(Path(folder) / "table.parquet", rows)
        small = write_shop(Path(folder) / "small.parquet", min(rows, 2_000), seed=1)
        columns = Path(folder) / "columns.json"
        columns.write_text(json.dumps(_fit(str(small), ids=True)[0].to_json()), encoding="utf-8")
        size = path.stat().st_size
        for way in options.ways.split(","):
            print(f"measuring {way}", file=sys.stderr, flush=True)
            case = Case(str(path), str(small), str(columns), way)
            found[way] = measure_in_subprocess("benchmarks.tables.table_reading", case, RETURN_MEMORY)
    print(f"\n## {rows:,} rows, {format_bytes(size)} of Parquet\n")
    head = ["way", "time", "rows a second", "peak", "bytes a row", "result"]
    print(table(head, [cells(way, Measured(**measured)) for way, measured in found.items()]), flush=True)
    return {"machine": machine, "rows": rows, "bytes": size, "ways": found}


def cells(way: str, measured: Measured) -> list[str]:
    """Return one row of the table."""
    return [
        way,
        f"{measured.seconds:.1f} s",
        f"{measured.rows / measured.seconds:,.0f}",
        format_bytes(measured.peak),
        f"{measured.peak / measured.rows:,.0f}",
        format_bytes(measured.result),
    ]


def write_shop(path: Path, rows: int, seed: int = 0) -> Path:
    """Write a table of sets of 20 rows, part by part, and return its path."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(seed)
    words = [f"word{number}" for number in range(600)]
    titles = np.array([f"{' '.join(rng.choice(words, 3))} {number}" for number in range(20_000)])
    brands, categories = np.array([f"brand {n}" for n in range(40)]), np.array([f"kind {n}" for n in range(12)])
    writer = None
    for start in range(0, rows, WRITTEN):
        count = min(WRITTEN, rows - start)
        session = (start + np.arange(count)) // SET_ROWS
        product = rng.integers(0, len(titles), count)
        minutes = rng.integers(0, 2 * 365 * 24 * 60, count)
        part = pa.table(
            {
                "session": session,
                "price": rng.lognormal(3, 1, count),
                "stars": pa.array(rng.integers(2, 11, count) / 2, mask=rng.random(count) < 0.1),
                "stock": rng.integers(0, 1000, count),
                "weight": rng.normal(size=count).astype(np.float32),
                "sale": rng.random(count) < 0.2,
                "brand": brands[product % 40],
                "category": pa.array(categories[product % 12]).dictionary_encode(),
                "seen": np.datetime64("2024-01-01", "us") + minutes.astype("timedelta64[m]"),
                "title": titles[product],
                "device": np.where(session % 3 == 0, "phone", "desk"),
                "product": product,
                "bought": rng.random(count) < 0.1,
            }
        )
        writer = writer or parquet.ParquetWriter(path, part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()
    return path


def measure(case: Case, device: torch.device) -> Measured:
    """Run one way on the small file, then on the large one."""
    _work(case, case.small)
    reset_peak(device)
    base, start = memory_now(device), time.perf_counter()
    rows, result = _work(case, case.path)
    return Measured(time.perf_counter() - start, memory_peak(device) - base, result, rows)


def _work(case: Case, path: str) -> tuple[int, int]:
    """Return the number of rows that were read, and the bytes of their numbers."""
    from setgrad.columns._columns import Columns
    from setgrad.sets import read_table
    from setgrad.sets._read import Roles, read_rows
    from setgrad.sets._sources import open_table

    if case.way == "arrow":
        source = open_table(path)
        return sum(batch.num_rows for batch in source.read_chunks(source.schema.names)), 0
    if case.way == "numbers":
        read: Any = read_table(path, set_id="session", features=["price", "stock", "weight"], chosen="bought")
    elif case.way == "encode":
        columns = Columns.from_json(json.loads(Path(case.columns).read_text(encoding="utf-8")), "columns")
        read = read_rows(open_table(path), Roles("session", "bought"), columns.reader(), torch.float32)
    else:
        read = _fit(path, ids=case.way == "fit with ids")[1]
    values = read.sets.values
    return len(values), values.numel() * values.element_size()


def _fit(path: str, *, ids: bool) -> tuple[Any, Any]:
    """Return the columns of a table, and its sets, as `SubsetSelector.fit` reads them."""
    from setgrad.selector._table_input import TableArguments, read_to_fit

    kinds = {"product": "id" if ids else "ignore", "title": "text"}
    arguments = TableArguments("session", "bought", columns=kinds)

    def split(lengths: np.ndarray) -> np.ndarray:
        return np.arange(len(lengths)) % 5 > 0

    with warnings.catch_warnings():
        # That draws have no pattern is known.
        warnings.simplefilter("ignore", UserWarning)
        read = read_to_fit(path, arguments, split, seed=0)
    return read.schema.columns, read.choices


if __name__ == "__main__":
    serve_case(Case, measure)
