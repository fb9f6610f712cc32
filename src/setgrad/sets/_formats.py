"""Formats of table files: how the schema of each is read, and how its rows are read in chunks and written.

Imported only when a table is read or written, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pyarrow as pa
from pyarrow import csv, feather, ipc, parquet

from setgrad.errors import DataError

# The largest chunk of a table: enough rows to be fast, and little memory compared with the tensors.
CHUNK_CELLS = 2**22
CHUNK_ROWS = 2**16

# The first block of a CSV file decides the types of its columns, so it is larger than PyArrow's default of 1 MB.
CSV_BLOCK_BYTES = 2**23


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
    """

    name: str
    typed: bool
    schema: Callable[[Path], pa.Schema]
    batches: Callable[[Path, list[str]], Iterator[pa.RecordBatch]]
    write: Callable[[pa.Table, Path], None]


def find_format(path: Path) -> Format:
    """Return the format of a file, from the ending of its name; raise a `DataError` if the ending is unknown."""
    file_format = FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise DataError(f"{path}: unknown file ending {path.suffix!r}; tables end in {', '.join(FORMATS)}")
    return file_format


def open_table(path: Path) -> tuple[Format, pa.Schema]:
    """Return the format and the columns of a table; raise a `DataError` if the file cannot be read."""
    file_format = find_format(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
    if not path.is_file():
        raise DataError(f"{path}: this is a folder; pass one file, and join the parts of a table into one first")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; write the table again")
    with _as_data_errors(path, file_format):
        schema = file_format.schema(path)
        _ = schema.names  # decodes the names, which fails here if they are not UTF-8
    return file_format, schema


def read_chunks(path: Path, file_format: Format, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a table in chunks of rows, in order; only one chunk is in memory at a time."""
    rows = _chunk_rows(columns)
    with _as_data_errors(path, file_format):
        for batch in file_format.batches(path, columns):
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _chunk_rows(columns: list[str]) -> int:
    return max(1, min(CHUNK_ROWS, CHUNK_CELLS // len(columns)))


@contextmanager
def _as_data_errors(path: Path, file_format: Format) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the names of the columns are not UTF-8; save the table in UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{path}: this cannot be read as {file_format.name}: {cause}; write the table again") from error


def _parquet_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # Small reads without read-ahead: otherwise a whole row group, often a million rows, is in memory at once.
    with parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        yield from file.iter_batches(batch_size=_chunk_rows(columns), columns=columns)


def _feather_schema(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        return ipc.open_file(file).schema


def _feather_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file:
        schema = ipc.open_file(file).schema
        fields = [schema.get_field_index(name) for name in columns]
        reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=sorted(fields)))
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _open_csv(path: Path, columns: list[str] | None = None) -> csv.CSVStreamingReader:
    # Rows are read as text: PyArrow infers types from the first block alone, and would then reject 1.5 after a million
    # integers, or read "NA" as missing where it is the id of a set.
    convert = csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()) if columns else None,
        strings_can_be_null=True,
        null_values=[""],
    )
    return csv.open_csv(
        path,
        read_options=csv.ReadOptions(block_size=CSV_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=convert,
    )


def _csv_schema(path: Path) -> pa.Schema:
    with _open_csv(path) as reader:
        return reader.schema


def _csv_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with _open_csv(path, columns) as reader:
        yield from reader


PARQUET = Format("Parquet", True, parquet.read_schema, _parquet_batches, parquet.write_table)
FEATHER = Format("Feather", True, _feather_schema, _feather_batches, lambda t, p: feather.write_feather(t, str(p)))
CSV = Format("CSV", False, _csv_schema, _csv_batches, csv.write_csv)
FORMATS = {".parquet": PARQUET, ".pq": PARQUET, ".csv": CSV, ".feather": FEATHER, ".arrow": FEATHER}
