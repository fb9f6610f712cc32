"""`setgrad fit`: from a table of choices to a model in a folder."""

from __future__ import annotations

import time
import warnings
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from setgrad._launch import is_first, launched
from setgrad._text_table import TextTable
from setgrad.cli._columns import (
    TABLE_HELP,
    check_same_features,
    declare_columns,
    declare_kinds,
    declare_stream,
    given_kinds,
    table_path,
)
from setgrad.cli._command import STOPPED, Command, CommandResult
from setgrad.cli._limits import check_limits, declare_limits, given_limits, read_limits_of
from setgrad.cli._options import declare_selector, make_selector
from setgrad.cli._output import printed_warnings
from setgrad.cli._paths import check_checkpoint
from setgrad.columns import TableDescription
from setgrad.columns._arguments import TableArguments
from setgrad.errors import OptionError
from setgrad.report._scores import size_rule_table
from setgrad.selector import SIZE_RULES, SubsetSelector, TableSchema, load
from setgrad.selector._choice_gradient import FENCHEL_YOUNG, GRADIENTS, make_gradient
from setgrad.selector._fitted_table import FittedTable
from setgrad.selector._model_files import check_model_folder
from setgrad.selector._stream_choice import check_streamed, is_streamed
from setgrad.selector._stream_fit import StreamedTable
from setgrad.selector._table_input import FitTable, list_warnings
from setgrad.selector._tables import CONDITIONAL
from setgrad.selector.choice_losses import CHOICE_LOSSES


def _declare(parser: ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", type=table_path, help=TABLE_HELP)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        help="folder for the model; an old model in it is replaced, other files stay",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what is understood of the table and what looks wrong, and stop; -o is not needed",
    )
    parser.add_argument(
        "--validation",
        metavar="TABLE",
        type=Path,
        help="held-out sets with the same columns, for early stopping [a part of TABLE]",
    )
    parser.add_argument(
        "--start", metavar="FOLDER", type=Path, help="model with the same options, whose weights training starts from"
    )
    columns = declare_columns(parser, required=True)
    columns.add_argument(
        "--weight",
        "--sample-weight",
        "--weights",
        metavar="COL",
        help="column with the weight of a row in the loss; the other names are old ones",
    )
    declare_kinds(parser)
    declare_limits(
        parser,
        "the limits under which the subsets were chosen: an item that was good but too\n"
        "expensive is then not learned as a bad one",
    )
    parser.add_argument(
        "--gradient",
        metavar="NAME",
        default=FENCHEL_YOUNG,
        help=f"with limits, how the best subset is differentiated: {', '.join(GRADIENTS)} [{FENCHEL_YOUNG}]",
    )
    parser.add_argument(
        "--choice-loss",
        metavar="NAME",
        help=f"loss of the best subset, for the other gradients: {', '.join(CHOICE_LOSSES)} [hamming]",
    )
    declare_stream(parser)
    declare_selector(parser)


def _run(args: Namespace) -> CommandResult:
    selector = make_selector(args)
    if str(selector.phi).startswith(("image", "pixel-cnn")):
        raise OptionError(
            f"--phi {selector.phi} reads images, but items of a table are rows of numbers; use context, mlp or paper, "
            "or fit in Python"
        )
    check_limits(args)
    kinds, ids = given_kinds(args)
    columns = (args.set_id, args.chosen, args.item_id, args.features, args.weight, kinds, ids)
    arguments = TableArguments(*columns)
    if args.dry_run:
        return _describe(args, selector, arguments)
    if args.output is None:
        raise OptionError("name the folder for the model: -o FOLDER; or look at the table only: --dry-run")
    tables = {"the input table": args.table, "the table of validation sets": args.validation}
    check_checkpoint(selector.checkpoint, tables, start=args.start)
    check_model_folder(args.output, checkpoint=selector.checkpoint)
    start = None if args.start is None else load(args.start, device=selector.device)
    with nullcontext() if launched() is None else selector.fitting_together():
        return _fit(args, selector, arguments, start)


def _fit(
    args: Namespace, selector: SubsetSelector, arguments: TableArguments, start: SubsetSelector | None
) -> CommandResult:
    if is_streamed(args.table, args.stream, verbose=selector.verbose > 0):
        return _fit_streamed(args, selector, arguments, start)
    read = _read_table(args, selector, arguments, start)
    assert read.source is not None
    constraint = read_limits_of(read.source, read.choices, args)
    # The rows are not needed any more, and may take much memory.
    read = replace(read, source=None)
    validation = None if args.validation is None else _read_validation(args, read.schema)
    training = make_gradient(args.gradient, args.choice_loss, constrained=constraint is not None)
    started = time.perf_counter()
    with printed_warnings(RuntimeWarning):
        selector.fit_read(read, validation, constraint, training, start)
    seconds = time.perf_counter() - started
    _save(selector, args.output)
    counts = (len(read.choices), read.choices.sets.layout.total)
    return _result(args.output, selector, counts, read.description, seconds, has_limits=constraint is not None)


