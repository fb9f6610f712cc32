"""The kinds of columns. To add one, write its class and enter it here."""

from __future__ import annotations

from setgrad.columns._column import FittedColumn
from setgrad.columns.category import CategoryColumn, IdColumn
from setgrad.columns.date import DateColumn
from setgrad.columns.number import BooleanColumn, NumberColumn
from setgrad.columns.text import TextColumn
from setgrad.columns.vector import VectorColumn

KINDS: dict[str, type[FittedColumn]] = {
    "number": NumberColumn,
    "boolean": BooleanColumn,
    "category": CategoryColumn,
    "id": IdColumn,
    "date": DateColumn,
    "text": TextColumn,
    "vector": VectorColumn,
}
# A column of this kind is not used.
IGNORE = "ignore"
