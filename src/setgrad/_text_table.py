"""A small table of text, shown on a screen or in an HTML page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from setgrad.errors import ShapeError

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?(s|%))?|-|")


@final
@dataclass(frozen=True)
class TextTable:
    """A title, the names of the columns, and rows of text; "-" stands for a missing number.

    Raises:
        ShapeError: If a row has another number of cells than there are columns.

    Examples:
        >>> table = TextTable("scores", ("task", "Jaccard"), (("moons", "99.61"), ("digits", "-")))
        >>> table.numeric
        (False, True)
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ShapeError(f"the table {self.title!r} has {len(self.columns)} columns, but a row is {row!r}")

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column whether it holds only numbers, which are aligned on the right."""
        return tuple(
            bool(self.rows) and all(_NUMBER.fullmatch(row[index]) for row in self.rows)
            for index in range(len(self.columns))
        )


def percent(score: float | None) -> str:
    """Return a score from 0 to 1 as a percentage with two digits; "-" for None.

    Examples:
        >>> percent(0.58973), percent(None)
        ('58.97', '-')
    """
    return "-" if score is None else f"{100 * score:.2f}"


def plain_table(table: TextTable) -> str:
    """Return a table drawn with spaces and dashes.

    Examples:
        >>> print(plain_table(TextTable("", ("task", "score"), (("moons", "99.5"), ("digits", "7.0")))))
        task    score
        ------  -----
        moons    99.5
        digits    7.0
    """
    lines = [table.columns, *table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    sides = [">" if numeric else "<" for numeric in table.numeric]

    def join(cells: Iterable[str]) -> str:
        return "  ".join(f"{c:{s}{w}}" for c, s, w in zip(cells, sides, widths, strict=True)).rstrip()

    title = [table.title] if table.title else []
    return "\n".join([*title, join(table.columns), join("-" * w for w in widths), *map(join, table.rows)])
