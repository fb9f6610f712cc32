"""`setgrad predict`: pick from new sets."""

from __future__ import annotations

import warnings
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from setgrad._launch import launched
from setgrad._text_table import TextTable
from setgrad.cli._columns import (
    TABLE_HELP,
    column_names,
    declare_columns,
    declare_stream,
    open_for,
    schema_for,
    table_path,
)
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._known import check_known, declare_known, read_known
from setgrad.cli._limits import check_limits, declare_limits, given_limits
from setgrad.cli._output import printed_warnings
from setgrad.cli._paths import check_output
from setgrad.cli._show import show_picks
from setgrad.discrete.solvers.knapsack import MOST_STEPS
from setgrad.errors import InfeasibleError, OptionError
from setgrad.selector import SubsetSelector, load
from setgrad.selector._input import Input
from setgrad.selector._picks import check_carry, check_ids
from setgrad.selector._prediction import SubsetRequest
from setgrad.selector._shares import Share
from setgrad.selector._stream_choice import is_streamed
from setgrad.sets import Sets, subset_sizes

if TYPE_CHECKING:
    import pyarrow as pa


def _declare(parser: ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument("table", metavar="TABLE", type=table_path, help=TABLE_HELP)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="file for the picks, one row for each item: .parquet, .csv, .csv.gz, .jsonl or .feather",
    )
    declare_formulas(parser)
    parser.add_argument(
        "--carry",
        metavar="COL,...",
        type=column_names,
        default=[],
        help="columns of the table to repeat beside the picks",
    )
    parser.add_argument(
        "--show",
        metavar="N",
        type=_count,
        default=0,
        help="print the picks of the first N sets, and the next best items of each; -o is not needed then",
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
    declare_stream(parser)
    parser.add_argument(
        "--part",
        metavar="K/N",
        type=_share,
        help="pick from the K-th of N parts of Parquet files only, and write its picks to a file in the folder -o; "
        "under torchrun each process takes its part",
    )
    declare_columns(parser, required=False, chosen=False)


def declare_formulas(parser: ArgumentParser) -> None:
    """Add to a command whether cells of a CSV file may be formulas."""
    parser.add_argument(
        "--formulas",
        action=BooleanOptionalAction,
        default=False,
        help="write ids as they are to a CSV file, also those that a spreadsheet would run as formulas; by default an "
        "apostrophe comes before them",
    )


def declare_model(parser: ArgumentParser) -> None:
    """Add the model and the device to a command."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="folder that `setgrad fit` or save() wrote")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 [a GPU if there is one]")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _share(text: str) -> Share:
    try:
        share = Share.of(tuple(int(number) for number in text.split("/")))
    except (ValueError, OptionError):
        share = None
    if share is None:
        raise ArgumentTypeError(f"{text!r} is not a part such as 3/16")
    return share


def _share_of_process(args: Namespace) -> Share | None:
    """Return the part of the table to pick from; under torchrun that of this process."""
    process = launched()
    if process is None or process[1] == 1:
        return args.part
    if args.part is not None:
        raise OptionError("under torchrun each process takes its part of the table; leave out --part")
    return Share(process[0] + 1, process[1])


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


def _pick(
    selector: SubsetSelector, asked: Input, constraint: Any, known: tuple[Any, Any], args: Namespace
) -> tuple[Sets, pa.Table, dict[str, str]]:
    """Return the picks, also as a table, and why sets have none within the limits, by their id.

    Raises:
        InfeasibleError: If there is such a set, unless it is to be skipped.
    """

    def choose(on_failure: str) -> tuple[Sets, pa.Table]:
        size, threshold, search, decide, recall = args.size, args.threshold, args.search, args.decide, args.recall
        request = SubsetRequest(size, threshold, search, constraint, on_failure, decide, recall)
        return selector.choose_rows(asked, request, *known, args.carry)

    try:
        return *choose("raise"), {}
    except InfeasibleError as error:
        if args.on_failure == "raise":
            raise
        reasons = error.reasons
    with printed_warnings(RuntimeWarning):
        picks, rows = choose("skip")
    ids = asked.set_ids
    return picks, rows, {str(ids[index]): reason for index, reason in reasons.items()}


def _run(args: Namespace) -> CommandResult:
    from setgrad.sets._formats import find_format
    from setgrad.sets._write import check_writable_ids, write_rows

    check_limits(args)
    check_known(args)
    _check_choice(args)
    share = _share_of_process(args)
    if args.output is not None:
        if share is None:
            find_format(args.output)  # raises for an unknown ending
        file = args.output if share is None else share.file_in(args.output)
        check_output(file, model=args.model, table=args.table)
    elif not args.show:
        raise OptionError("name the file for the picks: -o FILE; or print those of a few sets: --show 3")
    selector = load(args.model, device=args.device)
    _check_recall(selector, args)
    check_ids(schema_for(selector, args))
    if is_streamed(args.table, args.stream if share is None else True, verbose=selector.verbose > 0):
        return _run_streamed(args, selector, share)
    table = open_for(selector, args)
    check_carry(args.carry, table)
    read = table.read_sets()
    if args.output is not None:
        check_writable_ids(args.output, set_ids=read.set_ids, item_ids=read.item_ids)
    constraint, known = read_known(table.source, read, args)
    with warnings.catch_warnings():
        # `_check_recall` has said it.
        warnings.filterwarnings("ignore", ".* calibration sets are too few", RuntimeWarning)
        picks, rows, skipped = _pick(selector, selector.ask(table, read), constraint, known, args)
    if args.output is not None:
        with printed_warnings(UserWarning):
            write_rows(args.output, rows, formulas=args.formulas)
    data = {
        "given": 0 if known.given is None else int(known.given.values.sum()),
        "excluded": 0 if known.excluded is None else int(known.excluded.values.sum()),
        "skipped": [{"set": name, "reason": reason} for name, reason in skipped.items()],
    }
    return _result(args, subset_sizes(picks), read.sets.layout.total, rows, data)


def _run_streamed(args: Namespace, selector: SubsetSelector, share: Share | None) -> CommandResult:
    """Choose from a table that is read block by block."""
    if limits := given_limits(args):
        raise OptionError(f"limits need all sets in memory; leave out --stream, or {' and '.join(limits)}")
    if args.output is None:
        raise OptionError("name the file for the picks: -o FILE")
    size, threshold, search, decide, recall = args.size, args.threshold, args.search, args.decide, args.recall
    request = SubsetRequest(size, threshold, search, decide=decide, recall=recall)
    with printed_warnings(UserWarning):
        written = selector.write_rows(
            args.table, schema_for(selector, args), args.output, request, args.given, args.excluded, args.carry, share
        )
    return _result(args, written.sizes, written.items, written.first, {})


def _result(args: Namespace, sizes: np.ndarray, items: int, rows: pa.Table, more: dict[str, Any]) -> CommandResult:
    """Return what to say about picks.

    Args:
        args: The command line.
        sizes: The number of chosen items of each set.
        items: The number of items.
        rows: The picks, or those of the first sets.
        more: What else the JSON result has.
    """
    data = {
        "picks": None if args.output is None else str(args.output),
        "sets": len(sizes),
        "items": items,
        "chosen": int(sizes.sum()),
        "mean_size": float(sizes.mean()),
        "smallest_size": int(sizes.min()),
        "largest_size": int(sizes.max()),
        **more,
    }
    row = (
        *(str(data[key]) for key in ("sets", "items", "chosen")),
        f"{sizes.mean():.2f}",
        f"{sizes.min()}",
        f"{sizes.max()}",
    )
    summary = TextTable("", ("sets", "items", "chosen", "mean of a set", "smallest", "largest"), (row,))
    parts: tuple[TextTable | str, ...] = (show_picks(rows, args.show),) if args.show else ()
    parts += (summary,)
    short = 0 if args.size is None else int((sizes < args.size).sum()) - len(more.get("skipped", ()))
    if short:
        parts += (f"{short} of {len(sizes)} sets have fewer than {args.size} items to pick; all of theirs are picked",)
    written = () if args.output is None else (f"picks written to {args.output}",)
    return CommandResult(data, (*parts, *written))


PREDICT = Command(
    name="predict",
    summary="pick from new sets",
    usage="setgrad predict MODEL TABLE [-o FILE] [--show N] [options]",
    description=(
        "Pick a subset of each set of a table, and write one row for each item: set id, item id, chosen, probability, "
        "and the rank in its set, chosen items first. "
        "The model chooses the number of items, unless --size, --threshold, --recall or a limit is given. With --given "
        "it completes the subsets that were begun."
    ),
    examples=(
        "setgrad predict model/ new.csv -o picks.csv --size 10 --search local",
        "setgrad predict model/ carts.csv --show 3 --carry title,price --given in_cart",
        "setgrad predict model/ new.csv -o picks.csv --budget 50 --cost price --at-most 2 --group brand",
    ),
    declare=_declare,
    run=_run,
)
