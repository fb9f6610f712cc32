"""Options that limit the allowed subsets, and the constraint that they make of the columns of a table."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import pairwise
from math import isnan
from pathlib import Path

import torch

from setgrad.errors import DataError, OptionError
from setgrad.selector import AllOf, Budget, Constraint, Groups, LinearConstraint, SizeRange
from setgrad.sets import Sets


def declare_limits(parser: ArgumentParser, description: str) -> None:
    """Add the options that limit subsets to a command."""
    group = parser.add_argument_group("limits on the chosen subsets", description)
    group.add_argument("--budget", metavar="B", type=float, help="the chosen items of a set cost at most B in total")
    group.add_argument("--cost", metavar="COL", help="column with the cost of an item; it may be a feature too")
    group.add_argument("--at-most", metavar="N", type=int, help="at most N items of each group of a set")
    group.add_argument("--group", metavar="COL", help="column with the group of an item")
    group.add_argument("--min-size", metavar="N", type=int, help="at least N items of each set")
    group.add_argument("--max-size", metavar="N", type=int, help="at most N items of each set")


def check_limits(args: Namespace) -> None:
    """Check the options that limit subsets, before any work.

    Raises:
        OptionError: If an option is out of range, or needs another one.
    """
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
        raise OptionError("--budget must be a number, not nan; use inf for no limit")


def has_limits(args: Namespace) -> bool:
    """Return whether the command line has a limit."""
    return any(number is not None for number in (args.budget, args.at_most, args.min_size, args.max_size))


def read_limits(path: Path, sets: Sets, args: Namespace) -> Constraint | None:
    """Return the constraint on the sets of a table; None without limits.

    Raises:
        DataError: If the column of a limit is missing or holds values that cannot be used.
    """
    parts: list[LinearConstraint] = []
    if args.budget is not None or args.at_most is not None:
        from setgrad.sets._read import read_columns

        costs, labels = read_columns(
            path,
            numbers=[] if args.budget is None else [args.cost],
            labels=[] if args.at_most is None else [args.group],
        )
        if args.budget is not None:
            parts.append(_budget(sets.with_values(torch.from_numpy(costs[args.cost])), args))
        if args.at_most is not None:
            names = labels[args.group]
            by_set = [names[start:stop] for start, stop in pairwise(sets.layout.host_offsets.tolist())]
            parts.append(Groups(by_set, at_most=args.at_most))
    if args.min_size is not None or args.max_size is not None:
        parts.append(SizeRange(args.min_size or 0, args.max_size))
    if len(parts) > 1:
        return AllOf(parts)
    return parts[0] if parts else None


def _budget(costs: Sets, args: Namespace) -> Budget:
    try:
        return Budget(costs, budget=args.budget)
    except DataError as error:
        raise error.with_context(f"--cost {args.cost}: ") from None
