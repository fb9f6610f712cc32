"""Tables at `fit`: choices read from a data frame or a file, and what was understood of it.

PyArrow is imported where a table is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, final

import numpy as np

from setgrad.columns._arguments import TableArguments
from setgrad.columns._understand import LearningTable
from setgrad.errors import OptionError, parameter
from setgrad.selector._rows import check_has_groups
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Choices, Sets, Table

if TYPE_CHECKING:
    from setgrad.columns import TableDescription
    from setgrad.columns._columns import Columns
    from setgrad.sets._sources import TableSource


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
        source: Its rows in memory, in the order of the choices, if they were asked for.
    """

    choices: Choices
    schema: TableSchema
    description: TableDescription | None
    seed: int
    source: TableSource | None = None


def read_to_fit(
    table: Any,
    arguments: TableArguments,
    split: Callable[[np.ndarray], np.ndarray],
    *,
    seed: int,
    fitted: Columns | None = None,
    added: Collection[str] = (),
    keep_rows: bool = False,
) -> FitTable:
    """Read the table to fit on, and fit its columns to the training rows.

    Columns that are not used and what looks wrong are named in warnings.

    Args:
        table: The table.
        arguments: The names of its columns.
        split: Returns whether each set is trained on, from the sizes of the sets.
        seed: The seed of the fit.
        fitted: Columns of the model that training starts from; None to fit them to the table.
        added: Columns that `add_rows` gave to the table; new tables do not have them.
        keep_rows: Whether the result has the rows too.

    Raises:
        DataError: If the table cannot be read.
        OptionError: If a column is not named.
    """
    from setgrad.sets._read import read_rows

    opened = LearningTable.open(table, arguments, may_be_apart=bool(added))
    roles, description = opened.roles, None
    choices: Table | Choices
    if fitted is None:
        found, empty = opened.understand(split)
        fitted, description = found.columns, found.description
        notes = list_warnings(description)
        items = Sets.from_lengths(fitted.items(found.encoded), empty.sets.layout.host_lengths)
        choices = replace(empty, sets=items, features=list(fitted.names))
    else:
        opened.choice.check_fitted(fitted)
        notes = list(opened.notes)
        choices = read_rows(opened.source, roles, fitted.reader(), None, notes=notes)
    for text in notes:
        warnings.warn(f"{opened.name}: {text}", UserWarning, stacklevel=4)
    assert isinstance(choices, Choices)
    set_id, item_id, chosen = (None if name in added else name for name in (roles.set_id, roles.item_id, roles.chosen))
    dtype = TableSchema.dtype_name(choices.sets.dtype)
    schema = TableSchema(set_id, fitted.names, item_id, chosen, dtype, fitted)
    return FitTable(choices, schema, description, seed, opened.source if keep_rows else None)


def list_warnings(description: TableDescription) -> list[str]:
    """Return what to warn about: columns that are not used, and what looks wrong."""
    texts = list(description.warnings)
    if description.unused:
        unused = ", ".join(f"{column.name} ({column.use})" for column in description.unused)
        texts.insert(0, f"columns that are not used: {unused}; name their kinds to use them, or ignore them")
    return texts


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
    check_has_groups(sets, subsets)
    if isinstance(sets, Choices):
        if subsets is not None:
            raise OptionError("choices hold the subsets too; leave out the second argument")
        return sets.sets, sets.subsets, sets.sample_weight if sample_weight is None else sample_weight
    if subsets is None:
        raise OptionError("pass the subsets that were chosen from the sets: fit(sets, subsets)")
    return sets, subsets, sample_weight
