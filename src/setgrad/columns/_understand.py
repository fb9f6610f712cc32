"""A table opened to learn from, and what its columns are.

PyArrow is imported where a table is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from setgrad.columns._arguments import TableArguments
from setgrad.columns._describe import TableDescription
from setgrad.errors import DataError
from setgrad.sets import Choices

if TYPE_CHECKING:
    from setgrad.columns._fit import ColumnChoice, Understood
    from setgrad.sets import Table
    from setgrad.sets._read import Roles
    from setgrad.sets._sources import TableSource


@final
@dataclass(frozen=True, eq=False)
class LearningTable:
    """A table to learn from, in memory, the rows of each set adjacent.

    Attributes:
        name: What the user calls it.
        source: Its rows.
        roles: Its columns that are not features.
        choice: What the user says about the others.
        notes: What to tell about it: that the rows of a set were apart.
    """

    name: str
    source: TableSource
    roles: Roles
    choice: ColumnChoice
    notes: tuple[str, ...]

    @staticmethod
    def open(
        table: Any, arguments: TableArguments, *, chosen: bool = True, may_be_apart: bool = False
    ) -> LearningTable:
        """Read a table.

        Args:
            table: The table.
            arguments: The names of its columns.
            chosen: Whether the column of the choices must be named.
            may_be_apart: Whether it is usual that the rows of a set are apart.

        Raises:
            DataError: If the table cannot be read, or columns do not exist; the message has all of these.
            OptionError: If a column is not named.
        """
        from setgrad.sets._columns import check_names, check_roles
        from setgrad.sets._sources import gather_sets, load_rows, open_table

        choice, roles, source = arguments.choice(), arguments.roles(chosen=chosen), open_table(table)
        # An id may be a feature too, if a vector is to be learned for it.
        features = [name for name in choice.named if not (name == roles.item_id and name in choice.embed)]
        check_roles(source.name, source.schema, roles._asdict(), features)
        check_names(source.name, source.schema, source.schema.names)
        loaded = load_rows(source)
        try:
            gathered, order = gather_sets(loaded, roles.set_id)
        except DataError:
            # An id is missing. It is told together with all other faults.
            gathered, order = loaded, None
        notes = () if order is None or may_be_apart else (describe_apart(roles.set_id),)
        return LearningTable(source.name, gathered, roles, choice, notes)

    def understand(self, split: Callable[[np.ndarray], np.ndarray]) -> tuple[Understood, Table | Choices]:
        """Return the columns, fitted to the training rows, and the sets, whose items have no numbers yet.

        Args:
            split: Returns whether each set is trained on, from the sizes of the sets.

        Raises:
            DataError: If ids or choices cannot be read, no column can be used, or values cannot be read. The message
                has all faults.
        """
        from setgrad.columns._fit import TrainingRows, fit_columns
        from setgrad.sets._faults import Faults
        from setgrad.sets._read import ItemReader, read_rows

        faults, notes = Faults(), list(self.notes)
        empty, rows = None, None
        with faults.collect():
            nothing = ItemReader.nothing(self.roles.set_id)
            empty = read_rows(self.source, self.roles, nothing, torch.float64, notes=notes)
            lengths = empty.sets.layout.host_lengths
            chosen = empty.subsets.values.numpy() if isinstance(empty, Choices) else None
            rows = TrainingRows(lengths, split(lengths), chosen)
        # Without sets, the columns are read as one, to find what is wrong with them too.
        found = fit_columns(self.source, self.roles, self.choice, rows or TrainingRows.of_one(self.source), faults)
        assert empty is not None
        description = replace(found.description, name=self.name, warnings=(*notes, *found.description.warnings))
        return found._replace(description=description), empty


def describe_apart(set_id: str) -> str:
    """Return what to say about a table in which the rows of a set are not adjacent."""
    return f"rows with the same {set_id!r} are apart; they are taken together as one set"


def describe(
    table: Any,
    *,
    set_id: str,
    chosen: str | None = None,
    item_id: str | None = None,
    features: Iterable[str] | None = None,
    weight: str | None = None,
    columns: Mapping[str, str] | None = None,
    embed: Iterable[str] = (),
) -> TableDescription:
    """Return what `SubsetSelector.fit` would understand of a table, without training.

    Args:
        table: A data frame of pandas, polars or Arrow, the path of a file or a folder, or several paths.
        set_id: Column with the set of a row.
        chosen: Column that says whether the item was chosen, if there is one.
        item_id: Column with the id of the item.
        features: Columns with the features of an item; None for all that are understood and have no other role.
        weight: Column with the weight of the row in the loss.
        columns: Kinds of columns that differ from those that are found: "number", "boolean", "category", "id", "date",
            "text", "vector", or "ignore".
        embed: Columns of ids to learn a vector of each id for.

    Returns:
        Each column with its kind, its gaps and its use, and what looks wrong. `print` shows it as a table.

    Raises:
        DataError: If the table cannot be read or no column can be used. The message has all faults of ids, choices and
            columns.
        OptionError: If `set_id` is not the name of a column, or a kind is unknown.

    Examples:
        >>> import pyarrow
        >>> rows = {"basket": [1, 1, 2, 2], "brand": ["a", "b", "a", "b"], "price": [1.5, 2.5, 0.5, None]}
        >>> description = describe(pyarrow.table(rows), set_id="basket")
        >>> [(column.name, column.kind, column.missing) for column in description.columns]
        [('basket', 'set_id', 0), ('brand', 'category', 0), ('price', 'number', 1)]
    """
    arguments = TableArguments(set_id, chosen, item_id, features, weight, columns, embed)
    opened = LearningTable.open(table, arguments, chosen=False)
    return opened.understand(lambda lengths: np.ones(len(lengths), dtype=bool))[0].description
