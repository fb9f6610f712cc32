"""`setgrad predict`: pick from new sets."""

from __future__ import annotations

import sys
import warnings
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Any

from setgrad._text_table import TextTable
from setgrad.cli._columns import declare_columns, read_sets, schema_for
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._limits import check_limits, declare_limits, has_limits, read_limits
from setgrad.cli._paths import check_output
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.errors import InfeasibleError, OptionError, SolverError, unknown_name
from setgrad.selector import SubsetSelector, TableSchema, load
from setgrad.selector._constrained_choice import ON_FAILURE, describe_failures, list_failures
from setgrad.selector.search import SEARCHES
from setgrad.selector.sizes import probability
from setgrad.sets import Sets, Table, subset_sizes


def _declare(parser: ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument("table", metavar="TABLE", type=Path, help="Parquet, CSV or Feather file, one row for each item")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="file for the picks, one row for each item: .parquet, .csv or .feather",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--size", metavar="N", type=int, help="pick N items of each set [the model chooses the number]")
    sizes.add_argument("--threshold", metavar="P", type=float, help="pick the items with a probability above P")
    parser.add_argument(
        "--search",
        metavar="NAME",
        help='search on the learned set function: "greedy" builds the subset item by item, "local" improves it by '
        "single moves",
    )
    limits = declare_limits(
        parser,
        "picks that are within the limits stay as they are; else the best subset within\n"
        "them is picked. Several limits together need SciPy, and so do costs that are not\n"
        f"whole, and whole ones where a budget above {MOST_STEPS:,} times their common\n"
        "divisor can be spent",
    )
    limits.add_argument(
        "--on-failure",
        metavar="NAME",
        default="raise",
        help='for a set without a subset within the limits: "raise" an error, or "skip" it and pick nothing [raise]',
    )
    declare_columns(parser, required=False, chosen=False)


def declare_model(parser: ArgumentParser) -> None:
    """Add the model and the device to a command."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="folder that `setgrad fit` or save() wrote")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 [a GPU if there is one]")


def _check_id_columns(schema: TableSchema) -> None:
    """Check that the ids have other names than the columns that every table of picks has."""
    for flag, name in (("--set-id", schema.set_id), ("--item-id", schema.item_id)):
        if name in ("probability", "chosen"):
            raise OptionError(
                f"the table of picks has its own column {name!r}, so no id can have this name; rename the column in "
                f"the table and give its new name: {flag} COL"
            )


def _check_choice(args: Namespace) -> None:
    """Check how to choose before any work."""
    if args.search is not None and args.search not in SEARCHES:
        raise unknown_name("search", args.search, SEARCHES)
    if args.on_failure not in ON_FAILURE:
        raise unknown_name("on_failure", args.on_failure, ON_FAILURE)
    if args.size is not None and args.size < 0:
        raise OptionError(f"--size must be a whole number of at least 0, not {args.size}")
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        raise OptionError(f"--threshold must be a probability between 0 and 1, not {args.threshold}")
    if has_limits(args) and args.search == "greedy":
        raise OptionError("--search greedy does not support limits; leave it out, or use --search local")


def _pick(selector: SubsetSelector, table: Table, args: Namespace, **options: Any) -> tuple[Sets, dict[str, str]]:
    """Return the picks, and why sets have none within the limits, by their id.

    Raises:
        SolverError: If there is such a set, unless it is to be skipped. The message has its id.
    """
    choose = partial(
        selector.predict, table.sets, size=args.size, threshold=args.threshold, search=args.search, **options
    )
    try:
        return choose(), {}
    except InfeasibleError as error:
        reasons = error.reasons
    names = table.set_ids or range(len(table))
    message = list_failures if args.on_failure == "skip" else describe_failures
    text = message(reasons, len(table), lambda index: f"set {names[index]!r}")
    if args.on_failure == "raise":
        raise SolverError(text)
    print(f"warning: {text}", file=sys.stderr)
    with warnings.catch_warnings():
        # The same text with indices in place of ids.
        warnings.simplefilter("ignore", RuntimeWarning)
        return choose(on_failure="skip"), {str(names[index]): reason for index, reason in reasons.items()}


def _run(args: Namespace) -> CommandResult:
    from setgrad.sets import write_table
    from setgrad.sets._formats import find_format
    from setgrad.sets._write import check_writable_ids

    check_limits(args)
    _check_choice(args)
    find_format(args.output)  # raises for an unknown ending
    check_output(args.output, model=args.model, table=args.table)
    selector = load(args.model, device=args.device)
    schema = schema_for(selector, args)
    _check_id_columns(schema)
    table = read_sets(args.table, schema)
    check_writable_ids(args.output, set_ids=table.set_ids, item_ids=table.item_ids)
    constraint = read_limits(args.table, table.sets, args)
    scores = selector.decision_function(table.sets)
    picks, skipped = _pick(selector, table, args, constraint=constraint, scores=scores)
    item_name = schema.item_id or ("item" if schema.set_id == "item_id" else "item_id")
    write_table(
        args.output,
        picks,
        set_ids=table.set_ids,
        item_ids=table.item_ids,
        probability=scores.with_values(probability(scores.values)),
        names=(schema.set_id, item_name),
    )
    sizes = subset_sizes(picks)
    data = {
        "picks": str(args.output),
        "sets": len(table),
        "items": table.sets.layout.total,
        "chosen": int(sizes.sum()),
        "mean_size": float(sizes.mean()),
        "smallest_size": int(sizes.min()),
        "largest_size": int(sizes.max()),
        "skipped": [{"set": name, "reason": reason} for name, reason in skipped.items()],
    }
    row = (
        *(str(data[key]) for key in ("sets", "items", "chosen")),
        f"{sizes.mean():.2f}",
        f"{sizes.min()}",
        f"{sizes.max()}",
    )
    summary = TextTable("", ("sets", "items", "chosen", "mean of a set", "smallest", "largest"), (row,))
    return CommandResult(data, (summary, f"picks written to {args.output}"))


PREDICT = Command(
    name="predict",
    summary="pick from new sets",
    usage="setgrad predict MODEL TABLE -o FILE [options]",
    description=(
        "Pick a subset of each set of a table, and write one row for each item: set id, item id, probability, chosen. "
        "The model chooses the number of items, unless --size, --threshold or a limit is given."
    ),
    examples=(
        "setgrad predict model/ new.parquet -o picks.parquet",
        "setgrad predict model/ new.csv -o picks.csv --size 10 --search local",
        "setgrad predict model/ new.csv -o picks.csv --budget 50 --cost price --at-most 2 --group brand",
    ),
    declare=_declare,
    run=_run,
)
