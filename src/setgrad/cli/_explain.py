"""`setgrad explain`: why items are chosen, and which columns matter."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import numpy as np

from setgrad.cli._columns import TABLE_HELP, column_names, declare_columns, open_for, schema_for
from setgrad.cli._command import Command, CommandResult
from setgrad.cli._output import printed_warnings
from setgrad.cli._paths import check_output
from setgrad.cli._predict import declare_formulas, declare_model
from setgrad.errors import DataError, OptionError
from setgrad.explain import Importance
from setgrad.explain._explain import ExplainOptions
from setgrad.explain.explanation import TABLES
from setgrad.selector import SubsetSelector, load
from setgrad.selector._input import Input
from setgrad.selector._known import Known

_JSON, _SHOW = ".json", 3


def _declare(parser: ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument("table", metavar="TABLE", type=Path, help=TABLE_HELP)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="file for the result: .json has all tables, .csv, .parquet and the other endings have one row for each "
        "explained item",
    )
    declare_formulas(parser)
    parser.add_argument(
        "--set", dest="sets", metavar="ID", action="append", default=[], help="a set to explain; may be given again"
    )
    parser.add_argument(
        "--show",
        metavar="N",
        type=_count,
        default=_SHOW,
        help=f"print N sets [{_SHOW}]; without -o and --set only these are explained",
    )
    parser.add_argument(
        "--near", metavar="N", type=_count, default=5, help="explain N items that were nearly chosen, too [5]"
    )
    parser.add_argument(
        "--vary",
        metavar="COL,...",
        type=column_names,
        default=[],
        help="columns of numbers: find the smallest change, as of a price, that changes whether an item is chosen",
    )
    parser.add_argument("--given", metavar="COL", help="column that is true for items that are in the subset already")
    parser.add_argument(
        "--excluded", metavar="COL", help="column that is true for items that are known to be out of it"
    )
    parser.add_argument("--size", metavar="N", type=_count, help="pick N items of each set, as in predict")
    parser.add_argument(
        "--importance",
        action="store_true",
        help="instead of sets, show how much the score falls when the values of a column are exchanged within each "
        "set; if the table does not tell what was chosen, how much the picks change",
    )
    parser.add_argument("--repeats", metavar="N", type=_count, default=5, help="exchanges of each column [5]")
    declare_columns(parser, required=False)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _run(args: Namespace) -> CommandResult:
    from setgrad.sets._formats import find_format

    if args.output is not None:
        if args.output.suffix != _JSON:
            find_format(args.output)  # raises for an unknown ending
        check_output(args.output, model=args.model, table=args.table)
    if args.importance and (args.sets or args.vary or args.given or args.excluded or args.size is not None):
        raise OptionError("--importance is about all sets; leave out --set, --vary, --given, --excluded and --size")
    selector = load(args.model, device=args.device)
    if args.importance:
        return _importance(selector, args)
    table = open_for(selector, args)
    asked = selector.ask(table, table.read_sets())
    known = Known.of(*asked.masks(args.given, args.excluded), asked.sets)
    options = ExplainOptions(near=args.near, vary=args.vary)
    wanted = _wanted(asked, args)
    found = selector.explain_input(asked, options, known=known, size=args.size, wanted=wanted)
    data = {name: found.to_dict(name) for name in TABLES}
    _write(args, data, data["items"])
    written = () if args.output is None else (f"explanation written to {args.output}",)
    return CommandResult(_as_json(data), (*found.parts(args.show), *written))


def _wanted(asked: Input, args: Namespace) -> np.ndarray:
    """Return the indices of the sets to explain."""
    ids = [str(value) for value in asked.set_ids]
    if not args.sets:
        return np.arange(len(ids) if args.output is not None else min(args.show, len(ids)))
    places = {name: index for index, name in enumerate(ids)}
    missing = [name for name in args.sets if name not in places]
    if missing:
        raise DataError(f"{args.table} has no set {missing[0]!r}; its first sets are {', '.join(ids[:5])}: --set ID")
    return np.array([places[name] for name in dict.fromkeys(args.sets)])


def _importance(selector: SubsetSelector, args: Namespace) -> CommandResult:
    from setgrad.sets._sources import open_table

    chosen = schema_for(selector, args).chosen
    is_known = args.chosen is not None or chosen in open_table(args.table).schema.names
    table = open_for(selector, args, chosen=is_known)
    asked = selector.ask(table, table.read_choices() if is_known else table.read_sets())
    found: Importance = selector.importance_of(asked, asked.chosen(None) if is_known else None, repeats=args.repeats)
    columns = found.to_dict()
    data = {"score": found.score, "importance": columns}
    _write(args, data, columns)
    written = () if args.output is None else (f"importance written to {args.output}",)
    return CommandResult(data, (found.table(), *written))


def _write(args: Namespace, data: dict[str, Any], rows: dict[str, list[Any]]) -> None:
    path: Path | None = args.output
    if path is None:
        return
    if path.suffix == _JSON:
        from setgrad._files import atomic_write

        with atomic_write(path) as draft:
            draft.write_text(json.dumps(data, default=str, indent=1) + "\n", encoding="utf-8")
        return
    import pyarrow

    from setgrad.sets._write import write_rows

    with printed_warnings(UserWarning):
        write_rows(path, pyarrow.table(rows), formulas=args.formulas)


def _as_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return plain JSON values: an id may be a date."""
    plain: dict[str, Any] = json.loads(json.dumps(data, default=str))
    return plain


EXPLAIN = Command(
    name="explain",
    summary="tell why items are chosen, and which columns matter",
    usage="setgrad explain MODEL TABLE [--set ID] [--show N] [-o FILE] [options]",
    description=(
        "For each chosen item and each near miss: its gain (by how much it raises the value of the chosen subset), its "
        "share of that value (Shapley), the columns that drive the gain, the items that it goes with or replaces, the "
        "nearest swap, and what would change the choice. A column drives a gain by as much as the gain falls, on "
        "average, with the values of the other items of the set. With --importance: which columns matter over all "
        "sets. It explains the model, not the world: columns that tell the same may share an effect."
    ),
    examples=(
        "setgrad explain model/ new.csv --set b17 --vary price",
        "setgrad explain model/ new.csv -o why.json",
        "setgrad explain model/ test.csv --importance",
    ),
    declare=_declare,
    run=_run,
)
