"""Prediction with one model on sets of 1 to 100,000 items: time, peak memory, and batches that mix sizes.

Claims checked: a model fitted on sets of 100 items predicts sets of any size from 1 to 100,000, and mixed sizes in one
batch; its logits of a set do not depend on the other sets of the batch by one bit. With induced attention time and
memory grow linearly; with full attention memory does, and time grows quadratically.

One model (`method="unrolled"`) for each kind of attention is fitted on moons. Times are medians of whole calls of
`predict`, after one call that does not count. Peaks are the memory of a call beyond the memory in use before it:
resident memory on the CPU, allocated tensors on the GPU. Exponents are for the last tenfold growth, because small sets
cost the overhead of a call. "score" is the Jaccard score with the true size, on a set whose right subset has a tenth of
the items: the model was not trained on sizes other than 100.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from benchmarks.lib.machine import add_machine_options, announce, memory_now, memory_peak, reset_peak, synchronize
from benchmarks.lib.tables import format_bytes, format_seconds, table
from benchmarks.lib.timing import growth_exponent
from setgrad import SubsetSelector, datasets
from setgrad.errors import OptionError
from setgrad.selector import resolve_device
from setgrad.sets import Choices, Sets

ATTENTIONS = ("full", "induced")
SIZES = (1, 10, 100, 1000, 10_000, 100_000)
# Sets of the mixed batch; sets of similar size share a padded batch inside.
MIXED = (300, 1, 10_000, 3, 100, 5000, 10, 1000, 2, 3000, 30)
QUICK_LARGEST = 1000
FEWEST = 100
# Calls of one size: several if they are short.
REPEATS = 5
ENOUGH_SECONDS = 2.0


@final
@dataclass(frozen=True)
class Cost:
    """The cost of one call: median seconds, bytes beyond the base, and the score."""

    items: int
    seconds: float
    peak: int
    score: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")
    add_machine_options(parser, device=False)
    parser.add_argument("--attentions", default=",".join(ATTENTIONS), help="full, induced (default: both)")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help=f"most items of a set (default: {SIZES[-1]:,})")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fit, measure and compare, for each kind of attention; the exit code is 1 if logits in a batch differ."""
    device = resolve_device(options.device)
    largest = min(options.largest, QUICK_LARGEST) if options.quick else options.largest
    if largest < FEWEST:
        raise OptionError(f"--largest must be at least {FEWEST}, to show growth, not {largest}")
    machine = announce(device, options.threads)
    results: dict[str, Any] = {"machine": machine, "failed": 0}
    for attention in options.attentions.split(","):
        _log(f"attention={attention}")
        selector = fit_model(attention, device, quick=options.quick)
        costs = measure_sizes(selector, [n for n in SIZES if n <= largest], device)
        mixed = compare_mixed(selector, [n for n in MIXED if n <= largest], device)
        results[attention] = {**costs, "mixed": mixed}
        results["failed"] += int(bool(costs["out_of_memory"])) + int(mixed["same"] < mixed["sets"])
        show(attention, costs, mixed)
    return results


def fit_model(attention: str, device: torch.device, *, quick: bool) -> SubsetSelector:
    """Return a model that was trained on sets of 100 items until it solves them."""
    sets, epochs = (16, 1) if quick else (400, 20)
    task = datasets.moons(n_train=sets, n_validation=sets, n_test=1)
    options: dict[str, Any] = {"method": "unrolled", "attention": attention, "max_epochs": epochs}
    selector = SubsetSelector(**options, random_state=0, device=str(device), verbose=0)
    return selector.fit(*task.train, validation=task.validation)


