"""Tables at the estimator: sets and choices read from a data frame or a file, and picks as a data frame.

PyArrow is imported where a table is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from setgrad.errors import OptionError, parameter
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Choices, Sets, Table, segment_rank

if TYPE_CHECKING:
    import pyarrow as pa

    from setgrad.sets._sources import TableSource

# Columns of picks beside those of the ids.
_RESULTS = ("chosen", "probability", "rank")


def is_table(data: Any) -> bool:
    """Return whether data are a data frame, the path of a table, or several of these paths."""
    if isinstance(data, str | PathLike) or hasattr(data, "__arrow_c_stream__"):
        return True
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(part, str | PathLike) for part in data)


def as_choices(
    sets: Any, subsets: Any, sample_weight: Any, columns: dict[str, Any]
) -> tuple[Any, Any, Any, TableSchema | None]:
    """Return sets, subsets and weights of what was passed to fit and, of a table, its columns.

    Raises:
        OptionError: If the arguments do not go together.
    """
    named = [parameter(name) for name, value in columns.items() if value is not None]
    if is_table(sets):
        if subsets is not None:
            raise OptionError(
                f"a table holds the subsets too: leave them out, and name their column, {parameter('chosen')}"
            )
        if sample_weight is not None:
            raise OptionError(f"name the column of the weights, {parameter('weight')}, instead of sample_weight")
        choices, schema = read_to_fit(sets, **columns)
        return choices.sets, choices.subsets, choices.sample_weight, schema
    if named:
        raise OptionError(f"{' and '.join(named)} name columns of a table, but sets were passed; leave them out")
    if isinstance(sets, Choices):
        if subsets is not None:
            raise OptionError("choices hold the subsets too; leave out the second argument")
        return sets.sets, sets.subsets, sets.sample_weight if sample_weight is None else sample_weight, None
    if subsets is None:
        raise OptionError("pass the subsets that were chosen from the sets: fit(sets, subsets)")
    return sets, subsets, sample_weight, None


def read_to_fit(
    table: Any,
    *,
    set_id: str | None,
    chosen: str | None,
    item_id: str | None = None,
    features: Iterable[str] | None = None,
    weight: str | None = None,
) -> tuple[Choices, TableSchema]:
    """Read the table to fit on, and return its choices and its columns.

    Columns that are not used are named in a warning.

    Raises:
        DataError: If the table cannot be read.
        OptionError: If a column is not named.
    """
    from setgrad.sets import read_table
    from setgrad.sets._sources import open_table

    missing = [parameter(name) for name, value in (("set_id", set_id), ("chosen", chosen)) if value is None]
    if set_id is None or chosen is None:
        raise OptionError(
            f"a table needs {' and '.join(missing)}: the names of the columns with the set of a row, and with whether "
            "its item was chosen"
        )
    source = open_table(table)
    choices = read_table(source, set_id=set_id, features=features, chosen=chosen, item_id=item_id, weight=weight)
    # All features by name, so that the order of columns in another table does not matter.
    names, dtype = tuple(choices.features or ()), TableSchema.dtype_name(choices.sets.dtype)
    if features is None:
        used = {set_id, chosen, item_id, weight, *names}
        unused = [f"{field.name} ({field.type})" for field in source.schema if field.name not in used]
        if unused:
            warnings.warn(
                f"{source.name}: columns that are not numbers are not used: {', '.join(unused)}; encode them as "
                "numbers, or name the features",
                UserWarning,
                stacklevel=3,
            )
    return choices, TableSchema(set_id, names, item_id, chosen, dtype)


def open_fitted(table: Any, schema: TableSchema | None) -> tuple[TableSource, TableSchema]:
    """Return the source of a table to choose from, and its columns: those of the fit.

    Without the column of the item ids, items are numbered in their set.

    Raises:
        DataError: If it is no table.
        OptionError: If the selector was not fitted on a table.
    """
    from setgrad.sets._sources import open_table

    source = open_table(table)
    if schema is None:
        raise OptionError(
            f"the selector was not fitted on a table and does not know the columns of {source.name}; fit it with "
            f"{parameter('set_id')} and {parameter('chosen')}, or pass sets"
        )
    return source, schema if schema.item_id in source.schema.names else replace(schema, item_id=None)


def read_masks(table: Any, *columns: Any) -> tuple[Any, ...]:
    """Return columns of booleans that texts name, read in one pass, as masks of all items; other values as they are."""
    named = [column for column in columns if isinstance(column, str)]
    if not named:
        return columns
    from setgrad.sets._read import read_columns

    masks = read_columns(table, booleans=named).booleans
    return tuple(masks[column] if isinstance(column, str) else column for column in columns)


def read_sets(table: Any, schema: TableSchema) -> Table:
    """Read the sets of a table, whether or not it tells what was chosen."""
    from setgrad.sets import read_table

    return read_table(
        table, set_id=schema.set_id, features=schema.features, item_id=schema.item_id, dtype=schema.torch_dtype
    )


def read_choices(table: Any, schema: TableSchema) -> Choices:
    """Read the sets of a table and the chosen subsets.

    Raises:
        OptionError: If the column that tells what was chosen is not known.
    """
    from setgrad.sets import read_table

    if schema.chosen is None:
        raise OptionError(f"name the column that tells what was chosen: {parameter('chosen')}")
    return read_table(
        table,
        set_id=schema.set_id,
        features=schema.features,
        item_id=schema.item_id,
        chosen=schema.chosen,
        dtype=schema.torch_dtype,
    )


def picks_frame(
    table: Any,
    source: TableSource,
    schema: TableSchema,
    read: Table,
    *,
    picks: Sets,
    probability: Sets,
    carried: list[str],
) -> Any:
    """Return picks as a frame of the kind of the table, one row for each of its rows, in their order.

    Args:
        table: The table that was passed to `predict`.
        source: Its source.
        schema: Its columns.
        read: What was read from it.
        picks: Booleans, true for a chosen item.
        probability: The probability of each item.
        carried: Columns of the table to repeat, from `checked_carry`.
    """
    import pyarrow as pa

    item = schema.item_id or "item"
    # The ids of a file without types are those that were read, in their types.
    ids = [name for name in (schema.set_id, schema.item_id) if name is not None] if source.typed else []
    wanted = [*ids, *carried]
    rows = pa.Table.from_batches(source.read_chunks(wanted)) if wanted else {}
    columns = {name: rows[name] for name in wanted}
    if not source.typed or schema.item_id is None:
        columns[item] = pa.array(np.asarray(read.item_ids))
    if not source.typed:
        lengths = picks.layout.host_lengths
        columns[schema.set_id] = pa.array(read.set_ids or ()).take(
            pa.array(np.repeat(np.arange(len(lengths)), lengths))
        )
    # Chosen items first, then the others, both by probability.
    order = picks.values.double() * 2 + probability.values.double()
    columns["chosen"] = pa.array(picks.values.cpu().numpy())
    columns["probability"] = pa.array(probability.values.double().cpu().numpy())
    columns["rank"] = pa.array((segment_rank(order, picks) + 1).cpu().numpy())
    names = (schema.set_id, item, *_RESULTS, *carried)
    return _as_kind_of(table, pa.table({name: columns[name] for name in names}))


def checked_carry(carry: Any, source: TableSource, schema: TableSchema) -> list[str]:
    """Return the columns of a table to repeat in its picks, beside those of the ids.

    Raises:
        DataError: If there is no such column.
        OptionError: If one has the name of a column of the result.
    """
    from setgrad.sets._columns import resolve_features

    if isinstance(carry, str):
        raise OptionError(f"{parameter('carry')} must be a list of columns; write [{carry!r}]")
    names = [name for name in dict.fromkeys(carry) if name not in (schema.set_id, schema.item_id)]
    taken = [name for name in names if name in (*_RESULTS, "item")]
    if taken:
        raise OptionError(
            f"the result has a column {taken[0]!r} of its own; leave it out of {parameter('carry')}, or rename it in "
            "the table"
        )
    if names:
        resolve_features(source.name, source.schema, names, {})  # raises if there is no such column
    return names


def _as_kind_of(table: Any, result: pa.Table) -> Any:
    """Return an Arrow table as a frame of the library that another frame belongs to."""
    library = type(table).__module__.partition(".")[0]
    if library == "pandas":
        frame = result.to_pandas()
        # The rows are those of the table, so they keep its index.
        frame.index = table.index
        return frame
    if library == "polars":
        import polars

        return polars.from_arrow(result)
    return result
