"""`setgrad predict`: pick from new sets."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from setgrad.cli._columns import Columns, columns_of_model, declare_columns
from setgrad.cli._command import Answer, Command
from setgrad.cli._limits import LIMIT_WORDS, check_limits, declare_limits, has_limits, read_limits
from setgrad.cli._places import check_output
from setgrad.cli._words import in_words
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.errors import OptionError, unknown_name
from setgrad.report._grid import Grid
from setgrad.selector import load
from setgrad.selector.selector import SEARCHES
from setgrad.sets import subset_sizes


def _declare(parser: ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument("table", metavar="TABLE", type=Path, help="Parquet, CSV or Feather file, one row for each item")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="where the picks go: .parquet, .csv or .feather, one row for each item",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--size", metavar="N", type=int, help="choose so many items of each set [the model decides]")
    sizes.add_argument("--threshold", metavar="P", type=float, help="choose the items with a probability above P")
    parser.add_argument(
        "--search",
        metavar="NAME",
        help='search on F itself: "greedy" builds the subset item by item, "local" improves it by single moves',
    )
    declare_limits(
        parser,
        "the best allowed subset is picked; an item is worth taking if its probability\n"
        "is above 1/2, or above P with --threshold. Limits can be combined; this takes\n"
        "SciPy, and so do costs that are not whole, and whole ones where a budget above\n"
        f"{MOST_STEPS:,} times their common divisor can be spent",
    )
    declare_columns(parser, required=False, chosen=False)


def declare_model(parser: ArgumentParser) -> None:
    """Give a command the model to work with."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="folder that `setgrad fit` or save() wrote")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, ... [a GPU if there is one]")


def _check_names(columns: Columns) -> None:
    """Refuse ids that could not be written beside the columns that every table of picks has."""
    for flag, name in (("--set-id", columns.set_id), ("--item-id", columns.item_id)):
        if name in ("probability", "chosen"):
            raise OptionError(
                f"the picks have a column {name!r} of their own, so no id can be called so; rename the column in the "
                f"table and give its new name: {flag} COL"
            )


def _check_way(args: Namespace) -> None:
    """Refuse a wrong way to choose before any work, and in the words of the command line."""
    limited, threshold = has_limits(args), args.threshold
    if args.search is not None and args.search not in SEARCHES:
        raise unknown_name("search", args.search, SEARCHES)
    if args.size is not None and args.size < 0:
        raise OptionError(f"--size must be a whole number of at least 0, not {args.size}")
    # Limits weigh the odds of an item against those of P, which 0 and 1 do not have.
    if threshold is not None and not (0 < threshold < 1 if limited else 0 <= threshold <= 1):
        neither = " and, with limits, neither of them" if limited else ""
        raise OptionError(f"--threshold is a probability between 0 and 1{neither}, not {threshold}")
    if limited and args.size is not None:
        raise OptionError(
            "the limits say which sizes are allowed; instead of --size give "
            f"--min-size {args.size} --max-size {args.size}"
        )
    if limited and args.search == "greedy":
        raise OptionError("--search greedy knows no limits; leave it out, or use --search local")


def _run(args: Namespace) -> Answer:
    from setgrad.sets import write_table
    from setgrad.sets._formats import format_of
    from setgrad.sets._write import check_ids

    check_limits(args)
    _check_way(args)
    format_of(args.output)  # an unknown ending is refused before any work
    check_output(args.output, model=args.model, table=args.table)
    selector = load(args.model, device=args.device)
    columns = columns_of_model(args.model, args)
    _check_names(columns)
    table = columns.read_sets(args.table)
    check_ids(args.output, set_ids=table.set_ids, item_ids=table.item_ids)
    constraint = read_limits(args.table, columns.set_id, table.sets, args)
    scores = selector.decision_function(table.sets)
    way = {"size": args.size, "threshold": args.threshold, "search": args.search, "constraint": constraint}
    with in_words(LIMIT_WORDS):
        picks = selector.predict(table.sets, **way, scores=scores)
    item_name = columns.item_id or ("item" if columns.set_id == "item_id" else "item_id")
    write_table(
        args.output,
        picks,
        set_ids=table.set_ids,
        item_ids=table.item_ids,
        probability=selector.predict_proba(table.sets, scores=scores),
        names=(columns.set_id, item_name),
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
    }
    row = (
        *(str(data[key]) for key in ("sets", "items", "chosen")),
        f"{sizes.mean():.2f}",
        f"{sizes.min()}",
        f"{sizes.max()}",
    )
    grid = Grid("", ("sets", "items", "chosen", "chosen of a set, mean", "fewest", "most"), (row,))
    return Answer(data, (grid, f"picks written to {args.output}"))


PREDICT = Command(
    name="predict",
    summary="pick from new sets",
    usage="setgrad predict MODEL TABLE -o FILE [options]",
    description=(
        "Pick a subset of each set of a table, and write one row for each item: set id, item id, probability, chosen. "
        "How many items are picked is decided by the model unless --size, --threshold or a limit is given."
    ),
    examples=(
        "setgrad predict model/ new.parquet -o picks.parquet",
        "setgrad predict model/ new.csv -o picks.csv --size 10 --search local",
        "setgrad predict model/ new.csv -o picks.csv --budget 50 --cost price --at-most 2 --group brand",
    ),
    declare=_declare,
    run=_run,
)
