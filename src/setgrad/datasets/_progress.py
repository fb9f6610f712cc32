"""A bar for work that takes more than a moment, where somebody is watching."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

_WORTH_A_BAR = 100


def track(numbers: Sequence[int], what: str) -> Iterator[int]:
    """Go through the numbers; on a terminal a bar shows how far it is.

    Example:
        >>> list(track(range(3), "counting"))
        [0, 1, 2]
    """
    if len(numbers) < _WORTH_A_BAR or not sys.stderr.isatty():
        yield from numbers
        return
    try:
        from rich.console import Console
        from rich.progress import track as rich_track
    except ImportError:
        yield from numbers
        return
    yield from rich_track(numbers, what, console=Console(stderr=True), transient=True)
