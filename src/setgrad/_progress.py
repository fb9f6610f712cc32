"""The one progress bar: on the standard error, by rich where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
# Called with the number of finished steps and a text to show behind the bar.
Update = Callable[[int, str], None]


@contextmanager
def progress_bar(description: str, total: int | None, *, enabled: bool = True, keep: bool = True) -> Iterator[Update]:
    """Yield a function that updates the bar; without rich it prints one line for each update.

    Args:
        description: What is being done.
        total: Number of steps; None if it is not known.
        enabled: Whether to show anything.
        keep: Whether the finished bar stays on the screen.

    Examples:
        >>> with progress_bar("fitting", 2, enabled=False) as update:
        ...     update(1, "loss 0.5")
    """
    if not enabled:
        yield lambda completed, text: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        of = "" if total is None else f"/{total}"
        yield lambda completed, text: print(f"{description} {completed}{of}  {text}".rstrip(), file=sys.stderr)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=not keep) as bar:
        task = bar.add_task(description, total=total, text="")
        yield lambda completed, text: bar.update(task, completed=completed, text=text)


def track(items: Iterable[Item], description: str, total: int | None, *, enabled: bool = True) -> Iterator[Item]:
    """Iterate over items; a bar shows how far it is, if the standard error is a terminal.

    Examples:
        >>> list(track(range(3), "counting", 3))
        [0, 1, 2]
    """
    with progress_bar(description, total, enabled=enabled and sys.stderr.isatty(), keep=False) as update:
        for count, item in enumerate(items):
            update(count, "")
            yield item
