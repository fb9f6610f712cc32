"""Where a table comes from: a data frame, a file, several files or a folder, read through one interface.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from pyarrow import dataset, fs, types

from setgrad._progress import slow_bar
from setgrad.errors import DataError
from setgrad.sets._columns import Column, describe_missing, row_error
from setgrad.sets._formats import FORMATS, Format, chunk_rows, find_format, validated
from setgrad.sets._ids import factorize, read_ids
from setgrad.sets._memory import MemoryLimit

# Readers that compare the pages of a file with their checksums, where the file has them.
_CHECKED = {
    "parquet": dataset.ParquetFileFormat(
        default_fragment_scan_options=dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    )
}
# The name that pandas gives to an index without a name: row numbers of an earlier table, not data.
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


@final
@dataclass(frozen=True)
class TableSource:
    """A table that can be read more than once.

    Attributes:
        name: What messages call it.
        typed: Whether its columns have types; if not, every column is read as text.
        schema: The names and types of its columns.
        batches: Reads the rows of these columns, in order.
        first_row: The number of its first row in messages, if it is a part of a larger table.
    """

    name: str
    typed: bool
    schema: pa.Schema
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]
    first_row: int = 0

    def check_columns(self, names: Iterable[str]) -> None:
        """Check that the columns exist.

        Raises:
            DataError: If some do not; the message names all of them.
        """
        known = set(self.schema.names)
        missing = [name for name in dict.fromkeys(names) if name not in known]
        if missing:
            raise DataError(f"{self.name}: {describe_missing(missing, self.schema.names)}")

    def read_chunks(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns in chunks of rows, in order; of a file, only one chunk is in memory at a time.

        Raises:
            DataError: If the numbers of the table need more memory than there is.
        """
        rows, limit, done = chunk_rows(columns), MemoryLimit(self.name, len(columns)), 0
        with slow_bar(None, "rows", f"reading {self.name}") as progress:
            for batch in self.batches(columns):
                limit.add(batch.num_rows)
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)
                    # The chunk was used before the next one is asked for.
                    progress.update(done + min(start + rows, batch.num_rows))
                done += batch.num_rows


def open_table(table: Any) -> TableSource:
    """Return the source of a table.

    Args:
        table: A data frame of pandas, polars or Arrow (anything with the Arrow PyCapsule interface), the path of a
            file or of a folder, or a list of paths.

    Raises:
        DataError: If it is something else, or cannot be read.
    """
    if isinstance(table, TableSource):
        return table
    if isinstance(table, str | PathLike):
        path = Path(table)
        return _open_folder(path) if path.is_dir() else _open_file(path)
    if hasattr(table, "__arrow_c_stream__"):
        return _open_frame(table)
    if isinstance(table, list | tuple) and table and all(isinstance(path, str | PathLike) for path in table):
        return _open_files([Path(path) for path in table])
    raise DataError(
        "a table is a data frame (pandas 2.2 or later, polars, Arrow), the path of a file or a folder, or a list of "
        f"paths, not {type(table).__name__}"
    )


