"""From picks to a table with one row for each item.

Imported only when a table is written, so PyArrow may be imported at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pyarrow import types

from setgrad._files import atomic_write
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets._columns import plain
from setgrad.sets._formats import format_of
from setgrad.sets._sets import Sets


def write_table(
    path: str | PathLike[str],
    picks: Sets,
    *,
    set_ids: Sequence[Any] | np.ndarray | None = None,
    item_ids: Sequence[Any] | np.ndarray | None = None,
    probability: Sets | None = None,
    names: tuple[str, str] = ("set_id", "item_id"),
) -> None:
    """Write picks to a Parquet, CSV or Feather file: set id, item id, probability (if given) and chosen.

    The file appears whole or not at all, and replaces one that was there. Missing folders are made. A set without
    items has no rows, so it is not in the table.

    Args:
        path: The file; its ending tells the format (.parquet, .pq, .csv, .feather, .arrow).
        picks: Booleans, true for a chosen item: what `predict` gives.
        set_ids: One id for each set, all different: numbers, texts, UUIDs (written as texts), or bytes, which a CSV
            file takes only if they are text. By default sets are numbered from 0.
        item_ids: One id for each item of all sets in a row; by default items are numbered from 0 in each set.
        probability: A real number for each item: what `predict_proba` gives.
        names: What the columns with the set id and the item id are called.

    Example:
        >>> import pathlib, tempfile
        >>> from setgrad.sets import Sets
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "picks.csv")
        >>> write_table(path, Sets.from_list([[True, False], [True]]), set_ids=["a", "b"], names=("basket", "place"))
        >>> print(path.read_text().replace('"', ""))
        basket,place,chosen
        a,0,true
        a,1,false
        b,0,true
        >>> folder.cleanup()
    """
    path = Path(path)
    format_of(path)  # an unknown ending is refused before any work
    for name, given in {"picks": picks, "probability": probability}.items():
        if not isinstance(given, Sets) and not (given is None and name == "probability"):
            raise ShapeError(f"{name} must be Sets, not {type(given).__name__}; Sets.from_list makes them of lists")
    if picks.dtype != torch.bool or picks.values.dim() != 1:
        raise ShapeError(f"picks must hold one boolean for each item, as predict gives; got {picks!r}")
    if len({*names, "probability", "chosen"}) != 4:
        raise OptionError(f"names={names!r} must be two different names, and neither 'probability' nor 'chosen'")
    layout = picks.layout
    of_sets = _ids(path, range(len(layout)) if set_ids is None else set_ids, len(layout), "set")
    if len(of_sets.unique()) != len(of_sets):
        raise DataError("two sets have the same id, so their rows could not be told apart; give each its own")
    positions = np.arange(layout.total) - np.repeat(layout.host[:-1], layout.host_lengths)
    columns = {
        names[0]: of_sets.take(pa.array(np.repeat(np.arange(len(layout)), layout.host_lengths))),
        names[1]: _ids(path, positions if item_ids is None else item_ids, layout.total, "item"),
    }
    if probability is not None:
        if not probability.layout.same_as(layout) or probability.values.dim() != 1:
            raise ShapeError(f"probability must hold one number for each item of picks; {probability!r} and {picks!r}")
        values = probability.values.detach().cpu()
        columns["probability"] = pa.array(values.numpy() if values.dtype == torch.float64 else values.float().numpy())
    columns["chosen"] = pa.array(picks.values.cpu().numpy())
    try:
        with atomic_write(path) as draft:
            format_of(path).write(pa.table(columns), draft)
    except pa.ArrowException as error:
        raise DataError(f"{path}: this cannot be written: {error}; use another format, as .parquet") from error


def check_ids(
    path: Path, *, set_ids: Sequence[Any] | np.ndarray | None, item_ids: Sequence[Any] | np.ndarray | None
) -> None:
    """Refuse ids that a file could not hold; ask before the work, not after it."""
    for given, what in ((set_ids, "set"), (item_ids, "item")):
        if given is not None:
            _ids(path, given, len(given), what)


def _ids(path: Path, given: Sequence[Any] | np.ndarray | range, count: int, what: str) -> pa.Array:
    argument = f"{what}_ids"
    try:
        array = plain(_array(given))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{argument} cannot be written: {error}; use numbers or texts, all of one kind") from None
    if types.is_nested(array.type):
        raise DataError(f"{argument} cannot be written: an id must be a number or a text, not {array.type}")
    if not format_of(path).typed and _is_bytes(array.type):
        array = _as_text(array, argument)
    missing = array.is_null(nan_is_null=True)
    # In a file without types an empty text cannot be told from nothing.
    if not format_of(path).typed and (types.is_string(array.type) or types.is_large_string(array.type)):
        missing = pc.or_(missing, pc.equal(array.fill_null(""), ""))
    first = missing.index(True).as_py()
    if first >= 0:
        raise DataError(f"{argument} has no value at entry {first}; give one for each {what}")
    if len(array) != count:
        raise ShapeError(f"{argument} has {len(array)} entries for {count} {what}s; give one for each {what}")
    return array


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _as_text(array: pa.Array, argument: str) -> pa.Array:
    try:
        return array.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise DataError(
            f"{argument} holds bytes that are no text, which a CSV file cannot take; write .parquet or use texts as ids"
        ) from None


def _array(given: Sequence[Any] | np.ndarray | range) -> pa.Array:
    try:
        return pa.array(given)
    except OverflowError:
        # Whole numbers of 64 bits without a sign, such as hashes, which PyArrow does not think of by itself.
        return pa.array(given, pa.uint64())
