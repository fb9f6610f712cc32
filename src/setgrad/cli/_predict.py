"""`setgrad predict`: pick from new sets."""

from __future__ import annotations

import sys
import warnings
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from functools import partial
from pathlib import Path
from typing import Any

from setgrad._text_table import TextTable
from setgrad.cli._columns import TABLE_HELP, declare_columns, schema_for
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._known import check_known, declare_known, read_known
from setgrad.cli._limits import check_limits, declare_limits, given_limits
from setgrad.cli._output import printed_warnings
from setgrad.cli._paths import check_output
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.errors import InfeasibleError, OptionError, SolverError
from setgrad.selector import SubsetSelector, TableSchema, load
from setgrad.selector._constrained_choice import describe_failures, list_failures
from setgrad.selector._prediction import SubsetRequest
from setgrad.selector._table_input import read_sets
from setgrad.sets import Sets, Table, subset_sizes


def _declare(parser: ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument("table", metavar="TABLE", type=Path, help=TABLE_HELP)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="file for the picks, one row for each item: .parquet, .csv, .csv.gz, .jsonl or .feather",
    )
    parser.add_argument(
        "--formulas",
        action=BooleanOptionalAction,
        default=False,
        help="write ids as they are to a CSV file, also those that a spreadsheet would run as formulas; by default an "
        "apostrophe comes before them",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--size", metavar="N", type=int, help="pick N items of each set [the model chooses the number]")
    sizes.add_argument("--threshold", metavar="P", type=float, help="pick the items with a probability above P")
    parser.add_argument(
        "--search",
        metavar="NAME",
        help='search on the learned set function: "greedy" builds the subset item by item, "local" improves it by '
        'single moves, "completion" completes it from each of the best 32 first items and takes the likeliest: for '
        "sets in which one of several subsets is right",
    )
    parser.add_argument(
        "--decide",
        metavar="NAME",
        help='"expected-jaccard" draws 64 subsets of each set, and picks the one with the best mean Jaccard score with '
        "all of them",
    )
    parser.add_argument(
        "--recall",
        metavar="R",
        type=float,
        help="pick as few items as hold, on average over new sets like those of the fit, at least the share R of what "
        "would be chosen; above 0 and below 1",
    )
    declare_known(parser)
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
    SubsetRequest(
        args.size, args.threshold, args.search, on_failure=args.on_failure, decide=args.decide, recall=args.recall
    )
    if args.size is not None and args.size < 0:
        raise OptionError(f"--size must be a whole number of at least 0, not {args.size}")
    if args.threshold is not None and not 0 <= args.threshold <= 1:
        raise OptionError(f"--threshold must be a probability between 0 and 1, not {args.threshold}")
    if args.recall is not None and not 0 < args.recall < 1:
        raise OptionError(f"--recall must be a number above 0 and below 1, not {args.recall}")
    limits = given_limits(args)
    if limits and args.search not in (None, "local"):
        raise OptionError(f"--search {args.search} does not support limits; leave it out, or use --search local")
    for name in ("decide", "recall"):
        if limits and getattr(args, name) is not None:
            raise OptionError(f"--{name} determines the whole subset; leave out {' and '.join(limits)}")


def _check_recall(selector: SubsetSelector, args: Namespace) -> None:
    """Check before any inference that the model can keep a promise about recall; warn if only all items together do."""
    if args.recall is None:
        return
    if selector.recall_ is None:
        raise OptionError(
            f"--recall needs a calibration, which models of earlier versions do not have; fit {args.model} again, or "
            "call calibrate_recall in Python and save the model"
        )
    with printed_warnings(RuntimeWarning):
        selector.recall_.threshold(args.recall)


def _pick(selector: SubsetSelector, table: Table, args: Namespace, **options: Any) -> tuple[Sets, dict[str, str]]:
    """Return the picks, and why sets have none within the limits, by their id.

    Raises:
        SolverError: If there is such a set, unless it is to be skipped. The message has its id.
    """
    how = {name: getattr(args, name) for name in ("size", "threshold", "search", "decide", "recall")}
    choose = partial(selector.predict, table.sets, **how, **options)
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
    check_known(args)
    _check_choice(args)
    find_format(args.output)  # raises for an unknown ending
    check_output(args.output, model=args.model, table=args.table)
    selector = load(args.model, device=args.device)
    _check_recall(selector, args)
    schema = schema_for(selector, args)
    _check_id_columns(schema)
    table = read_sets(args.table, schema)
    check_writable_ids(args.output, set_ids=table.set_ids, item_ids=table.item_ids)
    constraint, items = read_known(args.table, table, args)
    known = items._asdict()
    scores = selector.decision_function(table.sets, **known)
    with warnings.catch_warnings():
        # `_check_recall` has said it.
        warnings.filterwarnings("ignore", ".* calibration sets are too few", RuntimeWarning)
        picks, skipped = _pick(selector, table, args, constraint=constraint, scores=scores, **known)
    item_name = schema.item_id or ("item" if schema.set_id == "item_id" else "item_id")
    probability = selector.predict_proba(table.sets, scores=scores, **known)
    with printed_warnings(UserWarning):
        write_table(
            args.output,
            picks,
            set_ids=table.set_ids,
            item_ids=table.item_ids,
            probability=probability,
            names=(schema.set_id, item_name),
            formulas=args.formulas,
        )
    sizes = subset_sizes(picks)
    data = {
        "picks": str(args.output),
        "sets": len(table),
        "items": table.sets.layout.total,
        "given": 0 if items.given is None else int(items.given.values.sum()),
        "excluded": 0 if items.excluded is None else int(items.excluded.values.sum()),
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
        "The model chooses the number of items, unless --size, --threshold, --recall or a limit is given. With --given "
        "it completes the subsets that were begun."
    ),
    examples=(
        "setgrad predict model/ new.csv -o picks.csv --size 10 --search local",
        "setgrad predict model/ carts.csv -o picks.csv --given in_cart --excluded sold_out",
        "setgrad predict model/ new.csv -o picks.csv --budget 50 --cost price --at-most 2 --group brand",
    ),
    declare=_declare,
    run=_run,
)
