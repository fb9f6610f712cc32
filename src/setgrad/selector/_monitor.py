"""What watches a training run: it shows the progress, and lets Ctrl-C end training early instead of losing it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

import numpy as np

from setgrad._progress import Progress, announce, progress_bar

# Is called with the record of each epoch; True ends training.
Callback = Callable[[dict[str, float]], Any]


@final
class Monitor:
    """Is told about every batch and every epoch of a fit.

    Args:
        verbose: 0 shows nothing, 1 a bar or a line every ten seconds, 2 a line after every epoch.
        epochs: Largest number of epochs.
        work: Number of sets, or of rows, of an epoch, for all members together.
        unit: What is counted, "sets" or "rows".
        callback: Is called with a copy of the record of every epoch; None for nobody.
        agree: Returns whether any of the processes that train together is asked to end.

    Attributes:
        wants_stop: Whether this process was asked to end training, by Ctrl-C or the callback.
        is_stopped: Whether training ends.
        is_interrupted: Whether it was Ctrl-C.
    """

    def __init__(
        self,
        verbose: int,
        epochs: int,
        work: int,
        unit: str = "sets",
        callback: Callback | None = None,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        self.verbose, self.epochs, self.work, self.unit, self.callback = verbose, epochs, work, unit, callback
        self.agree = agree
        self.wants_stop = self.is_stopped = self.is_interrupted = False
        self.finished, self.in_epoch, self.best = 0, 0, -1.0
        self.text = ""
        self.left: float | None = None
        self.progress: Progress | None = None

    def batch(self, count: int, left: float | None) -> None:
        """Note that a batch was trained on.

        Args:
            count: The number of its sets or rows.
            left: Seconds that are left for training; None without a limit.
        """
        self.in_epoch, self.left = self.in_epoch + count, left
        self._show(left)

    def decide(self) -> bool:
        """Decide whether training ends now, as all processes do that train together."""
        self.is_stopped = self.is_stopped or self.agree(self.wants_stop)
        return self.is_stopped

    def epoch(self, record: dict[str, float]) -> None:
        """Note the record of an epoch, and call the callback."""
        self.finished, self.in_epoch = int(record["epoch"]), 0
        score = record["validation_jaccard"]
        self.best = max(self.best, score)
        self.text = f"loss {record['loss']:.4f}, validation Jaccard {100 * score:.2f} (best {100 * self.best:.2f})"
        self._show(self.left)
        if self.progress is not None and (self.verbose > 1 or self.finished == 1):
            self.progress.say()
        answer = None if self.callback is None else self.callback(dict(record))
        # Only True itself: another result of a logger is no request.
        if isinstance(answer, bool | np.bool_) and answer:
            self.wants_stop = True
        self.decide()

    def _show(self, left: float | None) -> None:
        if self.progress is None:
            return
        epoch = f"epoch {min(self.epochs, self.finished + (self.in_epoch > 0))} of at most {self.epochs}"
        text = f"{epoch}, {self.text}" if self.text else epoch
        self.progress.update(self.finished * self.work + self.in_epoch, text, left)

    @contextmanager
    def watching(self, finished: int) -> Iterator[None]:
        """Show the progress inside, from this number of finished epochs on; a first Ctrl-C sets `wants_stop`."""
        self.finished = finished
        total, start = self.epochs * self.work, finished * self.work + self.in_epoch
        shown, bars = self.verbose > 0, self.verbose == 1
        with progress_bar("fitting", total, unit=self.unit, enabled=shown, start=start, bars=bars) as progress:
            self.progress = progress
            with self._catching():
                yield
            self.progress = None

    @contextmanager
    def _catching(self) -> Iterator[None]:
        """Let the first Ctrl-C stop training after the batch; the second one ends the program as usual."""
        # Only the main thread gets signals, and a handler of the user stays.
        is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if not is_ours:
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.wants_stop = self.is_interrupted = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            announce("stopping after this batch, and keeping the best model so far; Ctrl-C again ends at once")

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
