"""The same table gives the same choices, wherever it comes from."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from setgrad._progress import showing
from setgrad.errors import DataError
from setgrad.sets import read_table
from setgrad.sets._sources import open_table

TABLE = pa.table(
    {
        "basket": ["a", "a", "a", "b", "b", "c"],
        "item": [10, 20, 30, 10, 40, 20],
        "price": [1.5, 2.0, -0.25, 7.0, 1e-3, 4.0],
        "stars": [4, 5, 3, 1, 2, 5],
        "bought": [True, False, True, False, False, True],
    }
)
ROLES: dict[str, Any] = {"set_id": "basket", "item_id": "item", "chosen": "bought"}


class OnlyCapsule:
    """A data frame of a library that has nothing but the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def write_csv(table: pa.Table, path: Path, delimiter: str, decimal_point: str = ".") -> Path:
    frame = table.to_pandas()
    frame.to_csv(path, index=False, sep=delimiter, decimal=decimal_point)
    return path


def write_lines(table: pa.Table, path: Path) -> Path:
    table.to_pandas().to_json(path, orient="records", lines=True)
    return path


def write_gzip(table: pa.Table, path: Path) -> Path:
    with gzip.open(path, "wt") as file:
        table.to_pandas().to_csv(file, index=False)
    return path


def write_parts(table: pa.Table, folder: Path, ending: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"part{number}{ending}" for number in range(2)]
    for path, part in zip(paths, (table.slice(0, 4), table.slice(4)), strict=True):
        parquet.write_table(part, path) if ending == ".parquet" else csv.write_csv(part, path)
    return paths


