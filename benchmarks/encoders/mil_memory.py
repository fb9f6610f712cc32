"""Peak memory of one step through the network of `mil_large`, against the number of images in the bag."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch

from benchmarks.encoders.mil_digits import SHAPE, Images
from benchmarks.encoders.mil_large import code, make_encoder, network
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.subprocess_measure import RETURN_MEMORY, measure_in_subprocess, serve_case
from benchmarks.lib.tables import format_bytes
from benchmarks.lib.timing import measure_peak
from setgrad.selector import resolve_device

GRADIENTS = ("full", "exact", "sample")
# The memory limit of a step on a GPU, which the whole graph of the largest bags exceeds.
LIMIT = 10**9


@final
@dataclass(frozen=True)
class Case:
    """A bag of this many images, and the gradient."""

    images: int
    gradient: str
    chunk: int = 256


@final
@dataclass(frozen=True)
class Peak:
    """Bytes beyond network and images; None if the limit was reached."""

    bytes: int | None


def measure(images: int, gradient: str, context: RunContext) -> Record:
    """Return the peak of a step: on the GPU from the allocator, on the CPU from a new process."""
    device, case = resolve_device(context.device), Case(images, gradient)
    on_gpu = device.type == "cuda"
    peak = (
        peak_here(case, device).bytes
        if on_gpu
        else measure_in_subprocess("benchmarks.encoders.mil_memory", case, RETURN_MEMORY)["bytes"]
    )
    limit = LIMIT if on_gpu else None
    return {"bytes": peak, "limit": limit, "summary": "out of memory" if peak is None else format_bytes(peak)}


def peak_here(case: Case, device: torch.device) -> Peak:
    """Measure in this process, with images of noise, because memory does not depend on their content."""
    rng = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = make_encoder("umbc", SHAPE, network()).to(device)
    pixels = torch.from_numpy(rng.integers(0, 256, (1000, *SHAPE[1:]), dtype=np.uint8)).to(device)
    images = Images(pixels, np.zeros(1000, dtype=np.int64))
    bag = rng.integers(0, 1000, case.images)

    def step(numbers: np.ndarray) -> None:
        encoder.zero_grad()
        code(
            encoder, images, [numbers], case.gradient, case.chunk, rng, torch.Generator().manual_seed(0)
        ).square().sum().backward()

    step(bag[:20])
    if device.type != "cuda":
        return Peak(measure_peak(partial(step, bag), device).step)
    whole = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(LIMIT / whole, device.index)
    try:
        return Peak(measure_peak(partial(step, bag), device).step)
    except torch.OutOfMemoryError:
        return Peak(None)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.index)


if __name__ == "__main__":
    serve_case(Case, peak_here)
