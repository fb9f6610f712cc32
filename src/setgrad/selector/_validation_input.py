"""Held-out sets as they are passed to `fit`: a table, sets and subsets, or rows with y and groups."""

from __future__ import annotations

from typing import Any

from setgrad.discrete import CombinatorialSolver
from setgrad.errors import OptionError, parameter
from setgrad.selector._fitted_table import FittedTable
from setgrad.selector._input import Input
from setgrad.selector._table_input import is_table
from setgrad.selector._table_schema import TableSchema
from setgrad.selector.constraints import Constraint
from setgrad.sets import Sets


def read_validation(validation: Any, schema: TableSchema | None) -> Any:
    """Return held-out sets, subsets and perhaps a constraint; what is neither a table nor rows stays as it is.

    Args:
        validation: A table, `(sets, subsets)`, or `(rows, y, groups)`; pairs and triples may have a constraint behind.
            The rows are an array or a table.
        schema: The columns of the table of the fit, if it was one.

    Raises:
        DataError: If a table or rows cannot be read.
        OptionError: If the table is not understood.
        ShapeError: If there is not one group or one y for each row.
    """
    if is_table(validation):
        if schema is not None and schema.chosen is None:
            rows = "(X, y, groups)" if schema.set_id is None else "(X, y)"
            raise OptionError(
                f"no column tells what was chosen, because y was passed; pass it too: {parameter('validation')}={rows}"
            )
        return (*FittedTable.of(validation, schema, chosen=True).read_choices(),)
    if not isinstance(validation, list | tuple) or len(validation) < 2:
        return validation
    sets, subsets, *rest = validation
    groups = rest.pop(0) if rest and not is_constraint(rest[0]) else None
    if isinstance(sets, Sets) or (groups is None and not is_table(sets)):
        return validation
    asked = Input.of(sets, schema, groups=groups)
    return (asked.sets, asked.chosen(subsets), *rest)


def is_constraint(value: Any) -> bool:
    """Return whether a value is a constraint, or a list of them."""
    parts = value if isinstance(value, list | tuple) and value else [value]
    return all(isinstance(part, Constraint | CombinatorialSolver) for part in parts)
