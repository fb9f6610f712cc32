"""The role of each column of a table, checked before any row is read.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from setgrad.errors import DataError, OptionError, parameter


def resolve_features(
    path: Path, schema: pa.Schema, features: Iterable[str] | None, roles: dict[str, str | None]
) -> list[str]:
    """Return the feature columns, after checking that every column exists once and has one role.

    Args:
        path: The table, for messages.
        schema: The columns of the table.
        features: The columns that the user named; if None, all numeric columns without a role.
        roles: The other columns by role (the name of a parameter of `read_table`); None for a role without a column.

    Raises:
        OptionError: If `features` is one text instead of a list.
        DataError: If a column is missing, unnamed, ambiguous or named in two roles, or there are no features.
    """
    if isinstance(features, str):
        raise OptionError(f"{parameter('features')} must be a list of columns; write [{features!r}]")
    # A list: an array has no truth value, and an iterator can be read only once.
    named = None if features is None else list(features)
    requested = [(role, name) for role, name in roles.items() if name is not None]
    requested += [("features", name) for name in named or []]
    counts = Counter(schema.names)
    missing = [name for _, name in requested if name not in counts]
    if missing:
        raise DataError(f"{path}: {_describe_missing(missing, schema.names)}")
    role_of: dict[str, str] = {}
    for role, name in requested:
        if name in role_of:
            both = f"{parameter(role_of[name])} and as {parameter(role)}"
            raise DataError(f"{path}: column {name!r} is used as {both}; use it once")
        role_of[name] = role
    free = [field for field in schema if field.name not in role_of]
    columns = [field.name for field in free if _is_numeric(field.type)] if named is None else named
    if not columns:
        kinds = ", ".join(f"{field.name} ({field.type})" for field in free) or "none"
        raise DataError(f"{path}: no numeric column for {parameter('features')}; columns without a role: {kinds}")
    if "" in role_of:
        raise DataError(f"{path}: the column for {parameter(role_of[''])} has no name; give it one in the table")
    index = next((name for name in columns if named is None and _is_index(name)), None)
    if index is not None:
        raise DataError(
            f"{path}: the column {index!r} looks like the index of a data frame, not like a feature; write the table "
            f"without it (index=False in pandas), rename it, or name the {parameter('features')}"
        )
    for name in dict.fromkeys([*role_of, *columns]):
        if counts[name] > 1:
            raise DataError(f"{path}: {counts[name]} columns are called {name!r}; rename them")
    return columns


def _describe_missing(missing: list[str], names: list[str]) -> str:
    parts = []
    for name in missing:
        close = get_close_matches(str(name), names, n=1)
        parts.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
    listed = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    return f"there is no column {' or '.join(parts)}; the columns are: {listed}"


def _is_index(name: str) -> bool:
    """Return whether a column has the name that pandas gives to an unnamed index, in CSV and in Parquet."""
    return name == "" or name.startswith("__index_level_")


def _is_numeric(dtype: pa.DataType) -> bool:
    """Return whether a column of this type is a feature when the user names none.

    A column without any value has the type null. It counts, so that the user gets an error that names it.
    """
    return bool(types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype) or types.is_null(dtype))
