"""Training steps and predictions of the methods, side by side.

Claims checked: a training step of method="conditional" takes no more processor time than one of method="unrolled", and
choosing 10 of 100 items one by one takes at most twice as long as choosing them by one mean-field step.

A step is measured by fits of a fixed number of epochs on random sets: Amazon's shape (64 sets of 30 items with 384
features in a batch) and Moons' shape (100 items with 2 features). Times are medians of fits in turns, of the processor.
Prediction chooses 10 of the items of 200 sets. Ratios are to unrolled. All have one member and else default options, so
"conditional" has its terms for pairs and for the mean of the set, too.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks.lib.machine import announce
from benchmarks.lib.tables import format_seconds, table
from benchmarks.lib.timing import time_in_turns
from setgrad import SubsetSelector
from setgrad.selector import resolve_device
from setgrad.sets import Choices, Sets

METHODS = ("unrolled", "conditional", "direct")
USUAL = "unrolled"
# Items of a set, features and chosen items.
SHAPES = {"Amazon": (30, 384, 6), "Moons": (100, 2, 10)}
# More than 800 training sets: with fewer, the methods have more terms in common.
BATCHES, BATCH_SIZE, REPEATS = 13, 64, 5
PREDICTED, CHOSEN = 200, 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    device = resolve_device(options.device)
    machine = announce(device)
    batches, repeats = (1, 1) if options.quick else (BATCHES, REPEATS)
    rows: dict[str, dict[str, float]] = {method: {} for method in METHODS}
    for shape in SHAPES:
        train, held_out = make_choices(shape, batches * BATCH_SIZE), make_choices(shape, 1)
        selectors = {method: make_selector(method, str(device), quick=options.quick) for method in METHODS}
        fits = [partial(s.fit, *train, validation=tuple(held_out)) for s in selectors.values()]
        for method, timing in zip(METHODS, time_in_turns(fits, device, repeats), strict=True):
            rows[method][f"step, {shape}"] = timing.processor / batches
        predicted = make_choices(shape, 2 if options.quick else PREDICTED).sets
        choices = [partial(s.predict, predicted, size=CHOSEN) for s in selectors.values()]
        for method, timing in zip(METHODS, time_in_turns(choices, device, repeats), strict=True):
            rows[method][f"predict, {shape}"] = timing.processor
    show(rows)
    return {"machine": machine, "rows": rows}


def make_selector(method: str, device: str, *, quick: bool) -> SubsetSelector:
    """Return a selector that trains for one epoch."""
    sizes: dict[str, Any] = {"dim": 16, "hidden": (16,)} if quick else {}
    return SubsetSelector(method=method, device=device, max_epochs=1, members=1, random_state=0, verbose=0, **sizes)


def make_choices(shape: str, count: int) -> Choices:
    """Return random sets with random subsets."""
    items, features, chosen = SHAPES[shape]
    generator = torch.Generator().manual_seed(0)
    sets = Sets.from_lengths(torch.randn(items * count, features, generator=generator), [items] * count)
    order = torch.rand(count, items, generator=generator).argsort(1)
    return Choices(sets, sets.with_values((order < chosen).flatten()))


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print the table and the verdicts."""
    names = list(rows[USUAL])
    cells = [
        [method, *(f"{format_seconds(row[name])} ({row[name] / rows[USUAL][name]:.2f})" for name in names)]
        for method, row in rows.items()
    ]
    print()
    print(table(["method", *names], cells))
    for name in names:
        target = 1.0 if name.startswith("step") else 2.0
        ratio = rows["conditional"][name] / rows[USUAL][name]
        verdict = "met" if ratio <= target else "missed"
        print(f"conditional, {name}: {ratio:.2f} of unrolled (target {target:g}): {verdict}")
