"""Kinds of table files: how each is looked at, read in pieces, and written.

Imported only when a table is read or written, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, feather, ipc, parquet

from setgrad.errors import DataError

# The entries that one piece of a table holds, at most: enough to be quick, and small beside the tensors.
PIECE_CELLS = 2**22
PIECE_ROWS = 2**16

# The first block of a CSV file decides the type of its columns, so it is larger than PyArrow's usual 1 MB.
CSV_BLOCK_BYTES = 2**23


@dataclass(frozen=True)
class Format:
    """One kind of file. To add a kind, write its three functions and enter it in `FORMATS`.

    `typed` says whether the file itself knows the types of its columns; if not, every column is read as text.
    """

    name: str
    typed: bool
    schema: Callable[[Path], pa.Schema]
    batches: Callable[[Path, list[str]], Iterator[pa.RecordBatch]]
    write: Callable[[pa.Table, Path], None]


def format_of(path: Path) -> Format:
    """Tell the kind of a file by the ending of its name."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise DataError(f"{path}: the ending {path.suffix!r} is not known; tables end in {', '.join(FORMATS)}")
    return found


def look(path: Path) -> pa.Schema:
    """Return the names and types of the columns of a table that can be read."""
    kind = format_of(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
    if not path.is_file():
        raise DataError(f"{path}: this is a folder; give one file, and join the parts of a table into one first")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; write the table again")
    with _explained(path, kind):
        schema = kind.schema(path)
        _ = schema.names  # names that are not UTF-8 show themselves only when asked for
    return schema


def pieces(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Go through these columns of a table a few rows at a time, in order; never hold more than one piece."""
    kind = format_of(path)
    rows = _piece_rows(columns)
    with _explained(path, kind):
        for batch in kind.batches(path, columns):
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


def _piece_rows(columns: list[str]) -> int:
    return max(1, min(PIECE_ROWS, PIECE_CELLS // len(columns)))


@contextmanager
def _explained(path: Path, kind: Format) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the names of the columns are not UTF-8; save the table in that encoding") from error
    except (pa.ArrowException, OSError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{path}: this cannot be read as {kind.name}: {cause}; write the table again") from error


def _parquet_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # Small reads and no reading ahead: else a whole row group, often a million rows, is held at once.
    with parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        yield from file.iter_batches(batch_size=_piece_rows(columns), columns=columns)


def _feather_schema(path: Path) -> pa.Schema:
    with pa.OSFile(str(path)) as file:
        return ipc.open_file(file).schema


def _feather_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file:
        fields = [ipc.open_file(file).schema.get_field_index(name) for name in columns]
        reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=sorted(fields)))
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _open_csv(path: Path, columns: list[str] | None = None) -> csv.CSVStreamingReader:
    # As text first: PyArrow guesses types from the first block alone, and would then refuse 1.5 below a million whole
    # numbers, or say "NA" is missing where it is the name of a set.
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
