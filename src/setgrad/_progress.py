"""How far a long piece of work is: a bar in a terminal, elsewhere a line every ten seconds.

The lines are also the messages of the logger "setgrad" at level INFO. They are printed to the standard error only where
no handler of Python's `logging` takes them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, final

Item = TypeVar("Item")
# Seconds between two lines, and seconds after which work is long enough to be shown.
_EVERY, _DELAY = 10.0, 3.0
# Seconds before which a rate means nothing.
_SOONEST = 0.5
_LOGGER = logging.getLogger("setgrad")
# What is being done, and whether it may show how far it is; a function deep inside does not know who called it.
# Nothing is shown where nobody has said so.
_work: ContextVar[tuple[str, bool] | None] = ContextVar("work", default=None)
_is_hidden: ContextVar[bool] = ContextVar("is_hidden", default=False)


@final
class Progress:
    """How far one piece of work is. `progress_bar` makes one.

    Args:
        description: What is being done.
        total: Number of steps; None if it is not known.
        unit: What a step is, for the rate, as in "sets".
        shown: Whether to show anything; the logger gets its messages anyway.
        keep: Whether the finished bar stays on the screen.
        delay: Seconds after which the work is shown.
        start: Steps that were done before.
        bars: Whether a terminal gets a bar; lines if not.
    """

    def __init__(
        self,
        description: str,
        total: float | None,
        *,
        unit: str,
        shown: bool,
        keep: bool,
        delay: float,
        start: float,
        bars: bool,
    ) -> None:
        self.description, self.total, self.unit, self.shown, self.keep = description, total, unit, shown, keep
        self.start = start
        self.started = time.monotonic()
        self.first, self.next_line = self.started + delay, self.started + delay
        self.use_bar = shown and bars and sys.stderr is not None and sys.stderr.isatty()
        self.bar: Any = None
        self.unsaid = ""

    def update(self, done: float, text: str = "", left: float | None = None) -> None:
        """Tell how many steps are done.

        Args:
            done: Steps that are done.
            text: What to show behind the numbers.
            left: Most seconds that are left; None to compute them from the steps.
        """
        now = time.monotonic()
        self.unsaid = self._line(done, text, now, left)
        if self.use_bar and now >= self.first:
            self._draw(done, ", ".join(part for part in (self._pace(done, now, left), text) if part))
        if now >= self.next_line:
            self.say()

    def say(self) -> None:
        """Write the last line now, if it was not written yet."""
        if self.unsaid:
            announce(self.unsaid, shown=self.shown and self.bar is None)
            self.unsaid, self.next_line = "", time.monotonic() + _EVERY

    def close(self) -> None:
        """Write the last line of work that was shown, and leave the bar."""
        if self.next_line > self.first or time.monotonic() >= self.first:
            self.say()
        if self.bar is not None:
            self.bar.stop()

    def _line(self, done: float, text: str, now: float, left: float | None) -> str:
        count = (
            f"{done:,.0f} {self.unit}".rstrip() if self.total is None else f"{100 * done / max(self.total, 1):.0f} %"
        )
        parts = [part for part in (count, text, self._pace(done, now, left)) if part]
        return f"{self.description}: {', '.join(parts)}"

    def _pace(self, done: float, now: float, left: float | None) -> str:
        """Return the rate and the time that is left, as far as they are known."""
        rate = (done - self.start) / (now - self.started) if now - self.started >= _SOONEST else 0.0
        if left is None and self.total is not None and rate > 0:
            left = (self.total - done) / rate
        speed = f"{rate:,.0f} {self.unit}/s" if self.unit and rate > 0 else ""
        return ", ".join(part for part in (speed, f"at most {duration(left)} left" if left else "") if part)

    def _draw(self, done: float, text: str) -> None:
        if self.bar is None:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
                from rich.progress import Progress as Bar
            except ImportError:
                self.use_bar = False
                return
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self.bar = Bar(*columns, console=Console(stderr=True), transient=not self.keep)
            self.bar.start()
            self.bar.add_task(self.description, total=self.total, text="")
        self.bar.update(self.bar.task_ids[0], completed=done, text=text)


@contextmanager
def progress_bar(
    description: str,
    total: float | None,
    *,
    unit: str = "",
    enabled: bool = True,
    keep: bool = True,
    delay: float = 0.0,
    start: float = 0.0,
    bars: bool = True,
) -> Iterator[Progress]:
    """Yield what shows the progress, and close it at the end; the arguments are those of `Progress`.

    Examples:
        >>> with progress_bar("fitting", 2, enabled=False) as progress:
        ...     progress.update(1, "loss 0.5")
    """
    progress = Progress(description, total, unit=unit, shown=enabled, keep=keep, delay=delay, start=start, bars=bars)
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def showing(description: str, shown: bool) -> Iterator[None]:
    """Let `slow_bar` show the work inside under this description, or not show it."""
    token = _work.set((description, shown))
    try:
        yield
    finally:
        _work.reset(token)


@contextmanager
def showing_by_default(description: str) -> Iterator[None]:
    """Let `slow_bar` show the work inside, unless the caller is inside `showing`."""
    with showing(description, True) if _work.get() is None else nullcontext():
        yield


@contextmanager
def hidden() -> Iterator[None]:
    """Let `slow_bar` show nothing inside, because a bar of the whole work is shown."""
    token = _is_hidden.set(True)
    try:
        yield
    finally:
        _is_hidden.reset(token)


@contextmanager
def slow_bar(total: float | None, unit: str, description: str | None = None) -> Iterator[Progress]:
    """Yield a `Progress` of work inside `showing`, which is shown if it takes more than a few seconds.

    Args:
        total: Number of steps; None if it is not known.
        unit: What a step is.
        description: What is being done; None for what `showing` says.
    """
    work, shown = _work.get() or ("computing", False)
    shown = shown and not _is_hidden.get()
    description = work if description is None else description
    with progress_bar(description, total, unit=unit, enabled=shown, keep=False, delay=_DELAY) as progress:
        yield progress


def announce(line: str, *, shown: bool = True) -> None:
    """Send a line to the logger, and print it to the standard error if no handler takes it."""
    is_handled = _LOGGER.isEnabledFor(logging.INFO) and _LOGGER.hasHandlers()
    _LOGGER.info(line)
    if shown and not is_handled:
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return seconds as minutes and seconds, or hours and minutes.

    Examples:
        >>> duration(75), duration(3725)
        ('1:15', '1 h 02 min')
    """
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def track(items: Iterable[Item], description: str, total: int | None, *, enabled: bool = True) -> Iterator[Item]:
    """Iterate over items; shows how far it is, where the standard error is no terminal only if it takes long.

    Examples:
        >>> list(track(range(3), "counting", 3))
        [0, 1, 2]
    """
    delay = 0.0 if sys.stderr is not None and sys.stderr.isatty() else _EVERY
    with progress_bar(description, total, enabled=enabled, keep=False, delay=delay) as progress:
        for count, item in enumerate(items):
            progress.update(count)
            yield item
