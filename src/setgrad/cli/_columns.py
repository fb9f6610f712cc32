"""Which columns of a table have which role: from the command line, or from the fitted model."""

from __future__ import annotations

import csv
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from setgrad.errors import OptionError
from setgrad.selector import SubsetSelector, TableSchema

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
            help="column that tells whether an item was chosen: true / false",
        )
    group.add_argument(
        "--features",
        metavar="COL,COL,...",
        type=_column_names,
        help="columns with the features of an item"
        + (" [all numeric columns without another role]" if required else ""),
    )
    group.add_argument("--item-id", metavar="COL", help="column with the name of an item, unique within a set")
    return group


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
    return replace(
        stored,
        set_id=args.set_id or stored.set_id,
        features=features,
        columns=columns and columns.renamed(dict(zip(stored.features, features, strict=True))),
        item_id=args.item_id or _stored_item_id(stored, args.table),
        chosen=getattr(args, "chosen", None) or stored.chosen,
    )


def _stored_item_id(stored: TableSchema, table: Path) -> str | None:
    """Return the item id column of the model; None if the table does not have it, and items are then numbered."""
    from setgrad.sets._sources import open_table

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


def _column_names(text: str) -> list[str]:
    # As in a line of a CSV file, so that "a,b" in quotes is one column.
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not all(names) or not names:
        raise ArgumentTypeError(f"{text!r} is not a list of columns separated by commas")
    return names
