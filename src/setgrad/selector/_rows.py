"""Rows in any order, with the group of each and whether it was chosen: what scikit-learn passes to estimators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError, OptionError, ShapeError, parameter
from setgrad.sets import Choices, Sets
from setgrad.sets._sets import as_tensor

if TYPE_CHECKING:
    from setgrad.columns._arguments import TableArguments
    from setgrad.sets._sources import TableSource

_NEEDS_GROUPS = (
    f"one y for each row needs the set of each row too: pass {parameter('groups')}, or {parameter('set_id')}, a column "
    "of a frame. Metadata routing of scikit-learn passes them on to methods that ask for them, as by "
    "set_fit_request(groups=True) and set_score_request(groups=True)"
)


@final
@dataclass(frozen=True, eq=False)
class GroupedRows:
    """Rows of an array as sets.

    Attributes:
        sets: The sets, in the order of their first rows.
        order: The row of each item of `sets.values`.
    """

    sets: Sets
    order: np.ndarray

    @staticmethod
    def of(rows: Any, groups: Any) -> GroupedRows:
        """Return the sets of an array `(rows, d)` with the group of each row.

        Raises:
            DataError: If there is no array, or a group is missing.
            ShapeError: If there is not one group for each row.
        """
        if isinstance(rows, Sets | Choices):
            raise OptionError(f"{parameter('groups')} go with an array or a frame of rows; sets have theirs already")
        try:
            items = as_tensor(rows)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{parameter('groups')} go with one array (rows, d), or a frame: {error}") from None
        if items.dim() < 2:
            raise ShapeError(f"{parameter('groups')} go with one array (rows, d), not with shape {tuple(items.shape)}")
        order, lengths = _gather(as_groups(groups, len(items)))
        return GroupedRows(Sets.from_lengths(items[torch.as_tensor(order)], lengths), order)


def as_groups(groups: Any, rows: int) -> np.ndarray:
    """Return the number of the group of each row, counted from 0 in the order of their first rows.

    Raises:
        DataError: If a group is missing.
        ShapeError: If there is not one group for each row.
    """
    labels = _to_numpy(groups, "groups", rows)
    try:
        is_missing = labels.dtype.kind == "f" and np.isnan(labels).any()
        _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    except TypeError:
        is_missing = True
    if is_missing:
        raise DataError(f"{parameter('groups')} must name the group of every row: numbers, or texts, none missing")
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[codes]


def as_chosen(y: Any, rows: int) -> np.ndarray:
    """Return whether each row was chosen.

    Raises:
        DataError: If values are neither booleans nor 0 and 1.
        ShapeError: If there is not one for each row.
    """
    values = _to_numpy(y, "y", rows)
    if values.dtype == object:
        # Booleans of nullable columns.
        values = np.array([int(value) if isinstance(value, bool | int | np.bool_) else -1 for value in values.tolist()])
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise DataError("y must hold one boolean for each row, or 0 and 1: whether it was chosen")
    return values.astype(bool)


def group_choices(rows: Any, y: Any, groups: Any, sample_weight: Any) -> tuple[Sets, Tensor, Any]:
    """Return the sets of an array of rows, whether each item was chosen, and the weights of items or of sets.

    Raises:
        DataError: If the data cannot be used.
        ShapeError: If shapes do not fit together.
    """
    grouped = GroupedRows.of(rows, groups)
    order = grouped.order
    if y is None:
        raise OptionError("pass y too: whether each row was chosen")
    if sample_weight is not None:
        weights = np.asarray(sample_weight)
        sample_weight = weights[order] if weights.shape == order.shape else weights
    return grouped.sets, torch.from_numpy(as_chosen(y, len(order))[order]), sample_weight


def check_has_groups(rows: Any, y: Any) -> None:
    """Raise an OptionError if these are rows with one y for each, and not sets with subsets."""
    is_frame = hasattr(rows, "__arrow_c_stream__")
    is_rows = getattr(rows, "ndim", 0) == 2 and rows.shape[1] > 1 and not isinstance(rows, Sets) and not is_frame
    is_one_each = getattr(y, "ndim", 0) == 1 and len(y) == len(rows) and "object" not in str(y.dtype)
    if is_rows and is_one_each:
        raise OptionError(_NEEDS_GROUPS)


def add_rows(source: TableSource, columns: Mapping[str, Any]) -> tuple[TableSource, dict[str, str]]:
    """Return a table with more columns, and the names that they have there.

    Args:
        source: The table.
        columns: "groups", "y" and weights, one value for each row.

    Raises:
        DataError: If a value cannot be used.
        ShapeError: If there is not one value for each row.
    """
    import pyarrow as pa

    from setgrad.sets._sources import with_columns

    first = source.schema.names[:1]
    rows = sum(batch.num_rows for batch in source.read_chunks(first))
    arrays, names = {}, {}
    for role, values in columns.items():
        name = role
        while name in source.schema.names:
            name += "_"
        names[role] = name
        reader = {"groups": as_groups, "y": as_chosen}.get(role)
        arrays[name] = pa.array(_to_numpy(values, role, rows) if reader is None else reader(values, rows))
    return with_columns(source, arrays), names


def add_choices(
    table: Any, y: Any, groups: Any, sample_weight: Any, arguments: TableArguments
) -> tuple[TableSource, TableArguments, tuple[str, ...]]:
    """Return a table with what was passed beside it as columns, their names as arguments, and their names.

    Raises:
        DataError: If the data cannot be used.
        OptionError: If something is missing, or there twice.
        ShapeError: If there is not one value for each row.
    """
    from setgrad.sets._sources import open_table

    if y is None:
        raise OptionError(f"pass y, whether each row was chosen, or name its column: {parameter('chosen')}")
    if arguments.chosen is not None:
        raise OptionError(f"y and {parameter('chosen')} both tell what was chosen; use one of them")
    if groups is None and arguments.set_id is None:
        raise OptionError(_NEEDS_GROUPS)
    if groups is not None and arguments.set_id is not None:
        raise OptionError(
            f"{parameter('groups')} and {parameter('set_id')} both tell the set of a row; use one of them"
        )
    if sample_weight is not None and arguments.weight is not None:
        raise OptionError(f"{parameter('sample_weight')} and {parameter('weight')} are both weights; use one of them")
    passed = {"y": y, "groups": groups, "sample_weight": sample_weight}
    source, names = add_rows(open_table(table), {role: values for role, values in passed.items() if values is not None})
    named = replace(
        arguments,
        chosen=names["y"],
        set_id=names.get("groups", arguments.set_id),
        weight=names.get("sample_weight", arguments.weight),
    )
    return source, named, tuple(names.values())


def _to_numpy(values: Any, name: str, rows: int) -> np.ndarray:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != (rows,):
        raise ShapeError(f"{parameter(name)} has shape {array.shape}; pass one value for each of the {rows} rows")
    return array


def _gather(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows with those of a group together, and the number of rows of each group."""
    return np.argsort(codes, kind="stable"), np.bincount(codes)
