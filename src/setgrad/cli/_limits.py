"""Options that limit the allowed subsets, and the constraint that they make of the columns of a table."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING, Any

import torch

from setgrad.errors import DataError, OptionError
from setgrad.selector import Budget, Conflicts, Groups, LinearConstraint, MustHave, MustNot, SizeRange
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.sets import Choices, Sets

if TYPE_CHECKING:
    from setgrad.sets._sources import TableSource


def declare_limits(parser: ArgumentParser, description: str) -> Any:
    """Add the options that limit subsets to a command, and return their group."""
    group = parser.add_argument_group("limits on the chosen subsets", description)
    several = "; may be given several times"
    group.add_argument(
        "--budget",
        metavar="B",
        type=float,
        action="append",
        help=f"the chosen items of a set cost at most B in total{several}, with as many --cost",
    )
    group.add_argument(
        "--cost", metavar="COL", action="append", help="column with the cost of an item; it may be a feature too"
    )
    group.add_argument("--at-most", metavar="N", type=int, help="at most N items of each group of a set")
    group.add_argument("--at-least", metavar="N", type=int, help="at least N items of each group that a set has")
    group.add_argument("--group", metavar="COL", help="column with the group of an item")
    group.add_argument("--min-size", metavar="N", type=int, help="at least N items of each set")
    group.add_argument("--max-size", metavar="N", type=int, help="at most N items of each set")
    group.add_argument("--must-have", metavar="COL", help="column that is true for items that must be chosen")
    group.add_argument("--must-not", metavar="COL", help="column that is true for items that must not be chosen")
    group.add_argument(
        "--conflict",
        metavar="COL",
        action="append",
        help=f"column with a label: at most one item of a set is chosen of each label, empty for no limit{several}",
    )
    return group


def check_limits(args: Namespace) -> None:
    """Check the options that limit subsets, before any work.

    Raises:
        OptionError: If an option is out of range, or needs another one.
    """
    if len(args.budget or ()) != len(args.cost or ()):
        raise OptionError("a limit needs a number and a column: --budget N --cost COL, each as often as the other")
    if (args.at_most is None and args.at_least is None) != (args.group is None):
        raise OptionError("a limit needs a number and a column: --at-most N --group COL, or --at-least N --group COL")
    for name in ("at_most", "at_least", "min_size", "max_size"):
        number = getattr(args, name)
        if number is not None and number < 0:
            raise OptionError(f"--{name.replace('_', '-')} must be a whole number of at least 0, not {number}")
    for low, high in (("min_size", "max_size"), ("at_least", "at_most")):
        least, most = getattr(args, low), getattr(args, high)
        if most is not None and (least or 0) > most:
            flags = f"--{low.replace('_', '-')} {least} is more than --{high.replace('_', '-')} {most}"
            raise OptionError(f"{flags}; exchange them")
    if any(isnan(budget) for budget in args.budget or ()):
        raise OptionError("--budget must be a number, not nan; use inf for no limit")


def given_limits(args: Namespace) -> list[str]:
    """Return the flags of the limits that the command line has."""
    names = ("budget", "at_most", "at_least", "min_size", "max_size", "must_have", "must_not", "conflict")
    return ["--" + name.replace("_", "-") for name in names if getattr(args, name) is not None]


def read_limits(source: TableSource, sets: Sets, args: Namespace) -> list[LinearConstraint] | None:
    """Return the constraints on the sets of a table; None without limits.

    Raises:
        DataError: If the column of a limit is missing or holds values that cannot be used.
    """
    return read_limits_and(source, sets, args, [])[0]


def read_limits_and(
    source: TableSource, sets: Sets, args: Namespace, others: Sequence[str]
) -> tuple[list[LinearConstraint] | None, dict[str, Sets]]:
    """Return the constraints on the sets of a table, and other columns of booleans by name, read in one pass.

    Raises:
        DataError: If a column is missing or holds values that cannot be used.
    """
    parts: list[LinearConstraint] = []
    masks: dict[str, Sets] = {}
    costs, conflicts = args.cost or [], args.conflict or []
    labels = [] if args.group is None else [args.group]
    booleans = [name for name in (args.must_have, args.must_not, *others) if name is not None]
    if costs or labels or booleans or conflicts:
        from setgrad.sets._read import read_columns

        # A column may have two roles, and is read once.
        flags = list(dict.fromkeys(booleans))
        columns = read_columns(source, numbers=costs, booleans=flags, labels=labels, optional_labels=conflicts)
        masks = {name: sets.with_values(torch.from_numpy(columns.booleans[name])) for name in flags}
        for budget, cost in zip(args.budget or [], costs, strict=True):
            parts.append(_budget(sets.with_values(torch.from_numpy(columns.numbers[cost])), budget, cost))
        for name in labels:
            # An empty mapping is no maximum.
            at_most = {} if args.at_most is None else args.at_most
            parts.append(Groups(_by_set(columns.labels[name], sets), at_most=at_most, at_least=args.at_least or 0))
        for name, kind in ((args.must_have, MustHave), (args.must_not, MustNot)):
            if name is not None:
                parts.append(kind(masks[name]))
        parts += [Conflicts.from_labels(_by_set(columns.optional_labels[name], sets)) for name in conflicts]
    if args.min_size is not None or args.max_size is not None:
        parts.append(SizeRange(args.min_size or 0, args.max_size))
    return parts or None, masks


def read_limits_of(source: TableSource, choices: Choices, args: Namespace) -> list[LinearConstraint] | None:
    """Return the constraints under which the subsets of a table were chosen.

    Raises:
        DataError: If a limit does not allow a chosen subset; the message has the id of its set. Other errors are those
            of `read_limits`.
    """
    constraint = read_limits(source, choices.sets, args)
    if constraint is not None and choices.set_ids is not None:
        ids = choices.set_ids
        allowed = BatchConstraint.of(constraint, choices.sets)
        allowed.check_feasible(choices.subsets, lambda index: f"set {ids[index]!r} of {source.name}")
    return constraint


def _by_set(values: Sequence[Any], sets: Sets) -> list[Sequence[Any]]:
    return [values[start:stop] for start, stop in pairwise(sets.layout.host_offsets.tolist())]


def _budget(costs: Sets, budget: float, column: str) -> Budget:
    try:
        return Budget(costs, budget=budget)
    except DataError as error:
        raise error.with_context(f"--cost {column}: ") from None
