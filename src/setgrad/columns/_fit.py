"""Columns fitted to a table: what each is, what it becomes, and what looks wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
from pyarrow import types

from setgrad._progress import slow_bar
from setgrad.columns._column import FittedColumn, TrainingColumn
from setgrad.columns._columns import Columns
from setgrad.columns._describe import LEFT_OUT, ColumnSummary, TableDescription
from setgrad.columns._encoded import Encoded
from setgrad.columns._guess import Guess, guess_kind, look_at
from setgrad.columns._kinds import IGNORE, KINDS
from setgrad.columns._suspicions import TableSuspicions
from setgrad.errors import DataError, OptionError, parameter, unknown_name
from setgrad.sets._columns import Column
from setgrad.sets._faults import Faults
from setgrad.sets._read import Roles
from setgrad.sets._sources import TableSource

# So many columns of numbers with one name and a running number are a vector.
_FEWEST_NUMBERED = 8
_NUMBERED = re.compile(r"(.*?)(\d+)")
# What each role is, for people.
_ROLES = {"set_id": "the set", "chosen": "what was chosen", "item_id": "the item", "weight": "weight in the loss"}


@final
@dataclass(frozen=True)
class ColumnChoice:
    """What the user says about columns.

    Attributes:
        features: The columns to use; None for all without a role.
        kinds: The kinds of columns, also "ignore".
        embed: Columns of ids to learn a vector of each value for.
    """

    features: tuple[str, ...] | None = None
    kinds: Mapping[str, str] | None = None
    embed: tuple[str, ...] = ()

    @staticmethod
    def of(features: Any, kinds: Any, embed: Any) -> ColumnChoice:
        """Return what arguments of `fit` say.

        Raises:
            OptionError: If they cannot be read.
        """
        if kinds is not None and not isinstance(kinds, Mapping):
            raise OptionError(f"{parameter('columns')} must map columns to kinds, as {{'brand': 'category'}}")
        for kind in (kinds or {}).values():
            if kind not in (*KINDS, IGNORE):
                raise unknown_name("kind of column", kind, [*KINDS, IGNORE])
        return ColumnChoice(
            None if features is None else _names("features", features), kinds, _names("embed", embed or ())
        )

    @property
    def named(self) -> list[str]:
        """All columns that the user names."""
        return list(dict.fromkeys([*(self.features or ()), *(self.kinds or {}), *self.embed]))

    @cached_property
    def kind_of(self) -> dict[str, str]:
        """The kinds that the user set, by column."""
        return {**(self.kinds or {}), **dict.fromkeys(self.embed, "id")}

    def check_fitted(self, fitted: Columns) -> None:
        """Check that columns of the model that training starts from are those that the user names.

        Raises:
            OptionError: If they are not, because its weights belong to its columns.
        """
        kinds = {source: column for column in fitted.columns for source in column.sources}
        differences = [
            f"{name} is {kind} here"
            for name, kind in self.kind_of.items()
            if (type(kinds[name]) is not KINDS.get(kind) if name in kinds else kind != IGNORE)
        ]
        wanted = set(fitted.names if self.features is None else (*self.features, *self.embed))
        differences += [f"{name} is missing there" for name in wanted - kinds.keys() - self.kind_of.keys()]
        differences += [f"{name} is left out here" for name in kinds if name not in wanted]
        if differences:
            raise OptionError(
                f"the selector in {parameter('start')} has other columns: {'; '.join(sorted(differences))}; leave them "
                "as they are there"
            )


def _names(argument: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise OptionError(f"{parameter(argument)} must be a list of columns; write [{names!r}]")
    return tuple(dict.fromkeys(names))


@final
@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The sets of a table, and which of its rows the columns are fitted to.

    Attributes:
        lengths: Number of rows of each set.
        training: Whether each set is trained on.
        chosen: Whether the item of each row was chosen; None if that is not known.
    """

    lengths: np.ndarray
    training: np.ndarray
    chosen: np.ndarray | None

    @staticmethod
    def of_one(source: TableSource) -> TrainingRows:
        """Return all rows of a table as one set."""
        rows = sum(batch.num_rows for batch in source.read_chunks(source.schema.names[:1]))
        return TrainingRows(np.array([rows]), np.ones(1, dtype=bool), None)


@final
class Understood(NamedTuple):
    """What was understood of a table.

    Attributes:
        columns: The columns that items have.
        description: What to show of it.
        encoded: The numbers of each of the columns.
    """

    columns: Columns
    description: TableDescription
    encoded: list[Encoded]


