"""Time and peak memory of training steps.

As a program, `python -m benchmarks._measure '{"sets": 4, ...}'` measures the peak of one step in a process of its own,
because what a process once held hides what it needs later.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from benchmarks._apart import answer, ask
from benchmarks._machine import forget_peak, memory_now, memory_peak, wait
from benchmarks._steps import Case, make_batch, make_step

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
            wait(device)
            clock, processor = time.perf_counter(), time.process_time()
            work()
            wait(device)
            times.append(Timing(time.perf_counter() - clock, time.process_time() - processor))
    return [
        Timing(
            statistics.median(t.clock for t in times[WARM_UP:]),
            statistics.median(t.processor for t in times[WARM_UP:]),
        )
        for times in found
    ]


def peak_of(case: Case, device: torch.device) -> Peak:
    """Peak of one step: in this process on the GPU, whose allocator keeps the books, else in a new process."""
    if device.type == "cuda":
        return peak_here(case, device)
    return Peak(**ask("benchmarks._measure", case))


def peak_here(case: Case, device: torch.device) -> Peak:
    """Measure in this process.

    The base is taken after a step on ten items: code, networks, gradients and the state of the optimiser are in
    place by then. Data are made after it, so they count.
    """
    step = make_step(case, device)
    step(make_batch(Case(1, 10, case.way, case.model), device))
    wait(device)
    forget_peak(device)
    base = memory_now(device)
    batch = make_batch(case, device)
    started = time.perf_counter()
    step(batch)
    wait(device)
    seconds = time.perf_counter() - started
    return Peak(memory_peak(device) - base, base, seconds)


if __name__ == "__main__":
    answer(Case, peak_here)
