"""`setgrad report`: an HTML page about a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from setgrad.cli._columns import declare_columns, open_for
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._output import printed_warnings
from setgrad.cli._paths import check_output
from setgrad.cli._predict import declare_model
from setgrad.columns._describe import TableDescription
from setgrad.errors import OptionError
from setgrad.report import Section, evaluate, write_report
from setgrad.report._scores import score_table
from setgrad.report._write import check_matplotlib
from setgrad.selector import SubsetSelector, TableSchema, load


def _declare(parser: ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument(
        "table",
        metavar="TABLE",
        type=Path,
        nargs="?",
        help="sets to score and to draw; needs a column that tells whether an item was chosen",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help="the page [report.html]"
    )
    parser.add_argument(
        "--train",
        metavar="TABLE",
        type=Path,
        help="the table of the fit, for the baselines to learn from; without it they learn from four fifths of TABLE "
        "and are scored on the rest, five times",
    )
    parser.add_argument(
        "--sets", metavar="N", type=int, default=6, help="number of sets to show, half the worst, half the best [6]"
    )
    declare_columns(parser, required=False)


def _run(args: Namespace) -> CommandResult:
    check_matplotlib()
    check_output(args.output, model=args.model, table=args.table)
    if args.train is not None:
        if args.table is None:
            raise OptionError("--train is for baselines that are scored on a table; name the table too")
        check_output(args.output, model=args.model, table=args.train)
    selector = load(args.model, device=args.device)
    section = Section("Training", selector) if args.table is None else _evaluated(selector, args)
    evaluation = section.evaluation
    write_report(args.output, [section], title=f"Selector {args.model.resolve().name}", sets=args.sets)
    data = {"report": str(args.output)}
    if evaluation is None:
        return CommandResult(data, (f"report written to {args.output}",))
    return CommandResult(
        {**data, "scores": asdict(evaluation.scores)},
        (score_table(evaluation.scores), f"report written to {args.output}"),
    )


def _evaluated(selector: SubsetSelector, args: Namespace) -> Section:
    table = open_for(selector, args, chosen=True)
    training = None
    if args.train is not None:
        training = open_for(selector, Namespace(**{**vars(args), "table": args.train}), chosen=True).read_choices()
    return Section(
        args.table.name,
        selector,
        evaluate(selector, table.read_choices()),
        training=training,
        table=describe_table(args.table, table.schema),
    )


def describe_table(path: Path, schema: TableSchema) -> TableDescription:
    """Return the columns of a table, those that the model reads in the kind in which it reads them."""
    from setgrad.columns._kinds import KINDS
    from setgrad.columns._understand import describe

    names = {kind: name for name, kind in KINDS.items()}
    fitted = () if schema.columns is None else schema.columns.columns
    # Numbered columns are found to be one vector; named as such, each would have to be one.
    kinds = {column.sources[0]: names[type(column)] for column in fitted if len(column.sources) == 1}
    with printed_warnings(UserWarning):
        return describe(
            path,
            set_id=schema.set_id or "",
            chosen=schema.chosen,
            item_id=schema.item_id,
            features=schema.features,
            columns=kinds,
        )


REPORT = Command(
    name="report",
    summary="write a page about a model: scores, baselines, calibration, importance, sets",
    usage="setgrad report MODEL [TABLE] [--train TABLE] [-o FILE] [options]",
    description=(
        "Write one self-contained HTML page: the learning curve, the options and, with a table, facts about the data, "
        "the scores beside those of baselines, calibration, importance of columns, the worst and the best sets, gains "
        "and pairs of items. Use sets that the fit has not seen."
    ),
    examples=(
        "setgrad report model/",
        "setgrad report model/ test.parquet --train train.parquet -o report.html",
        "setgrad report model/ test.parquet --sets 12 -o look.html",
    ),
    declare=_declare,
    run=_run,
)
