"""Times and peak memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from benchmarks.lib.machine import memory_now, memory_peak, reset_peak, synchronize

# Rounds that do not count: libraries load and allocators grow in them.
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
    """Bytes that one step needs beyond the `base` in use before it, and its seconds."""

    step: int
    base: int
    seconds: float

    @property
    def total(self) -> int:
        """All memory in use at the peak."""
        return self.base + self.step


def time_in_turns(functions: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[Timing]:
    """Return median times of several functions, called in turns so that a busy machine slows all of them down."""
    measured: list[list[Timing]] = [[] for _ in functions]
    for _ in range(WARM_UP + repeats):
        for times, function in zip(measured, functions, strict=True):
            synchronize(device)
            clock, processor = time.perf_counter(), time.process_time()
            function()
            synchronize(device)
            times.append(Timing(time.perf_counter() - clock, time.process_time() - processor))
    return [
        Timing(
            statistics.median(t.clock for t in times[WARM_UP:]), statistics.median(t.processor for t in times[WARM_UP:])
        )
        for times in measured
    ]


def measure_peak(work: Callable[[], object], device: torch.device) -> Peak:
    """Run a function once, and return its peak memory beyond the memory in use before it, and its seconds."""
    synchronize(device)
    reset_peak(device)
    base = memory_now(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    seconds = time.perf_counter() - started
    return Peak(memory_peak(device) - base, base, seconds)


def growth_exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of the least-squares line through (log sizes, log costs)."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(costs, 1)), 1)[0])
