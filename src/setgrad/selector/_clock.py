"""The time of a fit: how much training has used, when it ends, and how large its steps are until then."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

# Shares of the time of a fit for training with its validations, and for calibration.
_TRAINING, CALIBRATION_SHARE = 0.8, 0.12
# From this share of its time on, steps become smaller, so that training ends well: in proportion to the time that is
# left, down to this factor.
_FALL, _SMALLEST = 0.5, 0.02


@final
class Clock:
    """The time that training may use. It runs while epochs run, and its state is saved with them.

    Args:
        limit: Seconds for the whole fit; None for no limit.
        shares: Number of models that are trained with this limit, each with a clock of its own.
        used: Seconds that are used already.
    """

    def __init__(self, limit: float | None, *, shares: int = 1, used: float = 0.0) -> None:
        self.shares = shares
        self.limit = math.inf if limit is None else _TRAINING * limit / shares
        self.before, self.started = used, math.nan

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside."""
        self.started = time.monotonic()
        try:
            yield
        finally:
            self.before, self.started = self.used, math.nan

    @property
    def used(self) -> float:
        """Seconds of training so far."""
        return self.before + (0.0 if math.isnan(self.started) else time.monotonic() - self.started)

    @property
    def left(self) -> float | None:
        """Seconds that are left for all models, which are trained side by side; None without a limit."""
        return None if math.isinf(self.limit) else max(0.0, self.limit - self.used) * self.shares

    def is_over(self, reserve: float = 0.0) -> bool:
        """Return whether no time is left but for what takes so many seconds."""
        return self.used + reserve >= self.limit

    @property
    def factor(self) -> float:
        """What the learning rate is multiplied by; 1 without a limit."""
        if math.isinf(self.limit):
            return 1.0
        return min(1.0, max(_SMALLEST, (1 - self.used / self.limit) / (1 - _FALL)))