def measure_sizes(selector: SubsetSelector, sizes: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Return time and memory of one set of each size, up to the first that does not fit into memory."""
    costs: list[Cost] = []
    failed: int | None = None
    selector.predict(make_set(100).sets)
    for items in sizes:
        _log(f"{items:,} items")
        try:
            costs.append(measure(selector, items, device))
        except (torch.OutOfMemoryError, MemoryError):
            failed = items
            break
    last = costs[-2:]
    return {
        "sizes": [asdict(cost) for cost in costs],
        "time_exponent": growth_exponent([c.items for c in last], [1e9 * c.seconds for c in last]),
        "memory_exponent": growth_exponent([c.items for c in last], [c.peak for c in last]),
        "exponent_sizes": [c.items for c in last],
        "out_of_memory": failed,
    }


def measure(selector: SubsetSelector, items: int, device: torch.device) -> Cost:
    """Return the cost: the peak is that of the first call, the time that of later calls, if the first is short."""
    data = make_set(items)
    _release_memory(device)
    base = memory_now(device)
    times = [_time_call(selector, data.sets, device)]
    peak = memory_peak(device) - base
    if times[0] < ENOUGH_SECONDS:
        times = [_time_call(selector, data.sets, device) for _ in range(REPEATS)]
    score = selector.score_true_size(*data)
    return Cost(items, statistics.median(times), peak, score)


def compare_mixed(selector: SubsetSelector, sizes: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Return how logits and choices of sets in one batch of mixed sizes differ from those of each set alone."""
    sets = Sets.cat([make_set(items, seed=number).sets for number, items in enumerate(sizes)])
    started = time.perf_counter()
    logits, picks = selector.decision_function(sets), selector.predict(sets)
    synchronize(device)
    together = time.perf_counter() - started
    same, largest = 0, 0.0
    for number in range(len(sets)):
        alone = sets[number : number + 1]
        own_logits, own_picks = selector.decision_function(alone), selector.predict(alone)
        equal = torch.equal(own_logits.values, logits[number]) and torch.equal(own_picks.values, picks[number])
        same += int(equal)
        largest = max(largest, float((own_logits.values - logits[number]).abs().max()))
    return {"sizes": list(sizes), "sets": len(sets), "same": same, "largest_difference": largest, "seconds": together}


def make_set(items: int, seed: int = 1) -> Choices:
    """Return one set of moons whose right subset has a tenth of the items, at least one."""
    task = datasets.moons(
        random_state=seed, n_train=0, n_validation=0, n_test=1, set_size=items, subset_size=max(1, items // 10)
    )
    return task.test


def show(attention: str, costs: dict[str, Any], mixed: dict[str, Any]) -> None:
    """Print the tables of one model."""
    print(f"\n## attention={attention}\n")
    rows = [
        [
            f"{cost['items']:,}",
            format_seconds(cost["seconds"]),
            format_bytes(max(0, cost["peak"])),
            f"{max(0, cost['peak']) / cost['items'] / 1e3:.2f} kB",
            f"{100 * cost['score']:.1f}",
        ]
        for cost in costs["sizes"]
    ]
    if costs["out_of_memory"] is not None:
        rows.append([f"{costs['out_of_memory']:,}", "-", "out of memory", "-", "-"])
    print(table(["items", "predict", "peak", "per item", "score"], rows))
    between = " to ".join(f"{n:,}" for n in (costs["exponent_sizes"][0], costs["exponent_sizes"][-1]))
    print(f"\nexponents from {between} items: time {costs['time_exponent']:.2f}, memory {costs['memory_exponent']:.2f}")
    print(
        f"one batch of {min(mixed['sizes'])} to {max(mixed['sizes']):,} items: {mixed['same']} of {mixed['sets']} sets "
        f"as alone, bit for bit (largest difference of a logit {mixed['largest_difference']:.1e}), "
        f"{format_seconds(mixed['seconds'])}",
        flush=True,
    )


def _time_call(selector: SubsetSelector, sets: Sets, device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    selector.predict(sets)
    synchronize(device)
    return time.perf_counter() - started


def _release_memory(device: torch.device) -> None:
    """Return freed memory to the system, so that a later call needs new memory, and reset the peak."""
    gc.collect()
    if sys.platform == "linux":
        # With another C library small blocks stay allocated, which is little beside the peaks.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
    reset_peak(device)


def _log(subject: str) -> None:
    print(f"measuring {subject}", file=sys.stderr, flush=True)
