"""Options that say which subsets are allowed, and the constraint that they make of the columns of a table."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import pairwise
from math import isnan
from pathlib import Path
from typing import Any

import torch

from setgrad.errors import DataError, OptionError
from setgrad.selector import AllOf, Budget, Constraint, Groups, SizeRange
from setgrad.selector.constraints import LinearConstraint
from setgrad.sets import Sets

# How errors about limits name them in Python, and what they are called here.
LIMIT_WORDS = {"CardinalityRange cannot": "the limits cannot", "lower min_size": "lower --min-size"}


def declare_limits(parser: ArgumentParser, text: str) -> None:
    """Give a command the options that limit subsets; `text` says what it does with them."""
    group = parser.add_argument_group("what is allowed", text)
    group.add_argument("--budget", metavar="B", type=float, help="the chosen items of a set cost at most B together")
    group.add_argument("--cost", metavar="COL", help="column with the cost of an item, which may be a feature too")
    group.add_argument("--at-most", metavar="N", type=int, help="at most N items of each group of a set")
    group.add_argument("--group", metavar="COL", help="column that names the group of an item")
    group.add_argument("--min-size", metavar="N", type=int, help="at least N items of each set")
    group.add_argument("--max-size", metavar="N", type=int, help="at most N items of each set")


def check_limits(args: Namespace) -> None:
    """Refuse half a limit before any work."""
    for number, column in (("budget", "cost"), ("at_most", "group")):
        if (getattr(args, number) is None) != (getattr(args, column) is None):
            flags = f"--{number.replace('_', '-')} N --{column} COL"
            raise OptionError(f"a limit needs a number and a column: {flags}")
    for flag, number in (("--at-most", args.at_most), ("--min-size", args.min_size), ("--max-size", args.max_size)):
        if number is not None and number < 0:
            raise OptionError(f"{flag} must be a whole number of at least 0, not {number}")
    if args.max_size is not None and (args.min_size or 0) > args.max_size:
        raise OptionError(f"--min-size {args.min_size} is more than --max-size {args.max_size}; exchange them")
    if args.budget is not None and isnan(args.budget):
        raise OptionError("--budget must be a number, not nan; inf is no limit")


def has_limits(args: Namespace) -> bool:
    """Whether any subset is not allowed."""
    return any(number is not None for number in (args.budget, args.at_most, args.min_size, args.max_size))


def read_limits(path: Path, set_id: str, sets: Sets, args: Namespace) -> Constraint | None:
    """Make the constraint for the sets of a table; None if there are no limits."""
    parts: list[LinearConstraint] = []
    if args.budget is not None:
        from setgrad.sets import read_table

        costs = read_table(path, set_id=set_id, features=[args.cost], dtype=torch.float64).sets
        parts.append(_budget(costs, args))
    if args.at_most is not None:
        names = _names(path, args.group)
        bounds = sets.layout.host_offsets.tolist()
        labels = [names[start:stop] for start, stop in pairwise(bounds)]
        parts.append(Groups(labels, at_most=args.at_most))
    if args.min_size is not None or args.max_size is not None:
        parts.append(SizeRange(args.min_size or 0, args.max_size))
    if len(parts) > 1:
        return AllOf(parts)
    return parts[0] if parts else None


def _budget(costs: Sets, args: Namespace) -> Budget:
    try:
        return Budget(costs, budget=args.budget)
    except DataError as error:
        # It speaks of weights, which on the command line are those of the loss.
        raise DataError(f"--cost {args.cost}: {error}") from None


def _names(path: Path, column: str) -> list[Any]:
    """Numbers or words of a column, row by row."""
    from setgrad.sets._columns import Column
    from setgrad.sets._formats import read_chunks, read_schema
    from setgrad.sets._ids import read_ids
    from setgrad.sets._roles import resolve_features

    resolve_features(path, read_schema(path), [column], {})  # says so if there is no such column
    names: list[Any] = []
    for batch in read_chunks(path, [column]):
        found = Column.from_batch(path, batch, column, len(names))
        missing = found.array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        if missing.any():
            raise found.error(missing.argmax(), "the group is missing; name the group of every item")
        names += read_ids(found).to_pylist()
    return names
