"""`setgrad fit`: from a table of choices to a model in a folder."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from setgrad.cli._columns import Columns, check_same_features, declare_columns, read_to_fit
from setgrad.cli._command import Answer, Command
from setgrad.cli._limits import LIMIT_WORDS, check_limits, declare_limits, read_limits
from setgrad.cli._options import declare_selector, make_selector, option_words
from setgrad.cli._places import check_checkpoint
from setgrad.cli._words import in_words
from setgrad.errors import OptionError
from setgrad.report._scores import size_rule_table
from setgrad.selector import SIZE_RULES, SubsetSelector, check_model_folder, load
from setgrad.sets import Choices

# What `SubsetSelector.fit` calls an argument, beside the options of the selector, as options of the command line.
_FIT_WORDS = {
    **LIMIT_WORDS,
    "sample_weight": "--weights",
    "pass validation=": "give --validation TABLE",
    "method='": "--method '",
    "estimator='": "--estimator '",
    "device='": "--device '",
    "steps=": "--steps ",
    "keep standardize=True": "leave out --no-standardize",
}


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", type=Path, help="Parquet, CSV or Feather file, one row for each item")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="where the model goes; replaces a model that is there, and leaves other files in it alone",
    )
    parser.add_argument(
        "--validation", metavar="TABLE", type=Path, help="held-out sets, same columns [part of TABLE is held out]"
    )
    parser.add_argument(
        "--start", metavar="FOLDER", type=Path, help="model whose weights to begin with, fitted with the same options"
    )
    columns = declare_columns(parser, required=True)
    columns.add_argument("--weights", metavar="COL", help="column that says how much a row counts in the loss")
    declare_limits(parser, "under which the subsets were chosen: learns what was wanted, not what fitted")
    declare_selector(parser)


def _run(args: Namespace) -> Answer:
    selector = make_selector(args)
    if str(selector.phi).startswith(("image", "pixel-cnn")):
        raise OptionError(
            f"--phi {selector.phi} reads images, and items of a table are rows of numbers; use context, mlp or paper, "
            "or fit in Python"
        )
    check_limits(args)
    tables = {"the table that is read": args.table, "the table of held-out sets": args.validation}
    check_checkpoint(selector.checkpoint, tables, start=args.start)
    check_model_folder(args.output, checkpoint=selector.checkpoint)
    start = None if args.start is None else load(args.start, device=selector.device)
    choices, columns = read_to_fit(args.table, args)
    if args.start is not None:
        check_same_features(args.start, columns)
    constraint = read_limits(args.table, columns.set_id, choices.sets, args)
    validation = None if args.validation is None else _validation(args, columns)
    started = time.perf_counter()
    with in_words(option_words() | _FIT_WORDS):
        selector.fit(*choices, validation=validation, sample_weight=choices.weights, start=start, constraint=constraint)
    seconds = time.perf_counter() - started
    selector.save(args.output)
    columns.save(args.output)
    return _answer(args.output, selector, choices, columns.features, seconds, constraint is not None)


def _validation(args: Namespace, columns: Columns) -> tuple[Any, ...]:
    held = columns.read_choices(args.validation)
    limits = read_limits(args.validation, columns.set_id, held.sets, args)
    return (*held,) if limits is None else (*held, limits)


def _answer(
    folder: Path, selector: SubsetSelector, choices: Choices, features: tuple[str, ...], seconds: float, limited: bool
) -> Answer:
    best = selector.history_[selector.best_epoch_ - 1]
    rule = next(name for name, kind in SIZE_RULES.items() if isinstance(selector.size_rule_, kind))
    data = {
        "model": str(folder),
        "sets": len(choices),
        "items": choices.sets.layout.total,
        "features": list(features),
        "epochs": len(selector.history_),
        "best_epoch": selector.best_epoch_,
        f"validation_jaccard_{'limited' if limited else 'true_size'}": best["validation_jaccard"],
        "validation_jaccard": selector.size_scores_[rule],
        "size_rule": rule,
        "size_scores": selector.size_scores_,
        "seconds": seconds,
    }
    told = "true size given" if not limited else "within the limits"
    parts = (
        f"fitted on {len(choices)} sets with {choices.sets.layout.total} items, {len(features)} features: "
        f"{len(selector.history_)} epochs in {seconds:.1f} s",
        f"validation Jaccard, {told}: {100 * best['validation_jaccard']:.2f} at epoch {selector.best_epoch_}",
        size_rule_table(selector),
        f"saved to {folder}",
        f"next: setgrad predict {folder} NEW_TABLE -o picks.parquet",
    )
    return Answer(data, parts)


FIT = Command(
    name="fit",
    summary="learn from a table of choices",
    usage="setgrad fit TABLE --set-id COL --chosen COL -o FOLDER [options]",
    description=(
        "Learn what makes a subset good. The table has one row for each item; the rows of a set follow each other, and "
        "one column says whether the item was chosen. The names of the columns are remembered beside the model."
    ),
    examples=(
        "setgrad fit baskets.parquet --set-id basket --chosen bought -o model/",
        "setgrad fit choices.csv --set-id query --chosen clicked --features price,stars -o model/",
        "setgrad fit train.parquet --validation valid.parquet --set-id set --chosen chosen -o model/ \\\n"
        "      --hidden 256,256 --random-state 0 --checkpoint run.ckpt   # goes on if it is killed",
    ),
    declare=_declare,
    run=_run,
)
