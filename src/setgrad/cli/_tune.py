"""`setgrad tune`: a search for good options, and the best model in a folder."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from setgrad._text_table import TextTable
from setgrad.cli._columns import TABLE_HELP, column_names, declare_columns, declare_kinds, given_kinds
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._options import declare_selector, make_selector
from setgrad.cli._output import printed_warnings
from setgrad.selector import tune


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", type=Path, help=TABLE_HELP)
    parser.add_argument("-o", "--folder", "--output", metavar="FOLDER", type=Path, required=True, help=_FOLDER_HELP)
    parser.add_argument(
        "--validation", metavar="TABLE", type=Path, help="held-out sets, for the scores [a part of TABLE]"
    )
    parser.add_argument(
        "--trials", metavar="N", type=int, help="fits in the end, with those of an interrupted search [30, or no limit]"
    )
    parser.add_argument("--max-time", metavar="X", type=float, help="seconds for the search [no limit]")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes that search together [1]")
    parser.add_argument(
        "--search",
        metavar="NAME,...",
        type=column_names,
        help="options to search: dim, layers, hidden, relation, pairs, half, relative, learning_rate, weight_decay "
        "[dim, layers, relation, pairs, half and learning_rate, without those that are given]",
    )
    columns = declare_columns(parser, required=True)
    columns.add_argument("--weight", metavar="COL", help="column with the weight of a row in the loss")
    declare_kinds(parser)
    declare_selector(parser, without=("checkpoint", "max_time"))


_FOLDER_HELP = "folder for the best model; FOLDER.tune beside it keeps the trials, and the same command goes on"


def _run(args: Namespace) -> CommandResult:
    selector = make_selector(args)
    kinds, ids = given_kinds(args)
    names = ("set_id", "chosen", "item_id", "features", "weight")
    with printed_warnings(UserWarning):
        found = tune(
            selector,
            args.table,
            folder=args.folder,
            trials=args.trials,
            max_time=args.max_time,
            jobs=args.jobs,
            search=args.search,
            validation=args.validation,
            columns=kinds,
            embed=ids,
            **{name: getattr(args, name) for name in names},
        )
    data = {
        "model": str(args.folder),
        "best": asdict(found.best),
        "trials": [asdict(trial) for trial in found.trials],
    }
    parts: tuple[TextTable | str, ...] = (
        found.table(),
        f"best of {len(found.trials)} trials: number {found.best.number}, saved to {args.folder}",
        f"its score is that of the best of many: setgrad evaluate {args.folder} OTHER_TABLE",
    )
    if not found.selector.best_epoch_:
        parts += ("boosted trees alone are best; most options do not change them; --no-trees searches without them",)
    return CommandResult(data, parts)


TUNE = Command(
    name="tune",
    summary="search for good options, and save the best model",
    usage="setgrad tune TABLE --set-id COL --chosen COL -o FOLDER [--trials N] [--max-time X] [options]",
    description=(
        "Fit with many values of a few options, and keep the model with the best validation score. The first fit has "
        "the options as they are. Fits that are worse than the others after as many epochs end early. The same command "
        "goes on with a search that was interrupted, and a longer one with more trials or time."
    ),
    examples=(
        "setgrad tune train.parquet --set-id set --chosen chosen -o model/ --max-time 3600 --jobs 4",
        "setgrad tune train.csv --set-id visit --chosen bought -o model/ --trials 50 --search dim,learning_rate",
    ),
    declare=_declare,
    run=_run,
)
