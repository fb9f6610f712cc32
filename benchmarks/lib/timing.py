"""Time and peak memory of one piece of work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from benchmarks.lib.machine import synchronize

# Rounds that are not counted: libraries load and allocators fill in them.
WARM_UP = 2


@final
@dataclass(frozen=True)
class Timing:
    """Seconds of one step: on the clock, and of the processor (all threads), which other programs disturb less."""

    clock: float
    processor: float


@final
@dataclass(frozen=True)
class Peak:
    """Bytes that one step needs beyond the `base` that was in use before it, and the seconds it took."""

    step: int
    base: int
    seconds: float

    @property
    def total(self) -> int:
        """All memory in use at the peak."""
        return self.base + self.step


def time_side_by_side(works: list[Callable[[], object]], device: torch.device, repeats: int) -> list[Timing]:
    """Median times of several works, run in turns so that a busy machine slows down all of them alike."""
    found: list[list[Timing]] = [[] for _ in works]
    for _ in range(WARM_UP + repeats):
        for times, work in zip(found, works, strict=True):
            synchronize(device)
            clock, processor = time.perf_counter(), time.process_time()
            work()
            synchronize(device)
            times.append(Timing(time.perf_counter() - clock, time.process_time() - processor))
    return [
        Timing(
            statistics.median(t.clock for t in times[WARM_UP:]),
            statistics.median(t.processor for t in times[WARM_UP:]),
        )
        for times in found
    ]
