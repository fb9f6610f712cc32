"""Peak memory of one training step, measured in a new process."""

from __future__ import annotations

import time

import torch

from benchmarks.lib.machine import memory_now, memory_peak, reset_peak, synchronize
from benchmarks.lib.subprocess_measure import measure_in_subprocess, serve_case
from benchmarks.lib.timing import Peak
from benchmarks.speed.steps import Case, make_batch, make_step


def peak_of(case: Case, device: torch.device) -> Peak:
    """Return the peak of one step: on the GPU from the allocator, on the CPU from a new process."""
    if device.type == "cuda":
        return peak_here(case, device)
    return Peak(**measure_in_subprocess("benchmarks.speed.step_memory", case))


def peak_here(case: Case, device: torch.device) -> Peak:
    """Measure in this process.

    The base is the memory after a step on ten items, with code, networks, gradients and the state of the optimiser. The
    data are drawn after it, so they count.
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
    serve_case(Case, peak_here)
