"""A small table of texts, made once and shown on a screen or in a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

from setgrad.errors import ShapeError

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?(s|%))?|-|")


@final
@dataclass(frozen=True)
class Grid:
    """A title, the names of the columns, and rows of texts; "-" stands for a number that is not there.

    Examples:
        >>> grid = Grid("scores", ("task", "Jaccard"), (("moons", "99.61"), ("digits", "-")))
        >>> grid.numeric
        (False, True)
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ShapeError(f"the grid {self.title!r} has {len(self.columns)} columns, but a row is {row!r}")

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Whether each column holds nothing but numbers, so that it is to be aligned on the right."""
        return tuple(
            bool(self.rows) and all(_NUMBER.fullmatch(row[place]) for row in self.rows)
            for place in range(len(self.columns))
        )


def percent(score: float | None) -> str:
    """Write a score from 0 to 1 as papers do.

    Examples:
        >>> percent(0.58973), percent(None)
        ('58.97', '-')
    """
    return "-" if score is None else f"{100 * score:.2f}"
