"""Picks that are written to a file while a table is read block by block.

PyArrow is imported where a table is used.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from setgrad._prefetch import prefetched
from setgrad._progress import hidden, progress_bar, showing
from setgrad.columns._surprises import Surprises
from setgrad.errors import OptionError, parameter
from setgrad.selector._fitted_table import FittedTable
from setgrad.selector._input import Input
from setgrad.selector._picks import check_carry, check_ids
from setgrad.selector._prediction import SubsetRequest
from setgrad.selector._shares import Share
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Sets, Table, subset_sizes

if TYPE_CHECKING:
    import pyarrow as pa

    from setgrad.sets._parquet import ParquetTable


@final
@dataclass(frozen=True, eq=False)
class PicksSummary:
    """What `write_picks` wrote.

    Attributes:
        path: The file.
        sizes: The number of chosen items of each set, in the order of the table.
        items: The number of items.
        first: The picks of the first block of sets, an Arrow table.
    """

    path: Path
    sizes: np.ndarray
    items: int
    first: pa.Table

    def __repr__(self) -> str:
        chosen = int(self.sizes.sum())
        return f"PicksSummary({self.path}: {len(self.sizes)} sets, {self.items} items, {chosen} chosen)"


class AbstractWriting(abc.ABC):
    """How a fitted selector chooses from tables that are larger than memory."""

    table_: TableSchema | None
    verbose: int

    @abc.abstractmethod
    def _check_fitted(self) -> None:
        """Raise a NotFittedError before a fit."""

    @abc.abstractmethod
    def ask(self, table: FittedTable, read: Table) -> Input:
        """Return what was read from a table, with its sets checked."""

    @abc.abstractmethod
    def choose_rows(
        self, asked: Input, request: SubsetRequest, given: Any, excluded: Any, carry: Iterable[str] = ()
    ) -> tuple[Sets, pa.Table]:
        """Return the subsets chosen from a table, and its picks as an Arrow table."""

    def write_picks(
        self,
        table: Any,
        path: str | PathLike[str],
        *,
        given: str | None = None,
        excluded: str | None = None,
        size: int | None = None,
        threshold: float | None = None,
        search: str | None = None,
        decide: str | None = None,
        recall: float | None = None,
        carry: Iterable[str] = (),
        part: tuple[int, int] | None = None,
    ) -> PicksSummary:
        """Choose from Parquet files that may be larger than memory, and write the picks to a Parquet file.

        The rows of a set must be together, in one file or in files that follow each other. The picks are those of
        `predict`, and come in the order of the table. The file appears when all of them are written.

        Args:
            table: A Parquet file or a folder, a list of files, the address of an object store such as s3://bucket/data,
                or a `pyarrow.dataset.Dataset`.
            path: The file to write, which ends in .parquet or .pq; with `part`, the folder for the files of all parts.
            given: Column of items that are in the subset already, as in `predict`.
            excluded: Column of items that are known to be out of it.
            size: How many items to choose from each set; None to use the rule learned in fitting.
            threshold: As in `predict`, and so are the other arguments.
            search: As in `predict`.
            decide: As in `predict`.
            recall: As in `predict`.
            carry: Columns of the table to repeat beside the picks.
            part: Choose from a part of the table only: (3, 16) is the third of 16 parts, which have about the same
                number of rows. Parts need nothing of each other, so that several processes, or machines with the same
                files, write them at the same time. In the order of their names they are the picks of the whole table.

        Returns:
            The number of chosen items of each set, and the picks of the first sets.

        Raises:
            DataError: If the table cannot be read, the rows of a set are apart, or the file cannot be written.
            NotFittedError: If the selector is not fitted.
            OptionError: If arguments do not go together, or the selector was not fitted on a table.

        Examples:
            >>> import pathlib, tempfile, pyarrow, pyarrow.parquet
            >>> import setgrad as sg
            >>> rows = pyarrow.table({"set": [i // 3 for i in range(60)], "x": [i % 3 for i in range(60)]})
            >>> rows = rows.append_column("y", pyarrow.array([i % 3 == i % 2 for i in range(60)]))
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = pathlib.Path(folder.name, "rows.parquet")
            >>> pyarrow.parquet.write_table(rows, path)
            >>> selector = sg.SubsetSelector(dim=4, max_epochs=1, random_state=0, verbose=0, device="cpu")
            >>> selector = selector.fit(path, set_id="set", chosen="y", stream=True)
            >>> len(selector.write_picks(path, pathlib.Path(folder.name, "picks.parquet"), size=1).sizes)
            20
            >>> folder.cleanup()
        """
        self._check_fitted()
        if self.table_ is None:
            raise OptionError("the selector was not fitted on a table, and does not know its columns; fit it on one")
        request = SubsetRequest(size, threshold, search, decide=decide, recall=recall)
        return self.write_rows(table, self.table_, Path(path), request, given, excluded, carry, Share.of(part))

    def write_rows(
        self,
        table: Any,
        schema: TableSchema,
        path: Path,
        request: SubsetRequest,
        given: str | None,
        excluded: str | None,
        carry: Iterable[str],
        share: Share | None = None,
    ) -> PicksSummary:
        """Choose from a table with these columns and write the picks; see `write_picks`."""
        from setgrad.sets._blocks import SetBlocks
        from setgrad.sets._parquet import ParquetTable
        from setgrad.sets._set_index import SetIndex
        from setgrad.sets._write import ParquetFile

        path = path if share is None else share.file_in(path)
        opened, shown = ParquetTable.open(table), self.verbose > 0
        fitted = _check(opened, schema, given, excluded)
        check_ids(fitted.schema)
        carried = check_carry(carry, fitted)
        with showing("reading the ids of sets", shown):
            blocks = SetBlocks(opened, SetIndex.read(opened, fitted.set_id, None))
        ranges = (Share(1, 1) if share is None else share).ranges(blocks)
        surprises, sizes, first, done = Surprises(), [], None, 0
        rows_of_all = ranges[-1][1] - ranges[0][0]
        with (
            ParquetFile.open(path) as file,
            progress_bar("choosing", rows_of_all, unit="rows", enabled=shown) as progress,
            closing(prefetched(_tables(opened, ranges, replace(fitted, surprises=surprises)))) as tables,
        ):
            for part, read in tables:
                asked = self.ask(part, read)
                with hidden():
                    picks, rows = self.choose_rows(asked, request, *asked.masks(given, excluded), carried)
                file.write(rows)
                sizes.append(subset_sizes(picks))
                first = rows if first is None else first
                done += picks.layout.total
                progress.update(done)
        for text in surprises.warnings():
            warnings.warn(f"{opened.name}: {text}", UserWarning, stacklevel=3)
        return PicksSummary(path, np.concatenate(sizes), done, first)


def _check(opened: Any, schema: TableSchema, given: Any, excluded: Any) -> FittedTable:
    """Return the table with the columns that it has, after a check that none is missing."""
    if schema.set_id is None:
        raise OptionError(f"the selector was fitted with {parameter('groups')}; name the column: {parameter('set_id')}")
    if schema.dtype is None:
        raise OptionError(
            "the selector does not know the precision of its numbers, as models of earlier versions; choose in memory, "
            "or fit it again"
        )
    for name, column in (("given", given), ("excluded", excluded)):
        if column is not None and not isinstance(column, str):
            raise OptionError(f"{parameter(name)} must name a column of the table that is streamed")
    item_id = schema.item_id if schema.item_id in opened.schema.names else None
    schema = replace(schema, item_id=item_id, chosen=None)
    source = opened.source
    named = (schema.set_id, item_id, given, excluded, *schema.features)
    source.check_columns([name for name in named if name is not None])
    return FittedTable(source, schema, str(schema.set_id), None)


def _tables(
    opened: ParquetTable, ranges: list[tuple[int, int]], table: FittedTable
) -> Iterator[tuple[FittedTable, Table]]:
    """Read the sets of each range of rows."""
    for first, end in ranges:
        part = replace(table, source=opened.read_range(first, end))
        yield part, part.read_sets()
