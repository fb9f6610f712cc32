"""Which columns of a table mean what: from the command line, and remembered beside the model."""

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

from setgrad._files import atomic_write
from setgrad.errors import FileFormatError, OptionError
from setgrad.sets import Choices, Sets, Table

_FILE, _FORMAT, _VERSION = "table.json", "setgrad.table", 1
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@final
@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table, by their roles, and the type in which their numbers are read.

    The type is that of the table that was fitted on: left open, it would depend on all rows of a table, and so would
    the picks of each set in it. None leaves it open, as models did that were saved before it was remembered.
    """

    set_id: str
    features: tuple[str, ...]
    item_id: str | None = None
    chosen: str | None = None
    dtype: str | None = None

    def read_sets(self, path: Path) -> Table:
        """Read the sets of a table, whether or not it says what was chosen."""
        from setgrad.sets import read_table

        return read_table(
            path, set_id=self.set_id, features=self.features, item_id=self.item_id, dtype=self._torch_dtype
        )

    def read_choices(self, path: Path) -> Choices:
        """Read the sets of a table and what was chosen from them."""
        from setgrad.sets import read_table

        if self.chosen is None:
            raise OptionError("say which column holds what was chosen: --chosen COLUMN")
        return read_table(
            path,
            set_id=self.set_id,
            features=self.features,
            item_id=self.item_id,
            chosen=self.chosen,
            dtype=self._torch_dtype,
        )

    @property
    def _torch_dtype(self) -> torch.dtype | None:
        return None if self.dtype is None else _DTYPES[self.dtype]

    def save(self, folder: Path) -> None:
        """Write the names beside a saved model."""
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=2)
        with atomic_write(folder / _FILE) as draft:
            draft.write_text(text + "\n", encoding="utf-8")


def declare_columns(parser: ArgumentParser, *, required: bool, chosen: bool = True) -> Any:
    """Give a command the options that name columns, and return their group.

    Where a model remembers the columns, none is required. `chosen` says whether the command reads what was chosen.
    """
    group = parser.add_argument_group(
        "columns of the table", None if required else "the model remembers those it was fitted on"
    )
    group.add_argument("--set-id", metavar="COL", required=required, help="column that says to which set a row belongs")
    if chosen:
        group.add_argument(
            "--chosen",
            metavar="COL",
            required=required,
            help="column that says whether the item was chosen: true / false",
        )
    group.add_argument(
        "--features",
        metavar="COL,COL,...",
        type=_names,
        help="columns that describe an item" + (" [every numeric column without another role]" if required else ""),
    )
    group.add_argument("--item-id", metavar="COL", help="column that names the item, once in a set")
    return group


def read_to_fit(path: Path, args: Namespace) -> tuple[Choices, Columns]:
    """Read a table to fit on. The features are spelled out, so that the order of another table does not matter."""
    from setgrad.sets import read_table

    choices = read_table(
        path,
        set_id=args.set_id,
        features=args.features,
        chosen=args.chosen,
        item_id=args.item_id,
        weight=args.weights,
    )
    features = tuple(choices.features or ())
    return choices, Columns(args.set_id, features, args.item_id, args.chosen, dtype_name(choices.sets))


def dtype_name(sets: Sets) -> str | None:
    """Name the type in which a table with these sets is to be read; None for bytes, which no table is read in."""
    return next((name for name, dtype in _DTYPES.items() if dtype == sets.dtype), None)


def columns_of_model(folder: Path, args: Namespace) -> Columns:
    """Take the columns that the model was fitted on, except those that the options name."""
    stored = _load(folder)
    if stored is None and (args.set_id is None or args.features is None):
        raise OptionError(
            f"{folder} does not say which columns it was fitted on (it has no {_FILE}); give --set-id and --features"
        )
    return Columns(
        set_id=args.set_id or stored.set_id,  # type: ignore[union-attr]
        features=_features(stored, args.features),
        item_id=args.item_id or _item_id(stored, args.table),
        chosen=getattr(args, "chosen", None) or (stored.chosen if stored else None),
        dtype=stored.dtype if stored else None,
    )


def _features(stored: Columns | None, named: list[str] | None) -> tuple[str, ...]:
    """The model's own columns in its own order, in whatever order they are named; others stand in for them in turn."""
    if stored is not None and (named is None or sorted(named) == sorted(stored.features)):
        return stored.features
    return tuple(named or ())


def _item_id(stored: Columns | None, table: Path) -> str | None:
    """The column of item ids that the model remembers, unless the table has none: items are then numbered."""
    from setgrad.sets._formats import read_schema

    if stored is None or stored.item_id is None:
        return None
    # A table that is not there is refused when it is read, after what is wrong with the options.
    return stored.item_id if not table.exists() or stored.item_id in read_schema(table).names else None


def check_same_features(folder: Path, columns: Columns) -> None:
    """Refuse to go on from a model that was fitted on other columns, or the same in another order."""
    stored = _load(folder)
    if stored is not None and stored.features != columns.features:
        raise OptionError(
            f"{folder} was fitted on the features {', '.join(stored.features)}, in this order; "
            f"use the same: --features {','.join(stored.features)}"
        )


def _load(folder: Path) -> Columns | None:
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged ({error}); delete it and name the columns by options") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT or found.get("version") != _VERSION:
        raise FileFormatError(f"{path} was not written by this setgrad; delete it and name the columns by options")
    optional = (found.get("item_id"), found.get("chosen"))
    if not (_is_name(found.get("set_id")) and _are_names(found.get("features"))) or not all(
        name is None or _is_name(name) for name in optional
    ):
        raise FileFormatError(f"{path} is damaged: it names no columns; delete it and name the columns by options")
    dtype = found.get("dtype")
    if dtype not in (None, *_DTYPES):
        raise FileFormatError(f"{path} is damaged: it has no type {dtype!r}; delete it and name the columns by options")
    return Columns(found["set_id"], tuple(found["features"]), *optional, dtype)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name != ""


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and bool(names) and all(map(_is_name, names))


def _names(text: str) -> list[str]:
    # As in a line of a CSV file, so that "a,b" in quotes is one column.
    names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    if not all(names) or not names:
        raise ArgumentTypeError(f"{text!r} is not a list of columns separated by commas")
    return names
