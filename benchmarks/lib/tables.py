"""Aligned Markdown tables, the same for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of these cells, with the first column flush left and the others flush right.

    Examples:
        >>> print(table(["case", "s"], [["a", "1.5"]]))
        | case |   s |
        | :--- | --: |
        | a    | 1.5 |
    """
    widths = [max(3, *(len(row[i]) for row in [head, *rows])) for i in range(len(head))]
    rule = [":" + "-" * (width - 1) if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    lines = []
    for row in [head, rule, *rows]:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"| {' | '.join([row[0].ljust(len(first)), *others])} |")
    return "\n".join(lines)


def format_seconds(value: float) -> str:
    """Return a duration with three significant digits."""
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def format_bytes(count: float) -> str:
    """Return a number of bytes with three significant digits, in decimal units."""
    return f"{count / 1e6:.3g} MB" if count < 999.5e6 else f"{count / 1e9:.3g} GB"
