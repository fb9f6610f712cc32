"""Bars that the page draws in its own text, so that they fit any width and any name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final


@final
@dataclass(frozen=True)
class Bar:
    """A bar between two numbers.

    Attributes:
        label: What it is about.
        text: Its number, written out.
        kind: How it is coloured.
        left: Where it begins, in percent of the width.
        width: How long it is, in percent of the width.
    """

    label: str
    text: str
    kind: Literal["up", "down", "total"]
    left: float
    width: float


def bars_between(rows: Sequence[tuple[str, str, float, float]], *, total: str | None = None) -> list[Bar]:
    """Return bars on a common scale that holds zero.

    Args:
        rows: Label, text, start and end of each bar.
        total: Label of the last one, if it is a total.

    Examples:
        >>> up, down = bars_between([("a", "+4", 0.0, 4.0), ("b", "-1", 4.0, 3.0)])
        >>> (up.left, up.width, up.kind), (down.left, down.width, down.kind)
        ((0.0, 100.0, 'up'), (75.0, 25.0, 'down'))
    """
    numbers = [0.0, *(number for _, _, start, end in rows for number in (start, end))]
    low = min(numbers)
    scale = 100 / (max(numbers) - low or 1.0)
    return [
        Bar(
            label,
            text,
            "total" if label == total and place == len(rows) - 1 else "up" if end >= start else "down",
            round((min(start, end) - low) * scale, 3),
            round(abs(end - start) * scale, 3),
        )
        for place, (label, text, start, end) in enumerate(rows)
    ]
