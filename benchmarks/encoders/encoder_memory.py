"""Peak memory of the gradient of one set against the number of its items: whole graph, checkpoints, two passes.

Claims checked: from 10,000 to 10,000,000 items read from disk, the peak of forward and backward pass is flat within 5 %
with `gradient="exact"`; it takes at most 1.6 times as long as the whole graph, where that fits.

The encoder is UMBC with 16 slots of 128 numbers and two layers before it, with `--passes 3` DeepUMBC. Items of 16
numbers lie in a `.npy` file and are read 5,000 at a time. "full" keeps the graph of every chunk; "checkpoint" keeps the
items of every chunk and computes its graph again in the backward pass (torch.utils.checkpoint; for UMBC alone); "exact"
keeps one state and reads the file a second time. Peaks count what a new process needs beyond what it has after a tiny
set: resident memory on the CPU, allocated tensors on the GPU. Times are taken in turns, for up to 100,000 items the
median of five. "Difference" is that of the lengths of the gradients from the one of "exact", relative.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.lib.machine import add_machine_options, announce, memory_now, memory_peak, reset_peak, synchronize
from benchmarks.lib.subprocess_measure import RETURN_MEMORY, measure_in_subprocess, relative_spread, serve_case
from benchmarks.lib.tables import format_bytes, format_seconds, table
from setgrad.encoders import UMBC, DeepUMBC, NpyChunks, stream
from setgrad.errors import OptionError
from setgrad.sets import Sets

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
FLAT, SLOWER = 0.05, 1.6
FEATURES, REPEATS, MANY = 16, 5, 100_000
# The whole graph takes about 3 kB for an item, a checkpoint little more than the item itself.
LARGEST = {"exact": 10**12, "full": 1_000_000, "checkpoint": 10_000_000}

Reader = UMBC | DeepUMBC


@final
@dataclass(frozen=True)
class Case:
    """One measurement: a file of items, their number, and the way to compute the gradient."""

    path: str
    items: int
    way: str
    chunk: int = 5000
    passes: int = 1


@final
@dataclass(frozen=True)
class Measured:
    """Bytes that forward and backward pass need beyond the `base`, and the norm of the gradient."""

    step: int
    base: int
    norm: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="most items of a set (default: 10,000,000)")
    add_machine_options(parser)
    parser.add_argument("--passes", type=int, default=1, help="1 for UMBC, more for DeepUMBC (default: 1)")
    parser.add_argument(
        "--folder", type=Path, help="where the items are written (default: the folder for temporary files)"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print one row for each number of items."""
    device = torch.device(options.device)
    machine = announce(device, options.threads)
    largest = min(options.largest, 100_000) if options.quick else options.largest
    results: list[dict[str, Any]] = []
    for items in [n for n in SIZES if n <= largest] or [largest]:
        print(f"measuring {items:,} items", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = write_items(Path(folder) / "items.npy", items)
            cases = [
                Case(str(path), items, way, passes=options.passes)
                for way in WAYS
                if items * options.passes <= LARGEST[way] and (way != "checkpoint" or options.passes == 1)
            ]
            times = time_cases(cases, device)
            by_way = {case.way: {**asdict(peak_of(case, device)), "seconds": times[case.way]} for case in cases}
            results.append({"items": items, **by_way})
    flat = relative_spread([row["exact"]["step"] for row in results])
    slower = max(row["exact"]["seconds"] / row["full"]["seconds"] for row in results if "full" in row)
    print("\n## Peak memory of forward and backward pass\n")
    head = ["items", *(f"{way}, {what}" for way in WAYS for what in ("peak", "time")), "exact / full", "difference"]
    print(table(head, [cells(row) for row in results]))
    print(
        f"\nlargest peak of exact over smallest, less 1: {flat:.1%} (target: at most {FLAT:.0%}); "
        f"time over that of full, at most: {slower:.2f} (target: at most {SLOWER})",
        flush=True,
    )
    return {"machine": machine, "rows": results, "flat": flat, "slower": slower}


def cells(row: dict[str, Any]) -> list[str]:
    """Return one row of the table."""
    texts = [text for way in WAYS for text in _pair(row.get(way))]
    ratio = f"{row['exact']['seconds'] / row['full']['seconds']:.2f}" if "full" in row else "-"
    others = [abs(row[way]["norm"] / row["exact"]["norm"] - 1) for way in WAYS if way in row]
    return [f"{row['items']:,}", *texts, ratio, f"{max(others):.0e}"]


def _pair(measured: dict[str, Any] | None) -> tuple[str, str]:
    return ("-", "-") if measured is None else (format_bytes(measured["step"]), format_seconds(measured["seconds"]))


def write_items(path: Path, items: int) -> Path:
    """Write a file of random items, chunk by chunk, and return its path."""
    generator = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (items, FEATURES))
    for start in range(0, items, 100_000):
        file[start : start + 100_000] = generator.standard_normal((min(100_000, items - start), FEATURES), np.float32)
    file.flush()
    return path


