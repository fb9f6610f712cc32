"""A table of Parquet files at `fit`, read block by block: its sets, its columns, their statistics, what is held out.

Three passes come before training: over the ids and the choices; over a sample of the sets, from which the columns are
understood; and over all rows, for the statistics. PyArrow is imported where a table is used.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from setgrad._prefetch import prefetched
from setgrad._progress import announce, showing, slow_bar
from setgrad.columns._arguments import TableArguments
from setgrad.columns._relative import RelativeFeatures
from setgrad.columns._surprises import Surprises
from setgrad.errors import DataError, parameter
from setgrad.selector._data import split_sets
from setgrad.selector._statistics import ItemStatistics
from setgrad.selector._stream import BlockReader, StreamedExamples, join_sets, take_sets
from setgrad.selector._table_input import list_warnings
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Choices
from setgrad.sets._arrays import Float32LossCheck

if TYPE_CHECKING:
    from setgrad.columns import TableDescription
    from setgrad.columns._columns import Columns
    from setgrad.columns._fit import ColumnChoice
    from setgrad.sets._blocks import SetBlocks
    from setgrad.sets._read import Roles

# Rows from which the columns are understood, and the fewest sets of a sample; items that are held out at most.
SAMPLE_ROWS, _SAMPLE_SETS, VALIDATION_ITEMS = 2**20, 20, 2**19


@final
@dataclass(frozen=True, eq=False)
class StreamedTable:
    """What `fit` knows of a table before training.

    Attributes:
        train: The training sets.
        validation: The validation sets, in memory; None if they are separate.
        validation_indices: Their numbers in the table.
        schema: The columns of the table.
        description: What was understood of it; None if the columns of another model were used.
        seed: The seed of the fit.
    """

    train: StreamedExamples
    validation: Choices | None
    validation_indices: np.ndarray | None
    schema: TableSchema
    description: TableDescription | None
    seed: int

    @property
    def sets(self) -> int:
        """The number of sets of the table."""
        return len(self.train.reader.blocks.index)

    @property
    def items(self) -> int:
        """The number of rows of the table."""
        return self.train.reader.blocks.table.rows


def read_to_stream(
    table: Any,
    arguments: TableArguments,
    *,
    fraction: float | None,
    seed: int,
    fitted: Columns | None = None,
    verbose: bool,
) -> StreamedTable:
    """Read what training needs to know of a table before it reads the sets one after the other.

    Args:
        table: The table.
        arguments: The names of its columns.
        fraction: The share of the sets to validate on; None if there are separate validation sets.
        seed: The seed of the fit.
        fitted: Columns of the model that training starts from; None to fit them to the table.
        verbose: Whether to tell what is done.

    Raises:
        DataError: If the table cannot be read, or rows of a set are apart.
        OptionError: If a column is not named.
    """
    from setgrad.sets._blocks import LARGE_ROWS, SetBlocks
    from setgrad.sets._columns import check_roles
    from setgrad.sets._parquet import ParquetTable
    from setgrad.sets._set_index import SetIndex

    choice, roles = arguments.choice(), arguments.roles(chosen=True)
    opened = ParquetTable.open(table)
    features = [name for name in choice.named if not (name == roles.item_id and name in choice.embed)]
    check_roles(opened.name, opened.schema, roles._asdict(), features)
    announce(f"streaming {opened.name}: {opened.rows:,} rows, read block by block", shown=verbose)
    with showing("reading the ids of sets", verbose):
        blocks = SetBlocks(opened, SetIndex.read(opened, roles.set_id, roles.chosen))
    if blocks.largest_group > LARGE_ROWS:
        warnings.warn(
            f"{opened.name}: a row group has {blocks.largest_group:,} rows, and reading a block of it starts from its "
            "beginning; row groups of 100,000 to 1,000,000 rows are read much faster (row_group_size= in PyArrow)",
            UserWarning,
            stacklevel=4,
        )
    train, held_out = np.arange(len(blocks.index)), np.empty(0, np.int64)
    if fraction is not None:
        train, held_out = split_sets(blocks.index.lengths, fraction, seed, VALIDATION_ITEMS)
    description = None
    if fitted is None:
        fitted, description, is_whole = _understand(blocks, roles, choice, train, seed, verbose=verbose)
        for text in list_warnings(description):
            warnings.warn(f"{opened.name}: {text}", UserWarning, stacklevel=4)
    else:
        choice.check_fitted(fitted)
        opened.source.check_columns(fitted.names)
        is_whole = True
    scan = _scan(blocks, roles, fitted, train, held_out, verbose=verbose, repair=not is_whole)
    schema = TableSchema(
        roles.set_id,
        scan.columns.names,
        roles.item_id,
        roles.chosen,
        TableSchema.dtype_name(scan.reader.dtype),
        scan.columns,
    )
    examples = StreamedExamples(scan.reader, train, scan.statistics, scan.weight_scale, torch.device("cpu"))
    separate = fraction is None
    return StreamedTable(
        examples, None if separate else scan.held_out, None if separate else held_out, schema, description, seed
    )


def _understand(
    blocks: SetBlocks, roles: Roles, choice: ColumnChoice, train: np.ndarray, seed: int, *, verbose: bool
) -> tuple[Columns, TableDescription, bool]:
    """Return the columns, what was understood, and whether all sets were looked at."""
    import pyarrow as pa

    from setgrad.columns._fit import TrainingRows, fit_columns
    from setgrad.sets._columns import Column, read_booleans
    from setgrad.sets._sources import hold_rows

    table, index = blocks.table, blocks.index
    order = np.random.default_rng([seed, 3]).permutation(len(index))
    fitting = int(np.searchsorted(np.cumsum(index.lengths[order]), SAMPLE_ROWS, side="right"))
    sample = np.sort(order[: max(fitting, _SAMPLE_SETS)])
    is_whole = len(sample) == len(index)
    parts = []
    with showing("reading a sample of the sets", verbose), slow_bar(len(blocks), "blocks") as progress:
        for block in range(len(blocks)):
            sets = sample[slice(*np.searchsorted(sample, blocks.bounds[block : block + 2]))]
            if len(sets):
                parts += [pa.Table.from_batches([batch]) for batch in blocks.rows_of(sets).batches(table.schema.names)]
            progress.update(block + 1)
    rows = pa.concat_tables(parts)
    name = table.name if is_whole else f"{table.name}, a sample of {rows.num_rows:,} rows"
    source = hold_rows(name, True, rows.schema, rows)
    sizes = index.sizes
    assert sizes is not None
    column = rows[roles.chosen].combine_chunks()
    chosen = read_booleans(Column.from_batch(name, pa.record_batch([column], names=["y"]), "y", 0))
    looked = TrainingRows(index.lengths[sample], np.isin(sample, train, assume_unique=True), chosen)
    found = fit_columns(source, roles, choice, looked)
    description = replace(
        found.description, name=table.name, sets=len(index), items=table.rows, chosen=int(sizes.sum())
    )
    if not is_whole:
        announce(
            f"columns are understood from a sample of {len(sample):,} of {len(index):,} sets ({rows.num_rows:,} rows); "
            "gaps, means and spreads are those of all rows",
            shown=verbose,
        )
    return found.columns, description, is_whole


@final
@dataclass(frozen=True, eq=False)
class _Scan:
    """What a pass over all rows found."""

    columns: Columns
    reader: BlockReader
    statistics: ItemStatistics
    weight_scale: tuple[float, float] | None
    held_out: Choices | None


def _scan(
    blocks: SetBlocks,
    roles: Roles,
    columns: Columns,
    train: np.ndarray,
    held_out: np.ndarray,
    *,
    verbose: bool,
    repair: bool,
) -> _Scan:
    """Read all rows once, and again if columns are not what the sample showed or need float64.

    Args:
        blocks: The table.
        roles: Its columns that are not features.
        columns: Its features.
        train: The training sets.
        held_out: The validation sets.
        verbose: Whether to show how far it is.
        repair: Whether the columns may be corrected.
    """
    with showing("computing means and spreads", verbose):
        dtype = torch.float32
        check: Float32LossCheck | None = Float32LossCheck(columns.width)
        while True:
            surprises, broken = Surprises(), set[str]()
            reader = BlockReader(blocks, roles, _checked(columns, surprises, check), dtype)
            scan = _scan_once(reader, columns, train, held_out, broken)
            better = _repaired(columns, surprises, broken) if repair else columns
            if better != columns:
                columns = better
                check = None if check is None else Float32LossCheck(columns.width)
            elif check is not None and check.needs_float64:
                dtype, check = torch.float64, None
            else:
                plain = BlockReader(blocks, roles, columns.reader(), dtype)
                return replace(scan, columns=columns, reader=plain)


def _checked(columns: Columns, surprises: Surprises, check: Float32LossCheck | None) -> Any:
    """Return a reader of items that updates one check with all chunks."""
    inner = columns.reader(surprises)
    return inner._replace(read=lambda chunk, dtype, _: inner.read(chunk, dtype, check))


def _repaired(columns: Columns, surprises: Surprises, broken: set[str]) -> Columns:
    """Return the columns with flags for gaps that the sample did not have, and without facts that vary in a set."""
    changed = []
    for column in columns.columns:
        changes: dict[str, Any] = {"context": column.context and column.name not in broken}
        if column.name in surprises.gaps:
            changes["flag"] = True
        changed.append(replace(column, **changes))
    return type(columns)(tuple(changed))


def _scan_once(
    reader: BlockReader, columns: Columns, train: np.ndarray, held_out: np.ndarray, broken: set[str]
) -> _Scan:
    blocks, relative = reader.blocks, RelativeFeatures(columns.parts)
    statistics: ItemStatistics | None = None
    kept: list[Choices] = []
    largest, total, count = 0.0, 0.0, 0
    with slow_bar(blocks.table.rows, "rows") as progress:
        for block, choices in enumerate(prefetched(map(reader.read, range(len(blocks))))):
            first, end = blocks.bounds[block : block + 2]
            own, others = (sets[slice(*np.searchsorted(sets, [first, end]))] - first for sets in (train, held_out))
            if len(others):
                kept.append(take_sets(choices, others))
            if choices.sample_weight is not None:
                weights = choices.sample_weight.double()
                largest, total = max(largest, float(weights.max())), total + float(weights.sum())
                count += len(weights)
            if len(own):
                part = take_sets(choices, own).sets
                _find_varying(columns, part, broken)
                found = ItemStatistics.of(part, relative)
                statistics = found if statistics is None else statistics.plus(found)
            progress.update(int(blocks.index.starts[end]))
    if statistics is None:
        raise DataError("there is nothing to learn from: the training sets hold no items")
    if count and not largest > 0:
        raise DataError(f"{parameter('weight')} must have at least one positive number")
    scale = (largest, total / largest / count) if count else None
    return _Scan(columns, reader, statistics, scale, join_sets(kept) if kept else None)


def _find_varying(columns: Columns, sets: Any, broken: set[str]) -> None:
    """Note the columns that were taken for facts of a set, and have several values in one."""
    inside = sets.layout.ids[1:] == sets.layout.ids[:-1]
    start = 0
    for column in columns.columns:
        if column.context and column.name not in broken:
            values = sets.values[:, start : start + column.width]
            if bool(((values[1:] != values[:-1]).any(1) & inside).any()):
                broken.add(column.name)
        start += column.width