def _open_file(path: Path) -> TableSource:
    file_format = find_format(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; write the table again")
    with as_data_errors(str(path), file_format.name):
        schema = file_format.schema(path)
        _ = schema.names  # decodes the names, which fails here if they are not UTF-8
    return TableSource(str(path), file_format.typed, schema, partial(_file_batches, path, file_format))


def _file_batches(path: Path, file_format: Format, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with as_data_errors(str(path), file_format.name):
        yield from file_format.batches(path, columns)


def _open_files(paths: Sequence[Path]) -> TableSource:
    """Return several files as one table; rows are counted through all of them."""
    sources = [_open_file(path) for path in paths]
    first = sources[0]
    for other in sources[1:]:
        if other.typed != first.typed:
            raise DataError(f"{other.name}: {first.name} is of another kind; write all parts in one format")
        for field in first.schema:
            index = other.schema.get_field_index(field.name)
            if index < 0:
                raise DataError(f"{other.name}: there is no column {field.name!r}, which {first.name} has")
            if first.typed and other.schema.field(index).type != field.type:
                raise DataError(
                    f"{other.name}: column {field.name!r} is {other.schema.field(index).type}, and {field.type} in "
                    f"{first.name}; write all parts with the same types"
                )

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        for source in sources:
            yield from source.batches(columns)

    name = first.name if len(sources) == 1 else f"{first.name} and {len(sources) - 1} more"
    return TableSource(name, first.typed, first.schema, batches)


def _open_folder(folder: Path) -> TableSource:
    """Return all tables in a folder, in the order of their paths; folders like country=NL are columns."""
    paths = table_paths(folder)
    formats = {find_format(path) for path in paths}
    if len(formats) > 1:
        names = " and ".join(sorted(file_format.name for file_format in formats))
        raise DataError(f"{folder}: this folder holds {names} files; name the files, or write all parts in one format")
    (file_format,) = formats
    if file_format.dataset is None:
        return _open_files(paths)
    with as_data_errors(str(folder), file_format.name):
        # Relative to the folder, so that "=" in the path of the folder itself is no column.
        parts = dataset.dataset(
            [path.relative_to(folder).as_posix() for path in paths],
            filesystem=fs.SubTreeFileSystem(fspath(folder), fs.LocalFileSystem()),
            format=_CHECKED.get(file_format.dataset, file_format.dataset),
            partitioning="hive",
        )

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        with as_data_errors(str(folder), file_format.name):
            # Little read-ahead: a row group of every file at once may not fit into memory.
            for batch in parts.to_batches(
                columns, batch_size=chunk_rows(columns), fragment_readahead=1, batch_readahead=2
            ):
                yield validated(batch)

    return TableSource(str(folder), file_format.typed, parts.schema, batches)


def table_paths(folder: Path) -> list[Path]:
    """Return the files of a folder that hold tables, sorted.

    Raises:
        DataError: If there are none.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and _is_part(path, folder))
    if not paths:
        raise DataError(f"{folder}: this folder holds no table; tables end in {', '.join(FORMATS)}")
    return paths


def _is_part(path: Path, folder: Path) -> bool:
    # Files of other programs, such as _SUCCESS and .crc, are no tables.
    is_hidden = any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    return not is_hidden and any(path.name.lower().endswith(ending) for ending in FORMATS)


def _open_frame(frame: Any) -> TableSource:
    name = "the data frame"
    try:
        table = pa.table(frame)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _frame_error(name, frame, error) from error
    columns = [column for column in table.column_names if not _UNNAMED_INDEX.fullmatch(column)]
    if len(columns) < table.num_columns:
        table = table.select(columns)
    return hold_rows(name, True, table.schema, table)


def _frame_error(name: str, frame: Any, error: Exception) -> DataError:
    """Return what Arrow could not read of a data frame: columns of one name, or of several types, as pandas allows."""
    for column, values in frame.items() if hasattr(frame, "iloc") else ():
        count = list(frame.columns).count(column)
        if count > 1:
            return DataError(f"{name}: {count} columns are called {column!r}; rename them")
        if values.dtype == object and not _is_array(values):
            row = _first_of_another_type(values)
            shown = f"{values.iloc[row]!r:.40} is {type(values.iloc[row]).__name__}"
            text = f"{shown}, unlike the values before; give the column one type" if row else f"{shown}; leave it out"
            return row_error(name, str(column), row, text)
    text = "; ".join(str(part) for part in error.args) or type(error).__name__
    return DataError(f"{name} cannot be read: {text}; give each column one type, and a name of its own")


def _first_of_another_type(values: Any) -> int:
    """Return the first row up to which the values of a column of pandas are no array; all rows are none."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _is_array(values.iloc[:middle]) else (low, middle)
    return low


def _is_array(values: Any) -> bool:
    try:
        pa.array(values, from_pandas=True)
    except pa.ArrowException:
        return False
    return True


def hold_rows(name: str, typed: bool, schema: pa.Schema, table: pa.Table) -> TableSource:
    """Return a source with its rows in memory."""

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(columns).to_batches(max_chunksize=chunk_rows(columns))

    return TableSource(name, typed, schema, batches)


def load_rows(source: TableSource) -> TableSource:
    """Return the same table with its rows in memory, so that it is read from its files only once.

    Raises:
        DataError: If it has no rows.
    """
    batches = list(source.read_chunks(source.schema.names))
    if not batches:
        raise DataError(f"{source.name}: the table has columns but no rows; write at least one item")
    return hold_rows(source.name, source.typed, source.schema, pa.Table.from_batches(batches))


def gather_sets(source: TableSource, set_id: str) -> tuple[TableSource, np.ndarray | None]:
    """Return a table in which the rows of each set are adjacent, and the rows of the given table in that order.

    Sets come in the order of their first rows. The order is None, and the table the same, if they were adjacent.

    Raises:
        DataError: If a row has no id of a set.
    """
    chunks, rows = [], 0
    for batch in source.read_chunks([set_id]):
        chunks.append(read_ids(Column.from_batch(source.name, batch, set_id, rows)))
        rows += batch.num_rows
    if not chunks:
        return source, None
    codes = factorize(pa.chunked_array(chunks))
    if np.count_nonzero(np.diff(codes)) == codes.max():
        return source, None
    order = np.argsort(codes, kind="stable")
    table = take_rows(pa.Table.from_batches(source.read_chunks(source.schema.names)), order)
    # Messages count the rows in this order.
    return hold_rows(f"{source.name} with the rows of a set together", source.typed, source.schema, table), order


def take_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return some rows of a table."""
    return without_views(table).take(pa.array(rows))


def without_views(table: pa.Table) -> pa.Table:
    """Return a table with plain texts and bytes in place of views, of which PyArrow cannot take rows."""
    plain = {types.is_string_view: pa.large_string(), types.is_binary_view: pa.large_binary()}
    for index, field in enumerate(table.schema):
        dtype = next((dtype for is_view, dtype in plain.items() if is_view(field.type)), None)
        if dtype is not None:
            table = table.set_column(index, field.name, table.column(index).cast(dtype))
    return table


def with_columns(source: TableSource, columns: Mapping[str, pa.Array]) -> TableSource:
    """Return a table with more columns, in memory."""
    table, schema = pa.Table.from_batches(source.read_chunks(source.schema.names)), source.schema
    for name, values in columns.items():
        field = pa.field(name, values.type)
        table, schema = table.append_column(field, values), schema.append(field)
    return hold_rows(source.name, source.typed, schema, table)


@contextmanager
def as_data_errors(name: str, format_name: str) -> Iterator[None]:
    """Raise a DataError in place of errors of PyArrow and of the file system."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: the names of the columns are not UTF-8; save the table in UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{name}: this cannot be read as {format_name}: {cause}; write the table again") from error
