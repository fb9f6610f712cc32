"""Tables that a fitted selector reads: it knows their columns.

PyArrow is imported where a table is used.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from setgrad.columns._understand import describe_apart
from setgrad.errors import DataError, OptionError, parameter
from setgrad.selector._rows import add_rows
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Choices, Table

if TYPE_CHECKING:
    from setgrad.columns._surprises import Surprises
    from setgrad.sets._sources import TableSource


@final
@dataclass(frozen=True, eq=False)
class FittedTable:
    """A table whose columns are known, with the rows of each set adjacent.

    Attributes:
        source: Its rows.
        schema: Its columns.
        set_id: Its column with the set of a row.
        order: The rows of the user in this order; None if it is theirs.
        surprises: Counts what is new in it, for whoever reads it in parts; None to warn of it.
    """

    source: TableSource
    schema: TableSchema
    set_id: str
    order: np.ndarray | None
    surprises: Surprises | None = None

    @staticmethod
    def open(table: Any, schema: TableSchema, *, groups: Any = None, chosen: bool = False) -> FittedTable:
        """Open a table; a warning says so if the rows of a set are apart.

        Args:
            table: The table.
            schema: Its columns.
            groups: The set of each row, in place of a column.
            chosen: Whether it tells what was chosen.

        Raises:
            DataError: If it is no table, or columns are missing; the message has all of these.
            OptionError: If a column is not known.
        """
        from setgrad.sets._sources import gather_sets, open_table

        source, set_id = open_table(table), schema.set_id
        # Rows with one y for each come in any order.
        is_usual = groups is not None or schema.chosen is None
        if chosen and schema.chosen is None:
            raise OptionError(f"name the column that tells what was chosen: {parameter('chosen')}")
        if groups is not None:
            source, names = add_rows(source, {"groups": groups})
            set_id = names["groups"]
        if set_id is None:
            raise OptionError(
                f"the selector was fitted with {parameter('groups')}; pass the group of each row too. Tools that pass "
                "rows alone, as cross_val_predict of scikit-learn, need a column instead: fit with "
                f"{parameter('set_id')}"
            )
        schema = replace(schema, set_id=set_id, chosen=schema.chosen if chosen else None)
        named = (set_id, schema.item_id, schema.chosen, *schema.features)
        source.check_columns([name for name in named if name is not None])
        name = source.name
        try:
            source, order = gather_sets(source, set_id)
        except DataError:
            # An id is missing. It is told together with all other faults.
            order = None
        if order is not None and not is_usual:
            warnings.warn(f"{name}: {describe_apart(set_id)}", UserWarning, stacklevel=6)
        return FittedTable(source, schema, set_id, order)

    @staticmethod
    def of(table: Any, schema: TableSchema | None, *, groups: Any = None, chosen: bool = False) -> FittedTable:
        """Open a table for a selector; arguments and errors are those of `open`.

        Without the column of the item ids, items are numbered in their set.

        Raises:
            OptionError: If the selector was not fitted on a table.
        """
        from setgrad.sets._sources import open_table

        source = open_table(table)
        if schema is None:
            raise OptionError(
                f"the selector was not fitted on a table and does not know the columns of {source.name}; fit it with "
                f"{parameter('set_id')} and {parameter('chosen')}, or pass sets"
            )
        if schema.item_id not in source.schema.names:
            schema = replace(schema, item_id=None)
        return FittedTable.open(source, schema, groups=groups, chosen=chosen)

    def read_sets(self) -> Table:
        """Read the sets, whether or not the table tells what was chosen."""
        read = self._read(None)
        assert isinstance(read, Table)
        return read

    def read_choices(self) -> Choices:
        """Read the sets and the chosen subsets."""
        read = self._read(self.schema.chosen)
        assert isinstance(read, Choices)
        return read

    def read_masks(self, given: Any, excluded: Any) -> tuple[Any, Any]:
        """Return columns of booleans that texts name as masks of all items, read in one pass; others as they are."""
        named = [column for column in (given, excluded) if isinstance(column, str)]
        if not named:
            return given, excluded
        from setgrad.sets._read import read_columns

        masks = read_columns(self.source, booleans=named).booleans
        given, excluded = (masks[column] if isinstance(column, str) else column for column in (given, excluded))
        return given, excluded

    def _read(self, chosen: str | None) -> Table | Choices:
        from setgrad.columns._surprises import Surprises
        from setgrad.sets import read_table
        from setgrad.sets._columns import check_names
        from setgrad.sets._read import Roles, read_rows

        schema, dtype = self.schema, self.schema.torch_dtype
        if schema.columns is None:
            features, item_id = schema.features, schema.item_id
            return read_table(
                self.source, set_id=self.set_id, features=features, chosen=chosen, item_id=item_id, dtype=dtype
            )
        check_names(self.source.name, self.source.schema, list(schema.columns.names))
        surprises = self.surprises or Surprises()
        roles = Roles(self.set_id, chosen, schema.item_id)
        notes: list[str] = []
        read = read_rows(self.source, roles, schema.columns.reader(surprises), dtype, notes=notes)
        for text in (*notes, *(() if self.surprises else surprises.warnings())):
            warnings.warn(f"{self.source.name}: {text}", UserWarning, stacklevel=6)
        return read
