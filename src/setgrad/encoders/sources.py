"""Sources of chunks on disk, and reading ahead in a thread.

A source can be iterated any number of times, with the same chunks in the same order, because the gradient of a long set
is computed in a second pass (see `stream`).
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from setgrad.errors import DataError, FileFormatError, OptionError
from setgrad.sets import Sets

Chunks = Callable[[], Iterable[Sets]]


@final
@dataclass(frozen=True)
class NpyChunks:
    """One set in a `.npy` file with one item in each row, of which `chunk_size` rows at a time are in memory.

    An array from `np.load(path, mmap_mode="r")` is a source too, but the rows that were read count as memory of the
    process until the system reclaims them. Here each chunk is freed at once.

    Args:
        path: The file.
        chunk_size: Rows of a chunk.

    Raises:
        OptionError: If `chunk_size` is below 1.
        DataError: While reading, if there is no such file.
        FileFormatError: While reading, if it does not hold one array of numbers.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "items.npy"
        >>> np.save(path, np.zeros((10, 3), np.float32))
        >>> [len(chunk) for chunk in NpyChunks(path, chunk_size=4)]
        [4, 4, 2]
    """

    path: str | Path
    chunk_size: int = 4096

    def __post_init__(self) -> None:
        if self.chunk_size < 1:
            raise OptionError(f"chunk_size must be at least 1, not {self.chunk_size}")

    def __len__(self) -> int:
        return max(1, math.ceil(len(self._mapped()) / self.chunk_size))

    def __iter__(self) -> Iterator[np.ndarray]:
        array = self._mapped()
        shape, dtype, offset = array.shape, array.dtype, int(array.offset)
        rows, row_major = len(array), array.flags.c_contiguous
        del array
        dim = math.prod(shape[1:])
        for start in range(0, max(1, rows), self.chunk_size):
            size = min(self.chunk_size, rows - start)
            if not row_major:
                # The rows of such a file are scattered. A new mapping for every chunk is freed with it.
                yield np.array(self._mapped()[start : start + size])
                continue
            # Not through a mapping, whose pages would be in memory beside the copy.
            chunk = np.fromfile(self.path, dtype, size * dim, offset=offset + start * dim * dtype.itemsize)
            if len(chunk) != size * dim:
                raise FileFormatError(f"{self.path} was truncated while it was read; write it again with np.save")
            yield chunk.astype(dtype.newbyteorder("="), copy=False).reshape(size, *shape[1:])

    def _mapped(self) -> np.memmap:
        try:
            array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise DataError(f"there is no file {self.path}; write it with np.save") from None
        except (OSError, ValueError, EOFError) as error:
            raise FileFormatError(
                f"{self.path} cannot be mapped as an array: {error}; write it again with np.save"
            ) from None
        if not isinstance(array, np.memmap) or array.dtype.kind not in "fiub" or array.ndim < 1:
            raise FileFormatError(f"{self.path} must hold one array of numbers with one item in each row (np.save)")
        return array


@final
@dataclass(frozen=True)
class ParquetChunks:
    """One set in a Parquet file with one item in each row; one row group at a time is in memory.

    Args:
        path: The file.
        columns: Names of the columns with the features of an item: numbers, or lists of equal length; all if None.
        row_groups: Row groups in a chunk. Use more than one if they are small.
        dtype: Data type of the features; use the one of the encoder.
        part: Position of a shard and number of shards, set by `shard`.

    Raises:
        OptionError: If `row_groups` or `part` is out of range.
        DataError: While reading, if the file or a column is missing, or a column does not hold numbers.
        FileFormatError: While reading, if the file is damaged or not a Parquet file.

    Examples:
        >>> import tempfile, pyarrow as pa
        >>> from pyarrow import parquet
        >>> path = Path(tempfile.mkdtemp()) / "items.parquet"
        >>> parquet.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": [4, 5, 6]}), path, row_group_size=2)
        >>> [chunk.tolist() for chunk in ParquetChunks(path)]
        [[[1.0, 4.0], [2.0, 5.0]], [[3.0, 6.0]]]
    """

    path: str | Path
    columns: Sequence[str] | None = None
    row_groups: int = 1
    dtype: type[np.floating] = np.float32
    part: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        first, step = self.part
        if self.row_groups < 1 or not 0 <= first < step:
            raise OptionError(
                f"row_groups must be at least 1 and the rank below the number of ranks, not {self.row_groups} and "
                f"{first} of {step}"
            )

    def shard(self, rank: int, ranks: int) -> ParquetChunks:
        """Return the chunks for one of several machines: every `ranks`-th chunk, possibly none.

        A shard can be divided into shards again.

        Raises:
            OptionError: If the rank is not below the number of ranks.
        """
        if not 0 <= rank < ranks:
            raise OptionError(f"the rank must be below the number of ranks, not {rank} of {ranks}")
        first, step = self.part
        return replace(self, part=(first + rank * step, step * ranks))

    def __len__(self) -> int:
        with _open_parquet(self.path) as file:
            return len(self._starts(file))

    def __iter__(self) -> Iterator[np.ndarray]:
        import pyarrow as pa

        with _open_parquet(self.path) as file:
            names = self._names(file)
            for start in self._starts(file):
                groups = list(range(start, min(start + self.row_groups, file.num_row_groups)))
                try:
                    table = file.read_row_groups(groups, columns=names, use_threads=False)
                except (pa.ArrowException, OSError) as error:
                    raise FileFormatError(
                        f"row groups {groups} of {self.path} cannot be read: {error}; write the file again"
                    ) from None
                columns = [_features(table.column(name), name, self) for name in names]
                if not len(table):
                    columns = [np.zeros((0, self._dim(file, name)), self.dtype) for name in names]
                yield np.concatenate(columns, axis=1)

    def _dim(self, file: Any, name: str) -> int:
        """Return the number of features in a column, for a chunk without rows."""
        import pyarrow as pa

        kind = file.schema_arrow.field(name).type
        if pa.types.is_fixed_size_list(kind):
            return kind.list_size
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return 1
        for group in range(file.num_row_groups):
            if file.metadata.row_group(group).num_rows:
                rows = file.read_row_group(group, columns=[name], use_threads=False).column(name)
                return _features(rows, name, self).shape[1]
        raise DataError(
            f"{self.path} has no rows, so the length of the lists in column {name!r} is unknown; write lists of "
            "fixed size (pyarrow.list_(type, length)), or leave the file out"
        )

    def _starts(self, file: Any) -> range:
        first, step = self.part
        return range(first * self.row_groups, file.num_row_groups, step * self.row_groups)

    def _names(self, file: Any) -> list[str]:
        available = file.schema_arrow.names
        names = list(available if self.columns is None else self.columns)
        missing = [name for name in names if name not in available]
        if missing or not names:
            raise DataError(
                f"{self.path} has no column {', '.join(map(repr, missing)) or 'at all'}; it has: {', '.join(available)}"
            )
        return names


def _open_parquet(path: str | Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    if not Path(path).is_file():
        raise DataError(f"there is no file {path}")
    try:
        return parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as Parquet: {error}; write the file again") from None


def _features(column: Any, name: str, source: ParquetChunks) -> np.ndarray:
    """Return a column as numbers, `(rows, dim)`."""
    import pyarrow as pa

    rows, kind = len(column), column.type
    plain = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    numbers = plain.flatten() if lists else plain
    number = numbers.type
    if not (pa.types.is_integer(number) or pa.types.is_floating(number) or pa.types.is_boolean(number)):
        raise DataError(
            f"column {name!r} of {source.path} holds {kind}, not numbers; choose others with columns=[...], or encode "
            "it first"
        )
    if plain.null_count or numbers.null_count:
        raise DataError(f"column {name!r} of {source.path} has missing values; remove or impute such items first")
    dim = len(numbers) // rows if rows else 0
    if lists and not pa.types.is_fixed_size_list(kind) and bool((np.diff(plain.offsets.to_numpy()) != dim).any()):
        raise DataError(
            f"the lists of column {name!r} of {source.path} differ in length; items need the same number of features"
        )
    values = numbers.to_numpy(zero_copy_only=False).astype(source.dtype)
    return values.reshape(rows, dim)


def reads_disk(source: Any) -> bool:
    """Return whether a source reads from disk."""
    return isinstance(source, NpyChunks | ParquetChunks | np.memmap)


def prefetched(chunks: Chunks) -> Chunks:
    """Return the same chunks, each read in a thread while the one before is used; errors are raised in its place."""
    return lambda: _read_ahead(chunks)


def _read_ahead(chunks: Chunks) -> Iterator[Sets]:
    ready: queue.SimpleQueue[tuple[Sets | None, BaseException | None]] = queue.SimpleQueue()
    # One permit for each chunk to be read, released when the one before is taken, so that at most two are in memory.
    permits, stop = threading.Semaphore(1), threading.Event()

    def read() -> None:
        try:
            source = iter(chunks())
            while permits.acquire() and not stop.is_set():
                chunk = next(source, None)
                ready.put((chunk, None))
                if chunk is None:
                    return
        except BaseException as error:
            ready.put((None, error))

    thread = threading.Thread(target=read, name="setgrad reads ahead", daemon=True)
    thread.start()
    try:
        while True:
            chunk, error = ready.get()
            if error is not None:
                raise error
            if chunk is None:
                return
            permits.release()
            yield chunk
    finally:
        stop.set()
        permits.release()
        thread.join()
