"""Options that name what is known about a subset before the choice, and their columns of a table."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
import torch

from setgrad.cli._limits import read_limits_and
from setgrad.errors import DataError, OptionError
from setgrad.selector import LinearConstraint
from setgrad.sets import Choices, Sets, Table, subset_sizes

if TYPE_CHECKING:
    from setgrad.sets._sources import TableSource


@final
class KnownItems(NamedTuple):
    """Items that are in the subsets already, and items that are out of them; None without such a column."""

    given: Sets | None
    excluded: Sets | None


def declare_known(parser: ArgumentParser) -> None:
    """Add the options for what is known to a command."""
    group = parser.add_argument_group(
        "what is known before the choice",
        "the model reads these columns: it completes what was begun, and probabilities are\n"
        "those given what is known. --must-have and --must-not are limits instead: they\n"
        "change what may be picked, and not the probabilities",
    )
    group.add_argument(
        "--given",
        metavar="COL",
        help="column that is true for items that are in the subset already: true / false or 0 / 1. They are part of "
        "the pick, and count in every size, budget and group",
    )
    group.add_argument("--excluded", metavar="COL", help="column that is true for items that are known to be out of it")


def check_known(args: Namespace) -> None:
    """Check the options for what is known, before any work.

    Raises:
        OptionError: If options do not go together.
    """
    if args.given is not None and args.given == args.excluded:
        raise OptionError(f"--given and --excluded are both {args.given}; an item is in the subset or out of it")
    if args.recall is not None and (args.given is not None or args.excluded is not None):
        flag = "--excluded" if args.given is None else "--given"
        raise OptionError(f"--recall is calibrated for sets of which nothing is known; leave out {flag}")


def read_known(source: TableSource, table: Table, args: Namespace) -> tuple[list[LinearConstraint] | None, KnownItems]:
    """Return the limits on the sets of a table and what is known about them, read in one pass.

    Raises:
        DataError: If a column is missing or holds values that cannot be used, or an item is given and excluded. The
            message has the columns and the ids of the table.
        OptionError: If more items are given than `--size` allows.
    """
    names = [name for name in (args.given, args.excluded) if name is not None]
    constraint, columns = read_limits_and(source, table.sets, args, names)
    known = KnownItems(*(None if name is None else columns[name] for name in (args.given, args.excluded)))
    if known.given is not None and known.excluded is not None:
        both = known.given.values & known.excluded.values
        if bool(both.any()):
            raise DataError(
                f"{source.name}: {_name_item(table, int(both.nonzero()[0]))} is true in column {args.given!r} "
                f"(--given) and in column {args.excluded!r} (--excluded); make one of them false"
            )
    if known.given is not None and args.size is not None:
        counts = subset_sizes(known.given)
        if counts.max() > args.size:
            first = int((counts > args.size).argmax())
            raise OptionError(
                f"{source.name}: set {_set_id(table, first)!r} has {counts[first]} items that are true in column "
                f"{args.given!r}, more than --size {args.size}; given items count in the size"
            )
    return constraint, known


def read_given(source: TableSource, choices: Choices, column: str) -> Sets:
    """Return the given items of sets whose chosen subsets are known.

    Raises:
        DataError: If the column cannot be used, or an item is given that was not chosen.
    """
    from setgrad.sets._read import read_columns

    given = choices.sets.with_values(torch.from_numpy(read_columns(source, booleans=[column]).booleans[column]))
    wrong = given.values & ~choices.subsets.values
    if bool(wrong.any()):
        raise DataError(
            f"{source.name}: {_name_item(choices, int(wrong.nonzero()[0]))} is true in column {column!r}, but was not "
            "chosen; only chosen items can be given where the picks are scored"
        )
    return given


def _set_id(table: Table | Choices, index: int) -> object:
    return index if table.set_ids is None else table.set_ids[index]


def _name_item(table: Table | Choices, row: int) -> str:
    layout = table.sets.layout
    item = int(layout.positions[row]) if table.item_ids is None else np.asarray(table.item_ids)[row]
    # A number of NumPy has its type in its repr.
    item = item.item() if isinstance(item, np.generic) else item
    return f"item {item!r} of set {_set_id(table, int(layout.ids[row]))!r}"
