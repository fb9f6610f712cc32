"""Which columns of a table have which role: from the command line, or from the fitted model."""

from __future__ import annotations

import csv
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from setgrad.cli._output import printed_warnings
from setgrad.columns._kind_texts import KIND_TEXTS
from setgrad.errors import OptionError
from setgrad.selector import SubsetSelector, TableSchema
from setgrad.selector._fitted_table import FittedTable

TABLE_HELP = "Parquet, Feather, CSV or JSON-lines file, or a folder of them, one row for each item"


def declare_columns(parser: ArgumentParser, *, required: bool, chosen: bool = True) -> Any:
    """Add the options that name columns to a command, and return their group.

    Args:
        parser: The parser of the command.
        required: Whether the columns are required. They are not where a fitted model knows them.
        chosen: Whether the command reads what was chosen.
    """
    group = parser.add_argument_group(
        "columns of the table", None if required else "by default those of the table that the model was fitted on"
    )
    group.add_argument("--set-id", metavar="COL", required=required, help="column with the set of a row")
    if chosen:
        group.add_argument(
            "--chosen",
            metavar="COL",
            required=required,
            help="column that tells whether an item was chosen: true / false, yes / no or 1 / 0",
        )
    group.add_argument(
        "--features",
        metavar="COL,COL,...",
        type=column_names,
        help="columns with the features of an item"
        + (" [all that are understood and have no other role]" if required else ""),
    )
    group.add_argument("--item-id", metavar="COL", help="column with the name of an item, unique within a set")
    return group


def table_path(text: str) -> Path | str:
    """Return the path of a table, or the address of an object store."""
    return text if "://" in text else Path(text)


def declare_stream(parser: ArgumentParser) -> None:
    """Add the option that a table is read block by block to a command."""
    parser.add_argument(
        "--stream",
        action=BooleanOptionalAction,
        help="read Parquet files block by block, so that they may be larger than memory, also from an address such as "
        "s3://bucket/rows; the rows of a set must be together [if the table would not fit]",
    )


def declare_kinds(parser: ArgumentParser) -> None:
    """Add the options that name the kinds of columns to a command, one for each kind."""
    group = parser.add_argument_group(
        "kinds of columns", "by default they are found from names, types and values; --dry-run shows them"
    )
    for kind, text in KIND_TEXTS.items():
        group.add_argument(_kind_flag(kind), dest=f"kind_{kind}", metavar="COL,...", type=column_names, help=text)


def _kind_flag(kind: str) -> str:
    # Not to be taken for --item-id and --set-id.
    return "--ids" if kind == "id" else f"--{kind}"


def given_kinds(args: Namespace) -> tuple[dict[str, str], list[str]]:
    """Return the kinds of columns that the command line names, and the columns of ids to learn vectors for.

    Raises:
        OptionError: If it names two kinds for a column.
    """
    kinds: dict[str, str] = {}
    for kind in KIND_TEXTS:
        for name in getattr(args, f"kind_{kind}") or ():
            if kinds.setdefault(name, kind) != kind:
                flags = f"{_kind_flag(kinds[name])} and {_kind_flag(kind)}"
                raise OptionError(f"{flags} both name the column {name!r}; a column has one kind")
    ids = [name for name, kind in kinds.items() if kind == "id"]
    return {name: kind for name, kind in kinds.items() if kind != "id"}, ids


def schema_for(selector: SubsetSelector, args: Namespace) -> TableSchema:
    """Return the columns that the model was fitted on, with those that the command line names replaced."""
    stored = selector.table_
    if stored is None:
        if args.set_id is None or args.features is None:
            raise OptionError(
                f"{args.model} was saved from Python and does not know the columns of a table; give --set-id and "
                "--features"
            )
        return TableSchema(args.set_id, tuple(args.features), args.item_id, getattr(args, "chosen", None))
    # The columns of the model keep its order, however they are listed; other columns replace them one by one.
    is_same = args.features is None or sorted(args.features) == sorted(stored.features)
    features = stored.features if is_same else tuple(args.features)
    if len(features) != len(stored.features):
        raise OptionError(
            f"{args.model} was fitted on the features {', '.join(stored.features)}; name as many columns in their "
            "place: --features"
        )
    columns = stored.columns
    if args.set_id is None and stored.set_id is None:
        raise OptionError(f"{args.model} was fitted with an array of groups; name the column of the sets: --set-id")
    return replace(
        stored,
        set_id=args.set_id or stored.set_id,
        features=features,
        columns=columns and columns.renamed(dict(zip(stored.features, features, strict=True))),
        item_id=args.item_id or _stored_item_id(stored, args.table),
        chosen=getattr(args, "chosen", None) or stored.chosen,
    )


def open_for(selector: SubsetSelector, args: Namespace, *, chosen: bool = False) -> FittedTable:
    """Return the table of a command, with the rows of each set adjacent.

    Args:
        selector: The model.
        args: The command line.
        chosen: Whether the table tells what was chosen.
    """
    with printed_warnings(UserWarning):
        return FittedTable.open(args.table, schema_for(selector, args), chosen=chosen)


def _stored_item_id(stored: TableSchema, table: Path | str) -> str | None:
    """Return the item id column of the model; None if the table does not have it, and items are then numbered."""
    from setgrad.sets._sources import open_table

    if isinstance(table, str):
        # At an address, where a missing column is found when the table is opened.
        return stored.item_id
    # A missing table is reported when it is read, after errors in the options.
    has_column = stored.item_id is not None and (not table.exists() or stored.item_id in open_table(table).schema.names)
    return stored.item_id if has_column else None


def check_same_features(start: SubsetSelector, features: Sequence[str] | None, folder: Path) -> None:
    """Check that the model to start from has these features in the same order.

    Args:
        start: The model.
        features: The features; None for those of the model.
        folder: The folder of the model.

    Raises:
        OptionError: If it has others.
    """
    stored = start.table_
    if stored is not None and features is not None and stored.features != tuple(features):
        raise OptionError(
            f"{folder} was fitted on the features {', '.join(stored.features)}, in this order; "
            f"use the same: --features {','.join(stored.features)}"
        )


def column_names(text: str) -> list[str]:
    """Return the columns of a list with commas."""
    # As in a line of a CSV file, so that "a,b" in quotes is one column.
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not all(names) or not names:
        raise ArgumentTypeError(f"{text!r} is not a list of columns separated by commas")
    return names
