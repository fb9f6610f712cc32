"""Facts about the data, the options and the programs, as tables."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

import setgrad
from setgrad._text_table import TextTable, percent
from setgrad.columns._describe import ColumnSummary, TableDescription
from setgrad.inference import ImplicitMeanField
from setgrad.report._set_view import readable
from setgrad.selector import SubsetSelector
from setgrad.selector._tables import BACKWARD_SOLVERS, FORWARD_SOLVERS
from setgrad.sets import Choices, subset_sizes

# What the results may depend on.
_PROGRAMS = ("torch", "numpy", "pyarrow", "scikit-learn")


def data_table(choices: Choices, columns: Sequence[ColumnSummary]) -> TextTable:
    """Return the sizes of the sets and of the right subsets, and the gaps of the columns that the model reads."""
    lengths, sizes = choices.sets.layout.host_lengths, subset_sizes(choices.subsets)
    total = choices.sets.layout.total
    rows = [
        ("sets", str(len(lengths))),
        ("items", str(total)),
        ("items of a set: mean, least, most", _spread(lengths)),
        ("right items of a set: mean, least, most", _spread(sizes)),
        ("share of items that are right (%)", percent(float(sizes.sum()) / total if total else None)),
        ("sets with nothing right", str(int((sizes == 0).sum()))),
        ("numbers of an item", str(int(np.prod(choices.sets.item_shape)))),
    ]
    if columns:
        gaps, cells = sum(column.missing for column in columns), max(1, total * len(columns))
        rows += [
            ("columns that the model reads", str(len(columns))),
            ("gaps in them", f"{gaps} ({percent(gaps / cells)}\u00a0%)"),
        ]
    return TextTable("sets and items", ("fact", "value"), tuple(rows))


def columns_read(selector: SubsetSelector, table: TableDescription | None) -> tuple[ColumnSummary, ...]:
    """Return the columns of a table that the model reads; none if that is not known."""
    if table is None or selector.table_ is None:
        return ()
    return tuple(column for column in table.columns if column.name in selector.table_.features)


def column_table(table: TableDescription, read: Sequence[ColumnSummary]) -> TextTable:
    """Return one row for each column of the table."""
    rows = tuple(
        (readable(one.name), one.kind, str(one.missing), str(one.distinct), "yes" if one in read else "")
        for one in table.columns
    )
    return TextTable("columns", ("column", "kind", "gaps", "distinct", "read"), rows)


def options_table(selector: SubsetSelector) -> TextTable:
    """Return the value of each option that the fit used, and its default; "-" for what it did not need."""
    signature = inspect.signature(SubsetSelector).parameters
    options = {**selector.options_.get_params(), **_solver_options(selector)}
    rows = tuple(
        (name, "-" if value is None else _text(value), _text(signature[name].default))
        for name, value in options.items()
    )
    return TextTable("", ("option", "value in use", "default"), rows)


def _solver_options(selector: SubsetSelector) -> dict[str, Any]:
    """Return the options of the solver of the implicit method, which keeps them itself."""
    if selector.options_.method != "implicit":
        return {}
    solver = selector.model_.config.solver
    assert isinstance(solver, ImplicitMeanField)
    adjoints = {name: kind(solver.tol) for name, kind in BACKWARD_SOLVERS.items()}
    return {
        "forward": _name_of(solver.solver, FORWARD_SOLVERS),
        "backward": _name_of(solver.adjoint, adjoints),
        "tol": solver.tol,
    }


def _name_of(value: object, names: Mapping[str, object]) -> str:
    return next((name for name, other in names.items() if type(other) is type(value)), type(value).__name__)


def versions_table() -> TextTable:
    """Return the versions of the programs that wrote the page."""
    rows = [("setgrad", setgrad.__version__), ("Python", platform.python_version())]
    for name in _PROGRAMS:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return TextTable("", ("program", "version"), tuple(rows))


def _spread(numbers: np.ndarray) -> str:
    return f"{numbers.mean():.2f}, {int(numbers.min())}, {int(numbers.max())}"


def _text(value: object) -> str:
    return type(value).__name__ if hasattr(value, "forward") else str(value)
