"""Time of explanations by the size of a set: each part of them, and Shapley values beside plain enumeration.

Claims checked: the chosen items and five near misses of a set of 1,000 items are explained in under 30 s of one core,
without the search for changed prices; exact Shapley values of 12 items take less than a second, and for up to 10 items
they are those of a plain loop over all subsets.

The model is fitted for one epoch on sets of 30 items with 10 features, of which 3 to 8 are chosen; 10 items of each set
are explained as chosen. Times are seconds of the processor for one set, the median of the repeats.
"""

from __future__ import annotations

import argparse
import itertools
import math
from functools import partial
from typing import Any

import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.timing import time_in_turns
from setgrad import Sets, SubsetSelector
from setgrad.explain import shapley_values

SIZES, CHOSEN, FEATURES = (10, 100, 1000), 8, 10
EXACT, MOST_BY_LOOP = (2, 4, 6, 8, 10, 12), 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--threads", type=int, default=1, help="threads (default: 1)")
    parser.add_argument("--repeats", type=int, default=3, help="calls of each (default: 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    device = torch.device("cpu")
    machine = announce(device, options.threads)
    repeats, sizes = (1, SIZES[:2]) if options.quick else (options.repeats, SIZES)
    small: dict[str, Any] = {"dim": 16, "hidden": (16,)} if options.quick else {}
    train = draw_sets([30] * (20 if options.quick else 400), 0)
    chosen = train.with_values(train.values[:, 0] > 1)
    selector = SubsetSelector(max_epochs=1, members=1, random_state=0, device="cpu", verbose=0, **small)
    selector.fit(train, chosen)
    rows = {size: measure_parts(selector, size, repeats) for size in sizes}
    parts = list(rows[sizes[0]])
    print(
        table(
            ["seconds for one set", *(f"{size:,} items" for size in sizes)],
            [[part, *(format_seconds(rows[size][part]) for size in sizes)] for part in parts],
        )
    )
    shapley = {count: measure_shapley(selector, count, repeats) for count in (EXACT[:3] if options.quick else EXACT)}
    print()
    print(
        table(
            ["players", "exact", "sampled, 64 pairs", "largest error / standard error", "exact - plain loop"],
            [
                [
                    str(count),
                    format_seconds(row["exact"]),
                    format_seconds(row["sampled"]),
                    f"{row['worst']:.2f}",
                    "-" if row["difference"] is None else f"{row['difference']:.1e}",
                ]
                for count, row in shapley.items()
            ],
        )
    )
    return {"machine": machine, "rows": rows, "shapley": shapley}


def draw_sets(sizes: list[int], seed: int) -> Sets:
    """Return sets of random items."""
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.randn(sum(sizes), FEATURES, generator=generator), sizes)


def measure_parts(selector: SubsetSelector, size: int, repeats: int) -> dict[str, float]:
    """Return the seconds of each part of an explanation of one set, in which the first items are explained."""
    sets = draw_sets([size], 1)
    count = min(CHOSEN, size - 2)
    subsets = [list(range(count))]
    calls = {
        "predict": partial(selector.predict, sets),
        f"gains, Shapley, pairs, swaps of {count} chosen": partial(selector.explain, sets, subsets, columns=()),
        "the same and effects of 10 columns": partial(selector.explain, sets, subsets),
        "its own choice, with additions": partial(selector.explain, sets, size=count),
        "changes of one number": partial(selector.explain, sets, size=count, columns=(), vary=["feature 0"]),
        "importance, 5 exchanges of 10 columns": partial(selector.importance, sets, subsets),
    }
    timings = time_in_turns(list(calls.values()), torch.device("cpu"), repeats)
    return {name: timing.processor for name, timing in zip(calls, timings, strict=True)}


def measure_shapley(selector: SubsetSelector, count: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of exact and of sampled Shapley values, and the error of the latter."""
    sets, function = draw_sets([count], 2).to(torch.float64), selector.function_
    calls = [partial(shapley_values, function, sets), partial(shapley_values, function, sets, exact=0)]
    exact, sampled = calls[0](), calls[1]()
    distance = (sampled.values.values - exact.values.values).abs() / sampled.errors.values.clamp(min=1e-12)
    difference = float((by_loop(selector, sets) - exact.values.values).abs().max()) if count <= MOST_BY_LOOP else None
    times = [timing.processor for timing in time_in_turns(calls, torch.device("cpu"), repeats)]
    return {"exact": times[0], "sampled": times[1], "worst": float(distance.max()), "difference": difference}


def by_loop(selector: SubsetSelector, sets: Sets) -> torch.Tensor:
    """Return the Shapley values of the items of one set by their definition, one subset at a time."""
    count, function = len(sets.values), selector.function_
    values: dict[frozenset[int], float] = {}
    for size in range(count + 1):
        for subset in itertools.combinations(range(count), size):
            mask = torch.zeros(1, count, dtype=torch.bool)
            mask[0, list(subset)] = True
            with torch.no_grad():
                values[frozenset(subset)] = float(function.value(sets, mask))
    shares = torch.zeros(count, dtype=torch.float64)
    for inside, value in values.items():
        for item in set(range(count)).difference(inside):
            weight = 1 / (count * math.comb(count - 1, len(inside)))
            shares[item] += weight * (values[inside | {item}] - value)
    return shares
