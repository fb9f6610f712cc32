"""Which column of a table plays which role, checked before anything is read.

Imported only when a table is read, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from setgrad.errors import DataError, OptionError


def feature_columns(
    path: Path, schema: pa.Schema, named: Iterable[str] | None, others: dict[str, str | None]
) -> list[str]:
    """Check the role of every column, `others` being those by role that are no features; return the features."""
    if isinstance(named, str):
        raise OptionError(f"features must be a list of columns; write features=[{named!r}]")
    # A list first: an array has no truth value, and a generator can be gone through once only.
    named = None if named is None else list(named)
    taken = [(role, name) for role, name in others.items() if name is not None]
    taken += [("features", name) for name in named or []]
    missing = [name for _, name in taken if name not in schema.names]
    if missing:
        raise DataError(f"{path}: {_missing(missing, schema.names)}")
    seen: dict[str, str] = {}
    for role, name in taken:
        if name in seen:
            raise DataError(f"{path}: column {name!r} is asked for as {seen[name]} and as {role}; give it one role")
        seen[name] = role
    free = [field for field in schema if field.name not in seen]
    columns = [field.name for field in free if _is_numeric(field.type)] if named is None else named
    if not columns:
        kinds = ", ".join(f"{field.name} ({field.type})" for field in free) or "none"
        raise DataError(f"{path}: there is no numeric column for features; columns without a role: {kinds}")
    if "" in seen:
        raise DataError(f"{path}: the column for {seen['']} has no name; give it one in the table")
    index = next((name for name in columns if named is None and _is_index(name)), None)
    if index is not None:
        raise DataError(
            f"{path}: the column {index!r} looks like the index of a data frame, not like a feature; write the table "
            "without it (index=False in pandas), rename it, or name the features"
        )
    for name in dict.fromkeys([*seen, *columns]):
        if schema.names.count(name) > 1:
            raise DataError(f"{path}: {schema.names.count(name)} columns are called {name!r}; rename them")
    return columns


def _missing(missing: list[str], names: list[str]) -> str:
    parts = []
    for name in missing:
        close = get_close_matches(str(name), names, n=1)
        parts.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
    shown = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    return f"there is no column {' or '.join(parts)}; the columns are: {shown}"


def _is_index(name: str) -> bool:
    """Whether a column is called as pandas calls an index without a name, in CSV and in Parquet."""
    return name == "" or name.startswith("__index_level_")


def _is_numeric(kind: pa.DataType) -> bool:
    """Whether a column of this type is taken as a feature when none are named.

    A column without any value in sight has no type; it counts, so that it is refused by name and not lost in silence.
    """
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind))
