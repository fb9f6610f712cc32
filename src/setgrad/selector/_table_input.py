"""Tables at the estimator: sets and choices read from a data frame or a file, and picks as a data frame.

PyArrow is imported where a table is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from setgrad.errors import OptionError, parameter
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Choices, Sets, Table, segment_rank

if TYPE_CHECKING:
    import pyarrow as pa

    from setgrad.columns._columns import Columns
    from setgrad.columns._describe import TableDescription
    from setgrad.columns._fit import ColumnChoice
    from setgrad.sets._read import Roles
    from setgrad.sets._sources import TableSource

# Columns of picks beside those of the ids.
_RESULTS = ("chosen", "probability", "rank")


def is_table(data: Any) -> bool:
    """Return whether data are a data frame, the path of a table, or several of these paths."""
    if isinstance(data, str | PathLike) or hasattr(data, "__arrow_c_stream__"):
        return True
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(part, str | PathLike) for part in data)


@final
@dataclass(frozen=True, eq=False)
class FitTable:
    """What `fit` reads from a table.

    Attributes:
        choices: Sets, subsets, ids and weights.
        schema: Its columns.
        description: What was understood of it; None if the columns of another model were used.
        seed: The seed of the fit, which the split into training and validation sets follows from.
    """

    choices: Choices
    schema: TableSchema
    description: TableDescription | None
    seed: int


@final
@dataclass(frozen=True, eq=False)
class TableArguments:
    """The arguments of `fit` that name columns of a table."""

    set_id: str | None = None
    chosen: str | None = None
    item_id: str | None = None
    features: Iterable[str] | None = None
    weight: str | None = None
    columns: Mapping[str, str] | None = None
    embed: Iterable[str] = ()

    def names(self) -> list[str]:
        """Return the names of the arguments that were given."""
        return [part.name for part in fields(self) if getattr(self, part.name) not in (None, ())]

    def check_no_table(self) -> None:
        """Raise an OptionError if one is given, because there is no table."""
        if self.names():
            listed = " and ".join(map(parameter, self.names()))
            raise OptionError(f"{listed} name columns of a table, but sets were passed; leave them out")

    def roles(self, *, chosen: bool = True) -> Roles:
        """Return the columns that are not features.

        Args:
            chosen: Whether the column of the choices must be named.

        Raises:
            OptionError: If the column of the sets or of the choices is not named.
        """
        from setgrad.sets._read import Roles

        needed = ("set_id", "chosen") if chosen else ("set_id",)
        missing = [parameter(name) for name in needed if getattr(self, name) is None]
        if self.set_id is None or missing:
            raise OptionError(
                f"a table needs {' and '.join(missing)}: the names of the columns with the set of a row, and with "
                "whether its item was chosen"
            )
        for name in ("set_id", "chosen", "item_id", "weight"):
            if not isinstance(getattr(self, name), str | None):
                raise OptionError(f"{parameter(name)} must be the name of a column, not {getattr(self, name)!r}")
        return Roles(self.set_id, self.chosen, self.item_id, self.weight)


def read_to_fit(
    table: Any,
    arguments: TableArguments,
    split: Callable[[np.ndarray], np.ndarray],
    *,
    seed: int,
    fitted: Columns | None = None,
) -> FitTable:
    """Read the table to fit on, and fit its columns to the training rows.

    Columns that are not used and what looks wrong are named in warnings.

    Args:
        table: The table.
        arguments: The names of its columns.
        split: Returns whether each set is trained on, from the sizes of the sets.
        seed: The seed of the fit.
        fitted: Columns of the model that training starts from; None to fit them to the table.

    Raises:
        DataError: If the table cannot be read.
        OptionError: If a column is not named.
    """
    from setgrad.columns._fit import ColumnChoice, TrainingRows, fit_columns
    from setgrad.sets._read import ItemReader, read_rows

    choice = ColumnChoice.of(arguments.features, arguments.columns, arguments.embed)
    source, roles = _open_to_fit(table, arguments, choice)
    description = None
    if fitted is None:
        empty = read_rows(source, roles, ItemReader.nothing(roles.set_id), torch.float32)
        lengths = empty.sets.layout.host_lengths
        chosen = empty.subsets.values.numpy() if isinstance(empty, Choices) else None
        fitted, description = fit_columns(source, roles, choice, TrainingRows(lengths, split(lengths), chosen))
        warn_about(description)
    else:
        choice.check_fitted(fitted)
    choices = read_rows(source, roles, fitted.reader(), None)
    assert isinstance(choices, Choices)
    dtype = TableSchema.dtype_name(choices.sets.dtype)
    schema = TableSchema(roles.set_id, fitted.names, roles.item_id, roles.chosen, dtype, fitted)
    return FitTable(choices, schema, description, seed)


def check_no_subsets(subsets: Any, sample_weight: Any) -> None:
    """Raise an OptionError if what a table holds was passed beside it."""
    if subsets is not None:
        raise OptionError(
            f"a table holds the subsets too: leave them out, and name their column, {parameter('chosen')}"
        )
    if sample_weight is not None:
        raise OptionError(f"name the column of the weights, {parameter('weight')}, instead of sample_weight")


def as_choices(sets: Any, subsets: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Return sets, subsets and weights of what was passed to fit in place of a table.

    Raises:
        OptionError: If the subsets are missing, or there are two.
    """
    if isinstance(sets, Choices):
        if subsets is not None:
            raise OptionError("choices hold the subsets too; leave out the second argument")
        return sets.sets, sets.subsets, sets.sample_weight if sample_weight is None else sample_weight
    if subsets is None:
        raise OptionError("pass the subsets that were chosen from the sets: fit(sets, subsets)")
    return sets, subsets, sample_weight


