"""The same values from files of every format give the same numbers, bit for bit."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from setgrad.sets._formats import find_format
from tests.columns.tables import fit_table, read_items

SETS, ITEMS = 30, 4
ROWS = SETS * ITEMS


def mixed_frame(seed: int = 0) -> pd.DataFrame:
    """Columns of every kind that a CSV file can hold."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 400 * 24, ROWS), unit="h")
    return pd.DataFrame(
        {
            "s": np.repeat(np.arange(SETS), ITEMS),
            "price": rng.lognormal(3, 1, ROWS).round(2),
            "stock": pd.Series(rng.integers(2, 90, ROWS)).where(rng.random(ROWS) > 0.2),
            "exact": rng.normal(size=ROWS),
            "sale": rng.random(ROWS) < 0.5,
            "brand": np.where(rng.random(ROWS) < 0.1, None, rng.choice(["Acme", "Ümlaut & Co", "7", "x, y"], ROWS)),
            "shop_id": rng.integers(1, 5, ROWS),
            "seen": days.where(rng.random(ROWS) > 0.1),
            "title": rng.choice(["Blue lamp for the desk", "A 'quoted' chair", "Oak; table", "lamp"], ROWS),
            "device": np.repeat(rng.choice(["phone", "desk"], SETS), ITEMS),
        }
    )


KINDS = {"title": "text", "seen": "date", "shop_id": "category"}


def write(frame: pd.DataFrame, ending: str, path: Any) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    writers: dict[str, Any] = {
        ".parquet": lambda: parquet.write_table(table, path),
        ".arrow": lambda: table.to_pandas().to_feather(path),
        ".csv": lambda: frame.to_csv(path, index=False),
        ".csv.gz": lambda: frame.to_csv(path, index=False),
        ".tsv": lambda: csv.write_csv(table, path, csv.WriteOptions(delimiter="\t")),
        "semicolons.csv": lambda: frame.to_csv(path, index=False, sep=";", decimal=","),
        "polars.csv": lambda: pl.from_arrow(table).write_csv(path),  # type: ignore[union-attr]
        ".jsonl": lambda: frame.to_json(path, orient="records", lines=True, date_format="iso", double_precision=15),
    }
    writers[ending]()


@pytest.mark.parametrize("ending", [".arrow", ".csv", ".csv.gz", ".tsv", "semicolons.csv", "polars.csv", ".jsonl"])
def test_the_numbers_of_a_file_are_those_of_parquet(tmp_path, ending):
    frame, path = mixed_frame(), tmp_path / f"table{ending}"
    if ending == ".jsonl":
        # JSON of pandas has 15 digits.
        frame["exact"] = frame["exact"].round(6)
    parquet_path = tmp_path / "typed.parquet"
    write(frame, ".parquet", parquet_path)
    write(frame, ending, path)
    columns, _ = fit_table(str(parquet_path), columns=KINDS)
    expected = read_items(str(parquet_path), columns)
    assert read_items(str(path), columns).equal(expected)
    assert read_items(frame, columns).equal(expected)
    assert read_items(pl.from_pandas(frame), columns).equal(expected)
    # Fitted to the other file, the columns are the same too.
    assert fit_table(str(path), columns=KINDS)[0].to_json() == columns.to_json()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_that_setgrad_writes_is_read_back(tmp_path, ending):
    frame = mixed_frame()
    columns, _ = fit_table(frame, columns=KINDS)
    path = tmp_path / f"table.{ending}"
    frame["seen"] = frame["seen"].astype(str)
    find_format(path).write(pa.Table.from_pandas(frame, preserve_index=False), path)
    assert read_items(str(path), columns).equal(read_items(frame, columns))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=2, max_size=20))
def test_texts_of_numbers_are_the_numbers(values):
    typed = pa.table({"s": [0] * len(values), "x": values})
    columns, _ = fit_table(typed, columns={"x": "number"})
    for texts in ([repr(value) for value in values], [f" {value:.17e}" for value in values]):
        assert read_items(pa.table({"s": [0] * len(values), "x": texts}), columns).equal(read_items(typed, columns))


TYPES: dict[str, tuple[str, list[Any]]] = {
    "whole": ("number", [[1, 2, 40], [1.0, 2.0, 40.0], ["1", "2", "40"], [Decimal(1), Decimal(2), Decimal(40)]]),
    "fractions": ("number", [[0.1, 0.7, 1.3], ["0.1", "0.7", "1.3"], [Decimal("0.1"), Decimal("0.7"), Decimal("1.3")]]),
    "truth": ("boolean", [[True, False, True], ["yes", "no", "Y"], [1, 0, 1], [1.0, 0.0, 1.0], ["True", "False", "1"]]),
    "categories": ("category", [["a", "b", "a"], pd.Categorical(["a", "b", "a"], categories=["b", "z", "a"])]),
    "days": (
        "date",
        [
            [dt.date(2024, 1, 2), dt.date(2024, 3, 4), dt.date(2023, 5, 6)],
            pd.to_datetime(["2024-01-02", "2024-03-04", "2023-05-06"]),
            ["2024-01-02", "2024-03-04", "2023-05-06"],
        ],
    ),
    "durations": ("number", [pd.to_timedelta([60, 3600, 5], unit="s"), [60, 3600, 5], ["60", "3600", "5.0"]]),
    "vectors": ("vector", [[[1.0, 2.0], [3.0, 4.0], None], [[1, 2], [3, 4], []]]),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_of_the_same_values_have_the_same_numbers(name, dtype):
    kind, versions = TYPES[name]
    tables = [pa.table({"s": [0, 0, 1], "x": pa.array(values)}) for values in versions]
    for fitted_to in tables:
        columns, _ = fit_table(fitted_to, columns={"x": kind})
        expected = read_items(fitted_to, columns, dtype)
        for table in tables:
            assert read_items(table, columns, dtype).equal(expected)
