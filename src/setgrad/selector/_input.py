"""What a fitted selector is asked about: sets, a table, or rows with groups, and the form in which it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch

from setgrad.errors import OptionError, parameter
from setgrad.selector._fitted_table import FittedTable
from setgrad.selector._rows import GroupedRows, as_chosen
from setgrad.selector._table_input import is_table
from setgrad.selector._table_schema import TableSchema
from setgrad.sets import Choices, Sets, Table, as_subsets


@final
@dataclass(frozen=True, eq=False)
class Input:
    """Sets, and where they come from.

    Attributes:
        sets: The sets, or anything that `as_sets` takes.
        subsets: The chosen subsets, if the sets came with them.
        order: The row of the user of each item; None if the items are in their order.
        answers_rows: Whether results are arrays with one value for each row.
        table: The table, if it was one.
        read: What was read from it.
    """

    sets: Any
    subsets: Any = None
    order: np.ndarray | None = None
    answers_rows: bool = False
    table: FittedTable | None = None
    read: Table | Choices | None = None

    @staticmethod
    def of(data: Any, schema: TableSchema | None, *, groups: Any = None, chosen: bool = False) -> Input:
        """Return what was passed in place of sets.

        Args:
            data: Sets, choices, a table, or an array of rows.
            schema: The columns of the table that the selector was fitted on.
            groups: The set of each row.
            chosen: Whether the choices are wanted that a table has.

        Raises:
            DataError: If a table or rows cannot be read.
            OptionError: If the table is not understood.
            ShapeError: If there is not one group for each row.
        """
        if is_table(data):
            table = FittedTable.of(data, schema, groups=groups, chosen=chosen)
            # After fit(X, y), where no column told what was chosen, the answers are arrays like y.
            answers_rows = groups is not None or schema is None or schema.chosen is None
            read = table.read_choices() if chosen else table.read_sets()
            return Input.of_table(table, read, answers_rows=answers_rows)
        if groups is not None:
            rows = GroupedRows.of(data, groups)
            return Input(rows.sets, None, rows.order, True)
        if isinstance(data, Choices) and chosen:
            return Input(data.sets, data.subsets)
        return Input(data)

    @staticmethod
    def of_table(table: FittedTable, read: Table | Choices, *, answers_rows: bool = False) -> Input:
        """Return what was read from a table, with the chosen subsets if it was asked for them."""
        return Input(read.sets, getattr(read, "subsets", None), table.order, answers_rows, table, read)

    def with_sets(self, sets: Sets) -> Input:
        """Return the same with sets that were checked."""
        return replace(self, sets=sets)

    def masks(self, given: Any, excluded: Any = None) -> tuple[Any, Any]:
        """Return known items: columns that texts name as masks, one value for each row in the order of the items.

        Raises:
            DataError: If a column cannot be read.
            OptionError: If a text names a column, but there is no table.
        """
        known = (self._in_order(given), self._in_order(excluded))
        if self.table is not None:
            return self.table.read_masks(*known)
        if any(isinstance(part, str) for part in known):
            raise OptionError(f"{parameter('given')} names a column of a table, but no table was passed; pass a mask")
        return known

    def chosen(self, subsets: Any) -> Sets:
        """Return the chosen subsets: those that were passed, else those that the sets came with."""
        if subsets is None:
            return as_subsets(self.subsets, self.sets)
        if self.answers_rows:
            rows = as_chosen(subsets, self.sets.layout.total)
            return as_subsets(torch.from_numpy(rows if self.order is None else rows[self.order]), self.sets)
        return as_subsets(self._in_order(subsets), self.sets)

    def answer(self, values: Sets) -> Any:
        """Return a result: a `Sets` as it is, or an array with one value for each row of the user."""
        if not self.answers_rows:
            return values
        array = values.values.detach().cpu().numpy()
        return array if self.order is None else array[np.argsort(self.order)]

    @property
    def set_ids(self) -> Sequence[Any]:
        """The ids of the sets; without any, numbers."""
        return range(len(self.sets)) if self.read is None or self.read.set_ids is None else self.read.set_ids

    def name_of(self, index: int) -> str:
        """Return the name of a set for messages."""
        return f"set {self.set_ids[index]!r}"

    def _in_order(self, mask: Any) -> Any:
        """Return a mask with one value for each row of the user in the order of the items; others as they are."""
        is_rows = self.order is not None and getattr(mask, "ndim", 0) == 1 and len(mask) == len(self.order)
        return np.asarray(mask)[self.order] if is_rows and "object" not in str(mask.dtype) else mask
