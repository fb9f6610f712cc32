"""Showing an answer to people: tables by rich, or plain ones where rich is not installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from setgrad.report._grid import Grid

if TYPE_CHECKING:
    from rich.console import Console

# A file or a pipe has no width; wide enough that no cell is broken.
_FILE_WIDTH = 200


def show(parts: Iterable[Grid | str], stream: TextIO) -> None:
    """Write texts and tables to a stream."""
    try:
        console = _console(stream)
    except ImportError:
        for part in parts:
            print(plain(part) if isinstance(part, Grid) else part, file=stream)
        return
    for part in parts:
        text = part.title if isinstance(part, Grid) else part
        if text:
            # Not wrapped, so that paths and commands can be copied.
            console.print(text, markup=False, soft_wrap=True)
        if isinstance(part, Grid):
            console.print(_rich_table(part))


def plain(grid: Grid) -> str:
    """Draw a grid with spaces and dashes.

    Example:
        >>> print(plain(Grid("", ("task", "score"), (("moons", "99.5"), ("digits", "7.0")))))
        task    score
        ------  -----
        moons    99.5
        digits    7.0
    """
    lines = [grid.columns, *grid.rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(grid.columns))]
    sides = [">" if numeric else "<" for numeric in grid.numeric]

    def join(cells: Iterable[str]) -> str:
        return "  ".join(f"{c:{s}{w}}" for c, s, w in zip(cells, sides, widths, strict=True)).rstrip()

    title = [grid.title] if grid.title else []
    return "\n".join([*title, join(grid.columns), join("-" * w for w in widths), *map(join, grid.rows)])


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class Frank(Console):
        """Says it when the reader has gone away, where rich would end the process."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Frank(file=stream, width=None if stream.isatty() else _FILE_WIDTH, highlight=False)


def _rich_table(grid: Grid) -> object:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name, numeric in zip(grid.columns, grid.numeric, strict=True):
        table.add_column(escape(name), justify="right" if numeric else "left")
    for row in grid.rows:
        table.add_row(*map(escape, row))
    return table
