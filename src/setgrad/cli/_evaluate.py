"""`setgrad evaluate`: scores on sets whose true subsets are known."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from setgrad.cli._columns import declare_columns, open_for
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._known import read_given
from setgrad.cli._predict import declare_model
from setgrad.report import evaluate
from setgrad.report._scores import score_table, size_rule_table
from setgrad.selector import load


def _declare(parser: ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument(
        "table", metavar="TABLE", type=Path, help="table with a column that tells whether an item was chosen"
    )
    columns = declare_columns(parser, required=False)
    columns.add_argument(
        "--given",
        metavar="COL",
        help="column that is true for chosen items that the model is told: the scores are then those of completing",
    )


def _run(args: Namespace) -> CommandResult:
    selector = load(args.model, device=args.device)
    table = open_for(selector, args, chosen=True)
    choices = table.read_choices()
    given = None if args.given is None else read_given(table.source, choices, args.given)
    scores = evaluate(selector, choices, given=given).scores
    data = {**asdict(scores), "size_scores": selector.size_scores_}
    return CommandResult(data, (score_table(scores), size_rule_table(selector)))


EVALUATE = Command(
    name="evaluate",
    summary="score a model on sets whose true subsets are known",
    usage="setgrad evaluate MODEL TABLE [options]",
    description=(
        "Compare the picks of the model with what was chosen: the Jaccard score with the size that the model chooses, "
        "and with the true size (as papers report), precision, recall and mean sizes. Given items count as picked; "
        '"found" is the share of the others that were found.'
    ),
    examples=(
        "setgrad evaluate model/ test.parquet",
        "setgrad evaluate model/ carts.parquet --given in_cart",
        "setgrad evaluate model/ other.csv --set-id basket --chosen bought --features price,stars",
    ),
    declare=_declare,
    run=_run,
)
