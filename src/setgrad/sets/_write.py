"""`write_table`: a table of picks, with one row for each item.

Imported only when a table is written, so PyArrow may be imported at the top.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyarrow import parquet, types

from setgrad._files import atomic_write
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets._columns import unwrap_extension
from setgrad.sets._formats import PARQUET, Format, find_format
from setgrad.sets._formulas import guard_formulas
from setgrad.sets._sets import Sets


def write_table(
    path: str | PathLike[str],
    picks: Sets,
    *,
    set_ids: Sequence[Any] | np.ndarray | None = None,
    item_ids: Sequence[Any] | np.ndarray | None = None,
    probability: Sets | None = None,
    names: tuple[str, str] = ("set_id", "item_id"),
    formulas: bool = False,
) -> None:
    """Write picks to a Parquet, CSV, JSON-lines or Feather file: set id, item id, probability (optional) and chosen.

    The file is written completely or not at all, and replaces an existing file. Missing folders are created. A set
    without items has no rows, so the table does not contain it.

    Args:
        path: The file. Its ending gives the format: .parquet, .pq, .csv, .csv.gz, .tsv, .jsonl, .feather or .arrow.
        picks: Booleans, true for a chosen item, as `predict` returns them.
        set_ids: One id for each set, all different: numbers, texts, UUIDs (written as text), or bytes, which a CSV
            file can hold only if they are UTF-8. By default sets are numbered from 0.
        item_ids: One id for each item, in the order of `picks.values`; by default items are numbered from 0 in each
            set.
        probability: One number for each item, as `predict_proba` returns them.
        names: Names of the columns of the set id and the item id.
        formulas: Whether a CSV file holds ids as they are that a spreadsheet runs as formulas: texts that begin with
            =, +, - or @ and are not numbers. By default an apostrophe comes before them, and a warning says so. To
            undo it, remove one apostrophe from every text that has one of these signs after its apostrophes.

    Raises:
        ShapeError: If `picks`, `probability` or the ids do not fit together.
        DataError: If the ids cannot be written, two sets have the same id, or the file cannot be written.
        OptionError: If the names of the columns clash.

    Examples:
        >>> import pathlib, tempfile
        >>> from setgrad.sets import Sets
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "picks.csv")
        >>> write_table(path, Sets.from_list([[True, False], [True]]), set_ids=["a", "b"], names=("basket", "place"))
        >>> print(path.read_text().replace('"', ""))
        basket,place,chosen
        a,0,true
        a,1,false
        b,0,true
        >>> folder.cleanup()
    """
    path = Path(path)
    file_format = find_format(path)  # first: an unknown ending is an error before any work
    for name, value in {"picks": picks, "probability": probability}.items():
        if not isinstance(value, Sets) and not (value is None and name == "probability"):
            raise ShapeError(f"{name} must be Sets, not {type(value).__name__}; convert lists with Sets.from_list")
    if picks.dtype != torch.bool or picks.values.dim() != 1:
        raise ShapeError(f"picks must hold one boolean for each item, as predict returns them; got {picks!r}")
    if len({*names, "probability", "chosen"}) != 4:
        raise OptionError(f"names={names!r} must be two different names, and neither 'probability' nor 'chosen'")
    layout = picks.layout
    id_of_set = _id_array(file_format, range(len(layout)) if set_ids is None else set_ids, len(layout), "set")
    if len(id_of_set.unique()) != len(id_of_set):
        raise DataError("two sets have the same id, so their rows cannot be distinguished; use different ids")
    positions = np.arange(layout.total) - np.repeat(layout.host_offsets[:-1], layout.host_lengths)
    columns = {
        names[0]: id_of_set.take(pa.array(np.repeat(np.arange(len(layout)), layout.host_lengths))),
        names[1]: _id_array(file_format, positions if item_ids is None else item_ids, layout.total, "item"),
    }
    if probability is not None:
        if not probability.layout.same_as(layout) or probability.values.dim() != 1:
            raise ShapeError(f"probability must hold one number for each item of picks; {probability!r} and {picks!r}")
        values = probability.values.detach().cpu()
        columns["probability"] = pa.array(values.numpy() if values.dtype == torch.float64 else values.float().numpy())
    columns["chosen"] = pa.array(picks.values.cpu().numpy())
    _write(path, file_format, pa.table(columns), formulas=formulas)


def write_rows(path: Path, table: pa.Table, *, formulas: bool = False) -> None:
    """Write a table of picks to a file, completely or not at all.

    Raises:
        DataError: If the file cannot be written, or cannot hold values of a column.
    """
    file_format = find_format(path)
    _write(path, file_format, _plain_rows(path, file_format, table), formulas=formulas)


def _plain_rows(path: Path, file_format: Format, table: pa.Table) -> pa.Table:
    """Return a table with columns that a file of this format can hold."""
    columns = {}
    for name in table.column_names:
        array = unwrap_extension(table[name].combine_chunks())
        if not file_format.typed:
            if types.is_dictionary(array.type):
                array = array.dictionary_decode()
            if types.is_nested(array.type):
                raise DataError(f"{path}: column {name!r} is {array.type}, which text cannot hold; write .parquet")
            array = _decode(array, f"column {name!r}") if _is_bytes(array.type) else array
        columns[name] = array
    return pa.table(columns)


@final
class ParquetFile:
    """A Parquet file that is written in parts.

    Args:
        path: Its path, for messages.
        draft: Where it is written.
    """

    def __init__(self, path: Path, draft: Path) -> None:
        self._path, self._draft = path, draft
        self._writer: parquet.ParquetWriter | None = None

    @staticmethod
    @contextmanager
    def open(path: Path) -> Iterator[ParquetFile]:
        """Yield a file that appears when the block ends without an error.

        Raises:
            DataError: If the file cannot be written.
        """
        check_streams(path)
        with atomic_write(path) as draft:
            file = ParquetFile(path, draft)
            try:
                yield file
            finally:
                if file._writer is not None:
                    file._writer.close()

    def write(self, rows: pa.Table) -> None:
        """Write more rows."""
        rows = _plain_rows(self._path, PARQUET, rows)
        try:
            if self._writer is None:
                self._writer = parquet.ParquetWriter(self._draft, rows.schema, write_page_checksum=True)
            self._writer.write_table(rows)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"{self._path}: this cannot be written: {error}") from error


def check_streams(path: Path) -> None:
    """Raise an OptionError if picks cannot be written to a file in parts."""
    if find_format(path) is not PARQUET:
        raise OptionError(f"{path}: picks that are streamed are written to Parquet; name a file that ends in .parquet")


def _write(path: Path, file_format: Format, table: pa.Table, *, formulas: bool) -> None:
    if not (file_format.typed or formulas):
        table, count = guard_formulas(table)
        if count:
            warnings.warn(
                f"{path}: a spreadsheet would run {count} ids or names as formulas, so an apostrophe comes before "
                "them; formulas=True, or --formulas, writes them as they are",
                UserWarning,
                stacklevel=3,
            )
    try:
        with atomic_write(path) as draft:
            file_format.write(table, draft)
    except pa.ArrowException as error:
        raise DataError(f"{path}: this cannot be written: {error}; use another format, such as .parquet") from error


def check_writable_ids(
    path: Path, *, set_ids: Sequence[Any] | np.ndarray | None, item_ids: Sequence[Any] | np.ndarray | None
) -> None:
    """Raise the error that `write_table` would raise for ids that the file cannot hold, before the picks are known."""
    file_format = find_format(path)
    for ids, noun in ((set_ids, "set"), (item_ids, "item")):
        if ids is not None:
            _id_array(file_format, ids, len(ids), noun)


def _id_array(file_format: Format, ids: Sequence[Any] | np.ndarray | range, count: int, noun: str) -> pa.Array:
    argument = f"{noun}_ids"
    try:
        array = unwrap_extension(_to_arrow(ids))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{argument} cannot be written: {error}; use numbers or texts, all of one type") from None
    if types.is_nested(array.type):
        raise DataError(f"{argument} cannot be written: an id must be a number or a text, not {array.type}")
    if not file_format.typed and _is_bytes(array.type):
        array = _decode(array, argument)
    missing = array.is_null(nan_is_null=True)
    # In a file without types an empty text cannot be distinguished from a missing value.
    if not file_format.typed and (types.is_string(array.type) or types.is_large_string(array.type)):
        missing = pc.or_(missing, pc.equal(array.fill_null(""), ""))
    first = missing.index(True).as_py()
    if first >= 0:
        raise DataError(f"{argument} has no value at entry {first}; pass one for each {noun}")
    if len(array) != count:
        raise ShapeError(f"{argument} has {len(array)} entries for {count} {noun}s; pass one for each {noun}")
    return array


def _is_bytes(dtype: pa.DataType) -> bool:
    return bool(types.is_binary(dtype) or types.is_large_binary(dtype) or types.is_fixed_size_binary(dtype))


def _decode(array: pa.Array, argument: str) -> pa.Array:
    try:
        return array.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise DataError(f"{argument} holds bytes that are not UTF-8; write .parquet, or use texts as ids") from None


def _to_arrow(ids: Sequence[Any] | np.ndarray | range) -> pa.Array:
    try:
        return pa.array(ids)
    except OverflowError:
        # PyArrow does not try unsigned integers of 64 bits, such as hashes, by itself.
        return pa.array(ids, pa.uint64())
