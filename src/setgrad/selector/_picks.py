"""Picks as a table: one row for each row of the table that was chosen from, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from setgrad.errors import OptionError, parameter
from setgrad.selector._fitted_table import FittedTable
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Sets, Table, segment_rank

if TYPE_CHECKING:
    import pyarrow as pa

# Columns of picks beside those of the ids.
RESULTS = ("chosen", "probability", "rank")


def picks_table(table: FittedTable, read: Table, *, picks: Sets, probability: Sets, carried: list[str]) -> pa.Table:
    """Return picks as an Arrow table, one row for each row of the user's table, in their order.

    Args:
        table: The table that was chosen from.
        read: What was read from it.
        picks: Booleans, true for a chosen item.
        probability: The probability of each item.
        carried: Columns of the table to repeat, from `check_carry`.
    """
    import pyarrow as pa

    from setgrad.sets._sources import take_rows

    source, set_id = table.source, table.set_id
    ids = [name for name in (set_id, table.schema.item_id) if name is not None]
    item = item_name(table)
    wanted = [*(ids if source.typed else []), *carried]
    rows = pa.Table.from_batches(source.read_chunks(wanted)) if wanted else {}
    columns = {name: rows[name] for name in wanted}
    if not source.typed:
        # The ids of a file without types are those that were read, in their types.
        lengths = picks.layout.host_lengths
        columns[set_id] = pa.array(read.set_ids or ()).take(pa.array(np.repeat(np.arange(len(lengths)), lengths)))
        columns |= {name: _in_type(columns[name], source.schema.field(name).type) for name in carried}
    if not source.typed or table.schema.item_id is None:
        columns[item] = pa.array(np.asarray(read.item_ids))
    # Chosen items first, then the others, both by probability.
    order = picks.values.double() * 2 + probability.values.double()
    columns["chosen"] = pa.array(picks.values.cpu().numpy())
    columns["probability"] = pa.array(probability.values.double().cpu().numpy())
    columns["rank"] = pa.array((segment_rank(order, picks) + 1).cpu().numpy())
    result = pa.table({name: columns[name] for name in (set_id, item, *RESULTS, *carried)})
    return result if table.order is None else take_rows(result, np.argsort(table.order))


def item_name(table: FittedTable) -> str:
    """Return the name of the column of the items in the picks."""
    return table.schema.item_id or ("item" if table.set_id != "item" else "item_number")


def check_ids(schema: TableSchema) -> None:
    """Raise an OptionError if an id has the name of a column that every table of picks has."""
    for role, name in (("set_id", schema.set_id), ("item_id", schema.item_id)):
        if name in RESULTS:
            raise OptionError(
                f"the table of picks has its own column {name!r}, so no id can have this name; rename the column in "
                f"the table and give its new name: {parameter(role)}"
            )


def check_carry(carry: Any, table: FittedTable) -> list[str]:
    """Return the columns of a table to repeat in its picks, beside those of the ids.

    Raises:
        DataError: If there is no such column; the message has all of these.
        OptionError: If one has the name of a column of the result.
    """
    if isinstance(carry, str):
        raise OptionError(f"{parameter('carry')} must be a list of columns; write [{carry!r}]")
    names = [name for name in dict.fromkeys(carry) if name not in (table.set_id, table.schema.item_id)]
    taken = [name for name in names if name in (*RESULTS, item_name(table))]
    if taken:
        raise OptionError(
            f"the result has a column {taken[0]!r} of its own; leave it out of {parameter('carry')}, or rename it in "
            "the table"
        )
    table.source.check_columns(names)
    return names


def as_kind_of(table: Any, result: pa.Table) -> Any:
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


def _in_type(texts: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """Return a column of texts in the type that it looks like, if no digit is lost."""
    import pyarrow as pa
    from pyarrow import types

    from setgrad.sets._ids import integers_if_lossless

    if types.is_integer(dtype):
        return integers_if_lossless(texts)
    try:
        return texts.cast(dtype) if types.is_floating(dtype) or types.is_boolean(dtype) else texts
    except pa.ArrowInvalid:
        return texts