def fit_columns(
    source: TableSource, roles: Roles, choice: ColumnChoice, rows: TrainingRows, faults: Faults | None = None
) -> Understood:
    """Return the columns that items have, and what was understood of the table.

    Args:
        source: The table, in memory.
        roles: The columns that are not features.
        choice: What the user says about columns.
        rows: Its sets.
        faults: What is wrong with other columns, if something is.

    Raises:
        DataError: If no column can be used, or values cannot be read; the message has all faults.
    """
    names = _candidates(source, roles, choice)
    table = pa.Table.from_batches(source.read_chunks(source.schema.names))
    sets = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
    is_training = rows.training[sets]
    suspicions = TableSuspicions(rows.lengths, rows.chosen)
    fitted: list[FittedColumn] = []
    blocks: list[Encoded] = []
    summaries = [_role_summary(table, source, role, name) for role, name in roles._asdict().items() if name is not None]
    faults = Faults() if faults is None else faults
    groups = _grouped(names, source.schema, choice.kind_of)
    with slow_bar(len(groups), "columns", f"understanding {source.name}") as progress:
        for number, group in enumerate(groups):
            progress.update(number)
            with faults.collect():
                found, summary = _fit_one(source, table, group, choice, sets, is_training)
                if found is not None:
                    column, encoded = found
                    fingerprints = suspicions.fingerprints(encoded)
                    column = replace(column, context=suspicions.is_constant(fingerprints, is_training))
                    suspicions.look_at(column, encoded, fingerprints)
                    fitted.append(column)
                    blocks.append(encoded)
                    if column.context:
                        summary = replace(
                            summary, use="; ".join(filter(None, ("the same in a set: context", summary.use)))
                        )
                summaries.append(summary)
    if not fitted and not faults.found:
        seen = "; ".join(f"{s.name}: {s.use}" for s in summaries if not s.used) or "all have a role"
        raise DataError(f"{source.name}: no column can be used as {parameter('features')} ({seen}); name their kinds")
    faults.check()
    description = TableDescription(
        source.name,
        len(rows.lengths),
        int(rows.lengths.sum()),
        None if rows.chosen is None else int(rows.chosen.sum()),
        tuple(summaries),
        suspicions.warnings(),
    )
    return Understood(Columns(tuple(fitted)), description, blocks)


def _candidates(source: TableSource, roles: Roles, choice: ColumnChoice) -> list[str]:
    """Return the columns that may be features; one whose kind the user names is meant to be used."""
    columns = source.schema.names if choice.features is None else choice.features
    named = [*columns, *(choice.kinds or {}), *choice.embed]
    return [name for name in dict.fromkeys(named) if name not in roles or name in choice.embed]


def _grouped(names: Sequence[str], schema: pa.Schema, kinds: Mapping[str, str]) -> list[list[str]]:
    """Return the columns one by one, those of a vector together."""

    def key(name: str) -> tuple[str, bool]:
        match = _NUMBERED.fullmatch(name)
        is_number = types.is_floating(schema.field(name).type) and name not in kinds
        return (match[1], True) if match and is_number else (name, False)

    groups: list[list[str]] = []
    for (_, is_numbered), group in groupby(names, key):
        members = list(group)
        groups += [members] if is_numbered and len(members) >= _FEWEST_NUMBERED else [[name] for name in members]
    return groups


def _fit_one(
    source: TableSource,
    table: pa.Table,
    group: list[str],
    choice: ColumnChoice,
    sets: np.ndarray,
    is_training: np.ndarray,
) -> tuple[tuple[FittedColumn, Encoded] | None, ColumnSummary]:
    """Return a column with the numbers of its rows, None if it is not used, and what was understood of it."""
    first, label = group[0], group[0] if len(group) == 1 else f"{group[0]} ... {group[-1]}"
    dtype = table.schema.field(first).type
    # Chunks of a CSV file are text, and its schema has the types that it looks like.
    type_name = str(source.schema.field(first).type)
    if choice.kind_of.get(first) == IGNORE:
        return None, ColumnSummary(first, IGNORE, type_name, table[first].null_count, 0, LEFT_OUT, False)
    columns = [_whole(source, table, name) for name in group]
    look = look_at(columns[0])
    if len(group) > 1:
        guess = Guess("vector")
    elif first in choice.kind_of:
        guess = Guess(choice.kind_of[first], "as asked")
    else:
        guess = guess_kind(columns[0], look)
        if guess.kind == IGNORE and choice.features is not None and guess.reason.startswith("looks like an id"):
            # Named as a feature, it is one.
            guess = Guess("number" if types.is_integer(dtype) else "category", "as asked")
        if guess.kind == "number" and types.is_dictionary(dtype):
            # Whoever wrote the table says that these numbers are names.
            guess = Guess("category")
    if guess.kind == IGNORE:
        return None, ColumnSummary(label, IGNORE, type_name, look.missing, look.distinct, guess.reason, False)
    mask = pa.array(is_training)
    parts = [replace(column, array=column.array.filter(mask)) for column in columns]
    fitted = KINDS[guess.kind].fit(label, TrainingColumn(parts, sets[is_training], False))
    # A number cannot be spelled so, but "none" may be a category.
    gaps = f"{_listed(look.spelled)} is a gap" if guess.kind in ("category", "text") and look.spelled else ""
    use = "; ".join(filter(None, (guess.reason, fitted.note, gaps)))
    summary = ColumnSummary(label, guess.kind, type_name, look.missing, look.distinct, use, True)
    return (fitted, fitted.encode_distinct(columns)), summary


def _listed(texts: tuple[str, ...]) -> str:
    return " or ".join(repr(text) for text in texts[:3])


def _whole(source: TableSource, table: pa.Table, name: str) -> Column:
    """Return a whole column in one piece."""
    column = table[name]
    if types.is_string(column.type):
        column = column.cast(pa.large_string())
    array = column.combine_chunks()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return Column.from_batch(source.name, pa.record_batch([array], names=[name]), name, 0)


def _role_summary(table: pa.Table, source: TableSource, role: str, name: str) -> ColumnSummary:
    look = look_at(_whole(source, table, name))
    type_name = str(source.schema.field(name).type)
    return ColumnSummary(name, role, type_name, look.missing, look.distinct, _ROLES[role], True)
