"""Peak memory of one training step, measured in a process of its own."""

from __future__ import annotations

import time

import torch

from benchmarks.lib.machine import memory_now, memory_peak, reset_peak, synchronize
from benchmarks.lib.subprocess_measure import answer, ask
from benchmarks.lib.timing import Peak
from benchmarks.speed.steps import Case, make_batch, make_step


def peak_of(case: Case, device: torch.device) -> Peak:
    """Peak of one step: in this process on the GPU, whose allocator keeps the books, else in a new process."""
    if device.type == "cuda":
        return peak_here(case, device)
    return Peak(**ask("benchmarks.speed.step_memory", case))


def peak_here(case: Case, device: torch.device) -> Peak:
    """Measure in this process.

    The base is taken after a step on ten items: code, networks, gradients and the state of the optimiser are in
    place by then. Data are made after it, so they count.
    """
    step = make_step(case, device)
    step(make_batch(Case(1, 10, case.way, case.model), device))
    synchronize(device)
    reset_peak(device)
    base = memory_now(device)
    batch = make_batch(case, device)
    started = time.perf_counter()
    step(batch)
    synchronize(device)
    seconds = time.perf_counter() - started
    return Peak(memory_peak(device) - base, base, seconds)


if __name__ == "__main__":
    answer(Case, peak_here)