def peak_of(case: Case, device: torch.device) -> Measured:
    """Return the peak of one case: on the GPU from the allocator, on the CPU from a new process."""
    if device.type == "cuda":
        return peak_here(case, device)
    return Measured(**measure_in_subprocess("benchmarks.encoders.encoder_memory", case, RETURN_MEMORY))


def peak_here(case: Case, device: torch.device) -> Measured:
    """Measure in this process; the base is the memory after a tiny set, with gradients."""
    encoder = make_encoder(device, case.passes)
    with tempfile.TemporaryDirectory() as folder:
        step(encoder, replace(case, path=str(write_items(Path(folder) / "few.npy", 20)), chunk=10))
    synchronize(device)
    reset_peak(device)
    base = memory_now(device)
    step(encoder, case)
    synchronize(device)
    norm = float(torch.cat([g.flatten() for g in gradients(encoder)]).norm())
    return Measured(memory_peak(device) - base, base, norm)


def time_cases(cases: list[Case], device: torch.device) -> dict[str, float]:
    """Return median seconds of each way, in turns so that a busy machine slows all of them down."""
    encoder = make_encoder(device, cases[0].passes)
    times: dict[str, list[float]] = {case.way: [] for case in cases}
    for _ in range(REPEATS if cases[0].items <= MANY else 1):
        for case in cases:
            started = time.perf_counter()
            step(encoder, case)
            synchronize(device)
            times[case.way].append(time.perf_counter() - started)
    return {way: statistics.median(runs) for way, runs in times.items()}


def make_encoder(device: torch.device, passes: int = 1) -> Reader:
    """Return the encoder, with the same weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        phi = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        if passes > 1:
            return DeepUMBC(FEATURES, dim=128, slots=16, passes=passes, phi=phi).to(device).eval()
        return UMBC(FEATURES, dim=128, slots=16, phi=phi).to(device).eval()


def step(encoder: Reader, case: Case) -> None:
    """Run forward and backward pass of a loss."""
    for p in encoder.parameters():
        if p.grad is not None:
            p.grad.zero_()
    code = WAYS[case.way](encoder, case)
    (code.sin() * torch.linspace(-1, 1, code.shape[-1], device=code.device)).sum().backward()


def gradients(encoder: Reader) -> list[Tensor]:
    """Return the gradients of the last step."""
    return [p.grad.double() for p in encoder.parameters() if p.grad is not None]


def exact(encoder: Reader, case: Case) -> Tensor:
    """Return the code with the exact gradient, in two reads."""
    return stream(encoder, NpyChunks(case.path, case.chunk), gradient="exact")


def full(encoder: Reader, case: Case) -> Tensor:
    """Return the code with the graph of every chunk."""
    return stream(encoder, NpyChunks(case.path, case.chunk), gradient="full")


def checkpointed(encoder: Reader, case: Case) -> Tensor:
    """Return the code with checkpoints: the graph of a chunk is computed again in the backward pass."""
    if not isinstance(encoder, UMBC):
        raise OptionError("only UMBC can be read with checkpoints, one pass; use --passes 1")
    state = encoder.begin()
    for rows in NpyChunks(case.path, case.chunk):
        chunk = Sets.from_lengths(torch.from_numpy(rows).to(encoder.slots.device), [len(rows)])
        ones = torch.ones(chunk.layout.total, device=chunk.device)
        state = state.merge(checkpoint(encoder.read, chunk, ones, state.slots, None, use_reentrant=False))
    return encoder.finish(state)


WAYS: dict[str, Callable[[Reader, Case], Tensor]] = {"full": full, "checkpoint": checkpointed, "exact": exact}


if __name__ == "__main__":
    serve_case(Case, peak_here)
