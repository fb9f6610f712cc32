"""The result of a command on a screen: tables by rich, or plain ones where rich is not installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from setgrad._text_table import TextTable

if TYPE_CHECKING:
    from rich.console import Console

# A file or a pipe has no width; this is wide enough that no cell is wrapped.
_FILE_WIDTH = 200


def show(parts: Iterable[TextTable | str], stream: TextIO) -> None:
    """Write text and tables to a stream."""
    try:
        console = _make_console(stream)
    except ImportError:
        for part in parts:
            print(plain_table(part) if isinstance(part, TextTable) else part, file=stream)
        return
    for part in parts:
        text = part.title if isinstance(part, TextTable) else part
        if text:
            # Not wrapped, so that paths and commands can be copied.
            console.print(text, markup=False, soft_wrap=True)
        if isinstance(part, TextTable):
            console.print(_rich_table(part))


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


def _make_console(stream: TextIO) -> Console:
    from rich.console import Console

    class PipeSafeConsole(Console):
        """Raises an error if the reader is gone, where rich would end the process."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeSafeConsole(file=stream, width=None if stream.isatty() else _FILE_WIDTH, highlight=False)


def _rich_table(table: TextTable) -> object:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD)
    for name, numeric in zip(table.columns, table.numeric, strict=True):
        result.add_column(escape(name), justify="right" if numeric else "left")
    for row in table.rows:
        result.add_row(*map(escape, row))
    return result