def _open_to_fit(table: Any, arguments: TableArguments, choice: ColumnChoice) -> tuple[TableSource, Roles]:
    """Return the rows of a table in memory, those of a set adjacent, and its columns that are not features."""
    from setgrad.sets._columns import check_names, check_roles
    from setgrad.sets._sources import gather_sets, load_rows, open_table

    roles, source = arguments.roles(), open_table(table)
    # An id may be a feature too, if a vector is to be learned for it.
    features = [name for name in choice.named if not (name == roles.item_id and name in choice.embed)]
    check_roles(source.name, source.schema, roles._asdict(), features)
    check_names(source.name, source.schema, source.schema.names)
    source, order = gather_sets(load_rows(source), roles.set_id)
    if order is not None:
        warn_apart(source, roles.set_id)
    return source, roles


def warn_apart(source: TableSource, set_id: str) -> None:
    """Warn that the rows of a set were not adjacent."""
    warnings.warn(
        f"{source.name}: rows with the same {set_id!r} are apart; they are taken together as one set",
        UserWarning,
        stacklevel=5,
    )


def warn_about(description: TableDescription) -> None:
    """Warn about columns that are not used, and about what looks wrong."""
    texts = list(description.warnings)
    if description.unused:
        unused = ", ".join(f"{column.name} ({column.use})" for column in description.unused)
        texts.insert(0, f"columns that are not used: {unused}; name their kinds to use them, or ignore them")
    for text in texts:
        warnings.warn(f"{description.name}: {text}", UserWarning, stacklevel=5)


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
    read = _read(table, schema, None)
    assert isinstance(read, Table)
    return read


def read_choices(table: Any, schema: TableSchema) -> Choices:
    """Read the sets of a table and the chosen subsets.

    Raises:
        OptionError: If the column that tells what was chosen is not known.
    """
    if schema.chosen is None:
        raise OptionError(f"name the column that tells what was chosen: {parameter('chosen')}")
    read = _read(table, schema, schema.chosen)
    assert isinstance(read, Choices)
    return read


def _read(table: Any, schema: TableSchema, chosen: str | None) -> Table | Choices:
    from setgrad.sets import read_table
    from setgrad.sets._read import Roles, read_rows
    from setgrad.sets._sources import open_table

    set_id, item_id, dtype = schema.set_id, schema.item_id, schema.torch_dtype
    if schema.columns is None:
        features = schema.features
        return read_table(table, set_id=set_id, features=features, chosen=chosen, item_id=item_id, dtype=dtype)
    from setgrad.columns._surprises import Surprises
    from setgrad.sets._columns import check_names

    source, roles = open_table(table), Roles(set_id, chosen, item_id)
    source.check_columns([*(name for name in roles if name is not None), *schema.columns.names])
    check_names(source.name, source.schema, [*(name for name in roles if name is not None), *schema.columns.names])
    surprises = Surprises()
    read = read_rows(source, roles, schema.columns.reader(surprises), dtype)
    for text in surprises.warnings():
        warnings.warn(f"{source.name}: {text}", UserWarning, stacklevel=5)
    return read


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
