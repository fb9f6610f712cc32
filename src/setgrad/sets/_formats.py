"""Formats of table files: how the schema of each is read, and how its rows are read in chunks and written.

Imported only when a table is read or written, so PyArrow may be imported at the top.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, feather, ipc, parquet, types
from pyarrow import json as pyarrow_json

from setgrad.errors import DataError

# The largest chunk of a table: enough rows to be fast, and little memory compared with the tensors.
CHUNK_CELLS = 2**22
CHUNK_ROWS = 2**16

# The first block of a CSV file decides the types of its columns, so it is larger than PyArrow's default of 1 MB.
CSV_BLOCK_BYTES = 2**23
# With many columns a block must hold many rows too, because every column of every block has a cost of its own.
CSV_COLUMN_BYTES, CSV_MAX_BLOCK_BYTES = 2**10, 2**28
# What may stand between the columns of a CSV file. The one that is most frequent in the first line does.
_DELIMITERS = ",;\t"
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")


@final
@dataclass(frozen=True)
class Format:
    """A file format. To add one, write its three functions and enter it in `FORMATS`.

    Attributes:
        name: The name in messages.
        typed: Whether the file stores the types of its columns; if not, every column is read as text.
        schema: Reads the names and types of the columns.
        batches: Reads the rows of these columns, in order.
        write: Writes a table.
        dataset: Its name in `pyarrow.dataset`, which reads columns from names of folders; None for none.
    """

    name: str
    typed: bool
    schema: Callable[[Path], pa.Schema]
    batches: Callable[[Path, list[str]], Iterator[pa.RecordBatch]]
    write: Callable[[pa.Table, Path], None]
    dataset: str | None = None


def find_format(path: Path) -> Format:
    """Return the format of a file, from the ending of its name; raise a `DataError` if the ending is unknown."""
    name = path.name.lower()
    file_format = next((FORMATS[ending] for ending in FORMATS if name.endswith(ending)), None)
    if name.endswith(_SPREADSHEETS):
        raise DataError(
            f"{path}: spreadsheets are neither read nor written; save the sheet as CSV, or in Python pass "
            f"pandas.read_excel(path). Tables end in {', '.join(FORMATS)}"
        )
    if file_format is None:
        raise DataError(f"{path}: unknown file ending {path.suffix!r}; tables end in {', '.join(FORMATS)}")
    return file_format


def chunk_rows(columns: list[str]) -> int:
    """Return the number of rows of a chunk of these columns."""
    return max(1, min(CHUNK_ROWS, CHUNK_CELLS // len(columns)))


def _parquet_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # Small reads without read-ahead: otherwise a whole row group, often a million rows, is in memory at once.
    # Pages with a checksum, as those that setgrad writes, are compared with it.
    with parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=chunk_rows(columns), columns=columns):
            yield validated(batch)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a Parquet file whose pages have checksums."""
    parquet.write_table(table, path, write_page_checksum=True)


def _feather_schema(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        return ipc.open_file(file).schema


def _feather_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file:
        schema = ipc.open_file(file).schema
        fields = [schema.get_field_index(name) for name in columns]
        reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=sorted(fields)))
        for index in range(reader.num_record_batches):
            yield validated(reader.get_batch(index))


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of a file after a check of every offset, code and text: they are used as they are.

    Raises:
        pyarrow.ArrowInvalid: If the batch is damaged.
    """
    batch.validate(full=True)
    return batch


@final
@dataclass(frozen=True)
class _Dialect:
    """How the columns of a CSV file are separated, and what stands before the decimals of a number."""

    delimiter: str
    decimal_point: str


def _read_dialect(path: Path) -> _Dialect:
    """Return the dialect of a CSV file.

    Decimal commas are possible where commas do not separate columns. They are in use if more columns are numbers then.
    """
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        line = file.readline(2**20).decode("utf-8", "replace")
    outside_quotes = "".join(line.split('"')[::2])
    delimiter = max(_DELIMITERS, key=outside_quotes.count)
    if delimiter == ",":
        return _Dialect(",", ".")
    counts = []
    for decimal_point in ".,":
        with _open_csv(path, _Dialect(delimiter, decimal_point)) as reader:
            counts.append(sum(types.is_integer(field.type) or types.is_floating(field.type) for field in reader.schema))
    return _Dialect(delimiter, "," if counts[1] > counts[0] else ".")


def _block_bytes(columns: int) -> int:
    return min(max(CSV_BLOCK_BYTES, CSV_COLUMN_BYTES * columns), CSV_MAX_BLOCK_BYTES)


def _open_csv(path: Path, dialect: _Dialect, columns: list[str] | None = None) -> csv.CSVStreamingReader:
    # Rows are read as text: PyArrow infers types from the first block alone, and would then reject 1.5 after a million
    # integers, or read "NA" as missing where it is the id of a set.
    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()) if columns else None,
        strings_can_be_null=True,
        null_values=[""],
        decimal_point=dialect.decimal_point,
    )
    return csv.open_csv(
        path,
        read_options=csv.ReadOptions(block_size=_block_bytes(0 if columns is None else len(columns))),
        parse_options=csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True),
        convert_options=convert,
    )


def _csv_schema(path: Path) -> pa.Schema:
    with _open_csv(path, _read_dialect(path)) as reader:
        return reader.schema


def _csv_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    dialect = _read_dialect(path)
    decimals: list[str] = []
    if dialect.decimal_point == ",":
        with _open_csv(path, dialect) as reader:
            decimals = [field.name for field in reader.schema if types.is_floating(field.type)]
    with _open_csv(path, dialect, columns) as reader:
        for batch in reader:
            for name in set(decimals) & set(columns):
                index = batch.schema.get_field_index(name)
                batch = batch.set_column(index, name, pc.replace_substring(batch.column(index), ",", "."))
            yield batch


def _write_gzip(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.CompressedOutputStream(file, "gzip") as stream:
        csv.write_csv(table, stream)


def _write_tabs(table: pa.Table, path: Path) -> None:
    csv.write_csv(table, path, csv.WriteOptions(delimiter="\t"))


def _read_lines(path: Path) -> pa.Table:
    # The types of all lines together are only known once the last was read, so the whole file is.
    lines = pyarrow_json.read_json(path)
    # Its texts may hold any bytes.
    lines.validate(full=True)
    return lines


def _lines_schema(path: Path) -> pa.Schema:
    return _read_lines(path).schema


def _lines_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    yield from _read_lines(path).select(columns).to_batches()


def _write_lines(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
            file.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())


PARQUET = Format("Parquet", True, parquet.read_schema, _parquet_batches, write_parquet, "parquet")
FEATHER = Format(
    "Feather", True, _feather_schema, _feather_batches, lambda t, p: feather.write_feather(t, str(p)), "feather"
)
CSV = Format("CSV", False, _csv_schema, _csv_batches, csv.write_csv)
GZIP_CSV = Format("compressed CSV", False, _csv_schema, _csv_batches, _write_gzip)
TABS = Format("CSV with tabs", False, _csv_schema, _csv_batches, _write_tabs)
LINES = Format("JSON lines", True, _lines_schema, _lines_batches, _write_lines)
FORMATS = {
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".csv": CSV,
    ".csv.gz": GZIP_CSV,
    ".tsv": TABS,
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".feather": FEATHER,
    ".arrow": FEATHER,
}
