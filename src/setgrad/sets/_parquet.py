"""Parquet tables that are read range by range: files, folders, object stores and Arrow data sets.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from pyarrow import dataset, fs

from setgrad.errors import DataError
from setgrad.sets._columns import check_names
from setgrad.sets._formats import PARQUET, chunk_rows, find_format, validated
from setgrad.sets._sources import TableSource, as_data_errors, table_paths

# Without read-ahead, which would hold whole row groups; checksums of pages are compared where a file has them.
_OPTIONS = dataset.ParquetFragmentScanOptions(
    use_buffered_stream=True, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True
)
_FORMAT = dataset.ParquetFileFormat(default_fragment_scan_options=_OPTIONS)


@final
@dataclass(frozen=True, eq=False)
class ParquetTable:
    """A table of Parquet files, of which only the rows that are asked for are read.

    Attributes:
        name: What messages call it.
        parts: Its row groups, in the order of the files; each is a fragment of an Arrow data set.
        schema: The names and types of its columns.
        starts: The first row of each row group, and the number of all rows.
        bytes: About how much memory its columns take.
    """

    name: str
    parts: Sequence[Any]
    schema: pa.Schema
    starts: np.ndarray
    bytes: int

    @staticmethod
    def open(table: Any) -> ParquetTable:
        """Open a table; only the ends of its files are read.

        Args:
            table: The path of a Parquet file or of a folder, a list of files, the address of an object store such as
                s3://bucket/folder, or a `pyarrow.dataset.Dataset`.

        Raises:
            DataError: If it is something else, cannot be read, or its files have different columns.
        """
        if isinstance(table, dataset.Dataset):
            name, files = "the data set", table
        else:
            name = _name_of(table)
            with as_data_errors(name, PARQUET.name):
                files = _find_files(table, name)
        parts: list[Any] = []
        rows: list[int] = []
        size = 0
        for fragment in files.get_fragments():
            with as_data_errors(str(fragment.path), PARQUET.name):
                _check_schema(fragment, files.schema)
                groups = fragment.split_by_row_group()
                for group in groups:
                    (info,) = group.row_groups
                    # Bytes in the file before compression: texts that repeat take more in memory.
                    size += max(info.total_byte_size, info.num_rows * 4 * len(files.schema))
                    parts.append(group)
                    rows.append(info.num_rows)
        starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]).astype(np.int64)
        if not starts[-1]:
            raise DataError(f"{name}: the table has columns but no rows; write at least one item")
        check_names(name, files.schema, files.schema.names)
        return ParquetTable(name, parts, files.schema, starts, size)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.starts[-1])

    @cached_property
    def source(self) -> TableSource:
        """The whole table."""
        return self.read_range(0, self.rows)

    def read_range(self, first: int, end: int) -> TableSource:
        """Return some rows as a table; messages about them count the rows of the whole one."""

        def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
            with as_data_errors(self.name, PARQUET.name):
                yield from self._read(first, end, columns)

        return TableSource(self.name, True, self.schema, batches, first)

    def _read(self, first: int, end: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        number = int(np.searchsorted(self.starts, first, side="right")) - 1
        while number < len(self.parts) and self.starts[number] < end:
            row = int(self.starts[number])
            part = self.parts[number].to_batches(
                schema=self.schema,
                columns=columns,
                batch_size=chunk_rows(columns),
                batch_readahead=0,
                fragment_readahead=0,
                use_threads=False,
            )
            for batch in part:
                low, high = max(first - row, 0), min(end - row, batch.num_rows)
                if low < high:
                    yield validated(batch.slice(low, high - low))
                row += batch.num_rows
                if row >= end:
                    break
            number += 1


def is_parquet(table: Any) -> bool:
    """Return whether a table can be read range by range; cheap, and never raises."""
    if isinstance(table, dataset.Dataset):
        return True
    try:
        paths = [table] if isinstance(table, str | PathLike) else list(table)
        found = [part for path in paths for part in (table_paths(Path(path)) if Path(path).is_dir() else [Path(path)])]
        return bool(found) and all(path.is_file() and find_format(path) is PARQUET for path in found)
    except (DataError, OSError, TypeError):
        return False


def is_address(path: Any) -> bool:
    """Return whether a path is the address of an object store."""
    return isinstance(path, str) and "://" in path


def _name_of(table: Any) -> str:
    if isinstance(table, str | PathLike):
        return str(table)
    if isinstance(table, list | tuple) and table and all(isinstance(path, str | PathLike) for path in table):
        return str(table[0]) if len(table) == 1 else f"{table[0]} and {len(table) - 1} more"
    raise DataError(
        "to be streamed, a table must be Parquet: the path of a file or a folder, a list of files, the address of an "
        f"object store, or a pyarrow.dataset.Dataset, not {type(table).__name__}"
    )


def _find_files(table: Any, name: str) -> Any:
    if is_address(table):
        system, path = fs.FileSystem.from_uri(table)
        return dataset.dataset(path, filesystem=system, format=_FORMAT, partitioning="hive")
    paths = [Path(path) for path in ([table] if isinstance(table, str | PathLike) else table)]
    folder = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    files = paths if folder is None else table_paths(folder)
    for path in files:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
        if find_format(path) is not PARQUET:
            raise DataError(f"{path}: only Parquet can be streamed; write the table as .parquet")
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty; write the table again")
    if folder is None:
        return dataset.dataset([fspath(path.absolute()) for path in files], format=_FORMAT)
    # Relative to the folder, so that "=" in the path of the folder itself is no column.
    system = fs.SubTreeFileSystem(fspath(folder.absolute()), fs.LocalFileSystem())
    relative = [path.relative_to(folder).as_posix() for path in files]
    return dataset.dataset(relative, filesystem=system, format=_FORMAT, partitioning="hive")


def _check_schema(fragment: Any, schema: pa.Schema) -> None:
    """Check that a file has the columns of the first one, but for those in the names of folders."""
    known = dataset.get_partition_keys(fragment.partition_expression)
    own = fragment.physical_schema
    for field in schema:
        if field.name in known:
            continue
        index = own.get_field_index(field.name)
        if index < 0:
            raise DataError(f"{fragment.path}: there is no column {field.name!r}, which other files have")
        if own.field(index).type != field.type:
            raise DataError(
                f"{fragment.path}: column {field.name!r} is {own.field(index).type}, and {field.type} in other files; "
                "write all parts with the same types"
            )