def _fit_streamed(
    args: Namespace, selector: SubsetSelector, arguments: TableArguments, start: SubsetSelector | None
) -> CommandResult:
    """Fit on a table that is read block by block."""
    check_streamed(given_limits(args) or None)
    if start is not None:
        check_same_features(start, args.features, args.start)
    started = time.perf_counter()
    with printed_warnings(UserWarning):
        read = selector.read_to_stream(args.table, arguments, has_validation=args.validation is not None, start=start)
    training = make_gradient(args.gradient, args.choice_loss, constrained=False)
    with printed_warnings(RuntimeWarning):
        selector.fit_streamed(read, args.validation, training, start)
    seconds = time.perf_counter() - started
    _save(selector, args.output)
    return _result(args.output, selector, (read.sets, read.items), read.description, seconds, has_limits=False)


def _save(selector: SubsetSelector, folder: Path) -> None:
    if is_first():
        with printed_warnings(UserWarning):
            selector.save(folder)


def _describe(args: Namespace, selector: SubsetSelector, arguments: TableArguments) -> CommandResult:
    """Return what is understood of the table."""
    if args.start is not None:
        raise OptionError("--start uses the columns of its model as they are; leave it out to describe the table")
    # What looks wrong is a part of the result.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        is_large = is_streamed(args.table, args.stream, verbose=selector.verbose > 0)
        reader = selector.read_to_stream if is_large else selector.read_to_fit
        read: FitTable | StreamedTable = reader(args.table, arguments, has_validation=args.validation is not None)
    description = read.description
    assert description is not None
    texts = [f"warning: {text}" for text in list_warnings(description)]
    return CommandResult({"description": asdict(description)}, (description.text_table, *texts))


def _read_table(
    args: Namespace, selector: SubsetSelector, arguments: TableArguments, start: SubsetSelector | None
) -> FitTable:
    if start is not None:
        check_same_features(start, args.features, args.start)
    with printed_warnings(UserWarning):
        read = selector.read_to_fit(
            args.table, arguments, has_validation=args.validation is not None, start=start, keep_rows=True
        )
    if start is not None:
        # A model of an earlier version has no columns of its own.
        check_same_features(start, read.schema.features, args.start)
    return read


def _read_validation(args: Namespace, schema: TableSchema) -> tuple[Any, ...]:
    with printed_warnings(UserWarning):
        table = FittedTable.open(args.validation, schema, chosen=True)
    choices = table.read_choices()
    constraint = read_limits_of(table.source, choices, args)
    return (*choices,) if constraint is None else (*choices, constraint)


def _result(
    folder: Path,
    selector: SubsetSelector,
    counts: tuple[int, int],
    description: TableDescription | None,
    seconds: float,
    *,
    has_limits: bool,
) -> CommandResult:
    """Return what to say about a fit; `counts` are the numbers of sets and of items."""
    assert selector.table_ is not None
    (sets, items), features = counts, selector.table_.features
    rule = next(name for name, kind in SIZE_RULES.items() if isinstance(selector.size_rule_, kind))
    data = {
        "model": str(folder),
        "sets": sets,
        "items": items,
        "features": list(features),
        "epochs": len(selector.history_),
        "best_epoch": selector.best_epoch_,
        f"validation_jaccard_{'limited' if has_limits else 'true_size'}": selector.validation_score_,
        "validation_jaccard": selector.size_scores_[rule],
        "size_rule": rule,
        "size_scores": selector.size_scores_,
        "seconds": seconds,
        "stopped": selector.stopped_,
        "description": None if description is None else asdict(description),
    }
    # As `score_sets` has it: neither a score from nothing, nor that of a completion.
    parts_given = ", and one right item in half of the choices" if selector.options_.method == CONDITIONAL else ""
    condition = "within the limits" if has_limits else f"true size given{parts_given}"
    used = f"at epoch {selector.best_epoch_}" if selector.best_epoch_ else "by boosted trees alone"
    parts: tuple[TextTable | str, ...] = (
        f"fitted on {sets} sets with {items} items, {len(features)} features: "
        f"{len(selector.history_)} epochs in {seconds:.1f} s",
        f"validation Jaccard, {condition}: {100 * selector.validation_score_:.2f} {used}",
        size_rule_table(selector),
        f"saved to {folder}",
        f"next: setgrad predict {folder} NEW_TABLE -o picks.parquet",
    )
    if selector.stopped_:
        parts += ("stopped: the folder holds the best model so far; with --checkpoint the same command goes on",)
    return CommandResult(data, parts, STOPPED if selector.stopped_ else 0)


FIT = Command(
    name="fit",
    summary="learn from a table of choices",
    usage="setgrad fit TABLE --set-id COL --chosen COL -o FOLDER [options]",
    description=(
        "Learn what makes a subset good. The table has one row for each item; one column tells its set, and one "
        "whether the item was chosen. Numbers, categories, dates, texts and vectors are understood as they are, also "
        "with gaps. The model remembers the names of the columns. Started as `torchrun --nproc-per-node 4 -m setgrad "
        "fit ...`, four processes fit one model together."
    ),
    examples=(
        "setgrad fit baskets.parquet --set-id basket --chosen bought --dry-run   # what is understood",
        "setgrad fit choices.csv --set-id query --chosen clicked --category shop --ignore stock -o model/",
        "setgrad fit train.parquet --validation valid.parquet --set-id set --chosen chosen -o model/ \\\n"
        "      --hidden 256,256 --random-state 0 --checkpoint run.ckpt   # resumes if it is interrupted",
    ),
    declare=_declare,
    run=_run,
)