def write_folder(table: pa.Table, folder: Path, ending: str) -> Path:
    write_parts(table, folder, ending)
    (folder / "_SUCCESS").touch()
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.parquet").write_bytes(b"no table")
    return folder


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "Arrow table": lambda t, p: t,
    "Arrow batches": lambda t, p: pa.RecordBatchReader.from_batches(t.schema, t.to_batches(max_chunksize=2)),
    "pandas": lambda t, p: t.to_pandas(),
    "pandas, rows of a longer one": lambda t, p: pd.concat([t.to_pandas()] * 2).iloc[6:].sort_index(),
    "pandas with categories": lambda t, p: t.to_pandas().astype({"basket": "category"}),
    "PyCapsule": lambda t, p: OnlyCapsule(t),
    "commas": lambda t, p: write_csv(t, p / "t.csv", ","),
    "semicolons": lambda t, p: write_csv(t, p / "t.csv", ";"),
    "semicolons and decimal commas": lambda t, p: write_csv(t, p / "t.csv", ";", ","),
    "tabs": lambda t, p: write_csv(t, p / "t.tsv", "\t"),
    "tabs and decimal commas": lambda t, p: write_csv(t, p / "t.tsv", "\t", ","),
    "compressed": lambda t, p: write_gzip(t, p / "t.csv.gz"),
    "JSON lines": lambda t, p: write_lines(t, p / "t.jsonl"),
    "list of Parquet files": lambda t, p: write_parts(t, p / "parts", ".parquet"),
    "list of CSV files, as text": lambda t, p: [str(path) for path in write_parts(t, p / "parts", ".csv")],
    "folder of Parquet files": lambda t, p: write_folder(t, p / "year=2026", ".parquet"),
    "folder of CSV files": lambda t, p: write_folder(t, p / "parts", ".csv"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_all_sources_give_the_same_choices(name: str, tmp_path: Path) -> None:
    found = read_table(SOURCES[name](TABLE, tmp_path), **ROLES)
    assert found.features == ["price", "stars"]
    assert found.set_ids == ["a", "b", "c"] and list(found.item_ids) == [10, 20, 30, 10, 40, 20]
    assert found.sets.values.double().sub(found.sets.values.new_tensor([[1.5, 4.0]])).abs()[0].sum() == 0
    prices = pa.array(found.sets.values[:, 0].numpy()).to_pylist()
    assert prices == pytest.approx(TABLE["price"].to_pylist())
    assert found.subsets.values.tolist() == TABLE["bought"].to_pylist()


@pytest.mark.parametrize("kind", ["pandas", "Arrow batches", "folder of Parquet files", "JSON lines"])
def test_large_whole_numbers_keep_their_digits(kind: str, tmp_path: Path) -> None:
    """They are read a second time, in float64, also from a stream that can be read only once."""
    times = [1_700_000_000 + number for number in range(6)]
    table = TABLE.set_column(TABLE.schema.get_field_index("stars"), "stars", pa.array(times))
    assert read_table(SOURCES[kind](table, tmp_path), **ROLES).sets.values[:, 1].tolist() == times


@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_names_of_folders_are_columns(form: str, tmp_path: Path) -> None:
    for country, part in (("NL", TABLE.slice(0, 3)), ("DE", TABLE.slice(3))):
        folder = tmp_path / f"country={country}"
        folder.mkdir()
        path = folder / f"part.{form}"
        parquet.write_table(part, path) if form == "parquet" else feather.write_feather(part, str(path))
    source = open_table(tmp_path)
    assert "country" in source.schema.names
    rows = pa.Table.from_batches(source.read_chunks(["country", "item"])).to_pylist()
    assert [row["country"] for row in rows] == ["DE"] * 3 + ["NL"] * 3
    assert [row["item"] for row in rows] == [10, 40, 20, 10, 20, 30]


def test_a_file_is_read_in_chunks_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setgrad.sets._formats.CHUNK_ROWS", 2)
    for name in ("pandas", "folder of Parquet files", "list of CSV files, as text", "JSON lines"):
        folder = tmp_path / name
        folder.mkdir()
        chunks = list(open_table(SOURCES[name](TABLE, folder)).read_chunks(["item"]))
        assert sum(chunk.num_rows for chunk in chunks) == 6 and max(chunk.num_rows for chunk in chunks) <= 2


def _other_type(folder: Path) -> list[Path]:
    paths = write_parts(TABLE, folder / "parts", ".parquet")
    other = TABLE.slice(4)
    index = other.schema.get_field_index("item")
    parquet.write_table(other.set_column(index, "item", other["item"].cast(pa.string())), paths[1])
    return paths


def _without_column(folder: Path) -> list[Path]:
    paths = write_parts(TABLE, folder / "parts", ".parquet")
    parquet.write_table(TABLE.slice(4).drop(["price"]), paths[1])
    return paths


def _two_formats(folder: Path) -> Path:
    write_parts(TABLE, folder / "parts", ".csv")
    write_parts(TABLE, folder / "parts", ".parquet")
    return folder / "parts"


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a number": (lambda p: 3, r"a table is a data frame .* or a list of paths, not int"),
    "an empty list": (lambda p: [], "a list of paths, not list"),
    "an empty folder": (lambda p: p, "this folder holds no table; tables end in .parquet"),
    "two formats": (_two_formats, "holds CSV and Parquet files; name the files, or write all parts in one format"),
    "files of two formats": (
        lambda p: [*write_parts(TABLE, p / "a", ".csv"), *write_parts(TABLE, p / "b", ".parquet")],
        "of another kind; write all parts in one format",
    ),
    "another type": (_other_type, r"part1.parquet: column 'item' is string, and int64 in .*part0.parquet; write all"),
    "a missing column": (_without_column, r"part1.parquet: there is no column 'price', which .*part0.parquet has"),
    "mixed types": (
        lambda p: pd.DataFrame({"price": [1.0, 2.0, 2.5, 3.0], "basket": ["a", None, 1, "b"]}),
        "the data frame: column 'basket', row 3 .*: 1 is int, unlike the values before; give the column one type",
    ),
    "two columns of one name": (
        lambda p: pd.DataFrame([[1, 2]], columns=["basket", "basket"]),
        "the data frame: 2 columns are called 'basket'; rename them",
    ),
    "values of no type": (
        lambda p: pd.DataFrame({"basket": [object()]}),
        "the data frame: column 'basket', row 1 .*: <object object at .* is object; leave it out",
    ),
    "damaged lines": (
        lambda p: (p / "t.jsonl").write_text('{"basket": 1\n') and p / "t.jsonl",
        "t.jsonl: this cannot be read as JSON lines",
    ),
    "lines that are no text": (
        lambda p: (p / "t.jsonl").write_bytes(b'{"basket": "\xff", "bought": true}\n') and p / "t.jsonl",
        "t.jsonl: this cannot be read as JSON lines: .*UTF8",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_table_raises(name: str, tmp_path: Path) -> None:
    make, message = WRONG[name]
    with pytest.raises(DataError, match=message):
        read_table(make(tmp_path), set_id="basket", chosen="bought")


@pytest.mark.parametrize(("shown", "lines"), [(None, 2), (True, 2), (False, 0)])
def test_long_reading_shows_how_far_it_is(monkeypatch, capsys, tmp_path, shown, lines):
    seconds = iter(range(0, 10_000, 6))
    monkeypatch.setattr("setgrad._progress.time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr("setgrad.sets._sources.chunk_rows", lambda columns: 2)
    path = tmp_path / "t.csv"
    path.write_text("s,x\n" + "".join(f"{number // 2},{number}\n" for number in range(5)))
    with nullcontext() if shown is None else showing("choosing", shown):
        table = read_table(path, set_id="s")
    assert table.sets.layout.total == 5
    told = capsys.readouterr().err.splitlines()
    assert len(told) >= lines and bool(told) == bool(lines)
    for line in told:
        assert re.match(rf"reading {re.escape(str(path))}: [245] rows", line)
