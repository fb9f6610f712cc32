"""`setgrad report`: an HTML page about a model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from setgrad.cli._columns import declare_columns, open_for
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._paths import check_output
from setgrad.cli._predict import declare_model
from setgrad.report import Section, evaluate, write_report
from setgrad.report._scores import score_table
from setgrad.report._write import check_matplotlib
from setgrad.selector import load


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
    parser.add_argument("--sets", metavar="N", type=int, default=6, help="number of sets to draw [6]")
    declare_columns(parser, required=False)


def _run(args: Namespace) -> CommandResult:
    check_matplotlib()
    check_output(args.output, model=args.model, table=args.table)
    selector = load(args.model, device=args.device)
    evaluation = None
    if args.table is not None:
        evaluation = evaluate(selector, open_for(selector, args, chosen=True).read_choices())
    section = Section(args.table.name if args.table else "Training", selector, evaluation)
    write_report(args.output, [section], title=f"Selector {args.model.resolve().name}", sets=args.sets)
    data = {"report": str(args.output)}
    if evaluation is None:
        return CommandResult(data, (f"report written to {args.output}",))
    return CommandResult(
        {**data, "scores": asdict(evaluation.scores)},
        (score_table(evaluation.scores), f"report written to {args.output}"),
    )


REPORT = Command(
    name="report",
    summary="write a page about a model: learning curve, scores, pictures of sets",
    usage="setgrad report MODEL [TABLE] [-o FILE] [options]",
    description=(
        "Write one self-contained HTML page: the learning curve, the options and, with a table, the scores and "
        "pictures of a few sets from the worst to the best, with the picks and the true subsets."
    ),
    examples=(
        "setgrad report model/",
        "setgrad report model/ test.parquet -o report.html",
        "setgrad report model/ test.parquet --sets 12 -o look.html",
    ),
    declare=_declare,
    run=_run,
)
