"""All columns of a table that a model reads, and how they become the numbers of its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, final, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from setgrad.columns._column import FittedColumn
from setgrad.columns._encoded import Encoded
from setgrad.columns._kinds import KINDS
from setgrad.columns._memory import TextMemory
from setgrad.columns._part import Part
from setgrad.columns._surprises import Surprises
from setgrad.columns.text import TextColumn
from setgrad.errors import DataError, FileFormatError
from setgrad.sets._arrays import Float32LossCheck
from setgrad.sets._columns import Column
from setgrad.sets._faults import Faults
from setgrad.sets._read import ItemReader


@final
@dataclass(frozen=True)
class Columns:
    """The fitted columns of a table, in the order of the numbers of an item.

    Attributes:
        columns: The columns.
    """

    columns: tuple[FittedColumn, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns of the table that are read, each once."""
        return tuple(dict.fromkeys(source for column in self.columns for source in column.sources))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the numbers of an item are."""
        return tuple(part for column in self.columns for part in column.parts)

    @property
    def width(self) -> int:
        """How many numbers an item has."""
        return sum(part.width for part in self.parts)

    def reader(self, surprises: Surprises | None = None) -> ItemReader:
        """Return what reads the items of a table in chunks, and counts what is new in it."""
        memories = {each.name: TextMemory(each) for each in self.columns if isinstance(each, TextColumn)}
        return ItemReader(list(self.names), self.width, partial(self._read, surprises, memories))

    def _read(
        self,
        surprises: Surprises | None,
        memories: Mapping[str, TextMemory],
        chunk: Mapping[str, Column],
        dtype: torch.dtype,
        check: Float32LossCheck | None,
    ) -> np.ndarray:
        rows = len(chunk[self.names[0]].array)
        block = np.empty((rows, self.width), np.float64 if dtype == torch.float64 else np.float32)
        start, faults = 0, Faults()
        with np.errstate(over="ignore"):
            for column in self.columns:
                sources, place = [chunk[source] for source in column.sources], slice(start, start + column.width)
                start = place.stop
                with faults.collect():
                    memory = memories.get(column.name)
                    encoded = column.encode_distinct(sources) if memory is None else memory.encode(sources[0])
                    encoded.write_to(block[:, place])
                    if surprises is not None:
                        surprises.see(column, sources, encoded)
                    if not column.parts[0].codes:
                        if check is not None:
                            _update(check, place.start, encoded)
                        elif not np.isfinite(block[:, place]).all():
                            raise _too_large(column, sources, encoded.block, dtype)
        faults.check()
        return block

    def items(self, encoded: list[Encoded]) -> Tensor:
        """Return the numbers of items `(rows, width)`, as a reader gives them, and use up what they are made of.

        Args:
            encoded: The numbers of each column.
        """
        check, start = Float32LossCheck(self.width), 0
        for column, part in zip(self.columns, encoded, strict=True):
            if not column.parts[0].codes:
                _update(check, start, part)
            start += column.width
        rows = len(encoded[0].values if encoded[0].rows is None else encoded[0].rows)
        items = np.empty((rows, self.width), np.float64 if check.needs_float64 else np.float32)
        start = 0
        for column in self.columns:
            # Each is freed once it is written, because the table may not fit into memory twice.
            encoded.pop(0).write_to(items[:, start : start + column.width])
            start += column.width
        return torch.from_numpy(items)

    def renamed(self, names: Mapping[str, str]) -> Columns:
        """Return the columns under other names in the table."""
        changed = []
        for column in self.columns:
            changes: dict[str, Any] = {"name": names.get(column.name, column.name)}
            if getattr(column, "columns", ()):
                changes["columns"] = tuple(names.get(source, source) for source in column.sources)
            changed.append(replace(column, **changes))
        return Columns(tuple(changed))

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain values, without what only training needs."""
        kinds = {kind: name for name, kind in KINDS.items()}
        return [
            {"kind": kinds[type(column)]} | {field.name: getattr(column, field.name) for field in _saved(type(column))}
            for column in self.columns
        ]

    @staticmethod
    def from_json(data: Any, place: str) -> Columns:
        """Return the columns that `to_json` described.

        Raises:
            FileFormatError: If they are damaged.
        """
        if not isinstance(data, list) or not data:
            raise FileFormatError(f"{place} is damaged: it does not describe the columns of a table")
        return Columns(tuple(_column(entry, place) for entry in data))


def _update(check: Float32LossCheck, start: int, encoded: Encoded) -> None:
    for index in range(encoded.values.shape[1]):
        check.update(start + index, encoded.values[:, index])


def _too_large(column: FittedColumn, sources: Sequence[Column], values: np.ndarray, dtype: torch.dtype) -> DataError:
    row = int((np.abs(values) > torch.finfo(dtype).max).any(1).argmax())
    return sources[0].error(row, f"{np.abs(values[row]).max():g} is too large for {dtype}; correct it")


def _saved(kind: type[FittedColumn]) -> list[Any]:
    return [field for field in fields(kind) if field.compare]


def _column(entry: Any, place: str) -> FittedColumn:
    error = FileFormatError(f"{place} is damaged: it does not describe the columns of a table")
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str) or entry["kind"] not in KINDS:
        raise error
    kind = KINDS[entry["kind"]]
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in _saved(kind):
        if field.name not in entry or not _is_of(entry[field.name], hints[field.name]):
            raise error
        value = entry[field.name]
        values[field.name] = tuple(value) if isinstance(value, list) else value
    column = kind(**values)
    if not column.is_sound:
        raise error
    return column


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a JSON value has the type of a field."""
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and all(_is_of(part, get_args(hint)[0]) for part in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
    if hint is int:
        # No table of vectors is larger; a damaged number must not ask for memory.
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**24
    return isinstance(value, hint)
