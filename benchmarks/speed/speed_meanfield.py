"""One training step of mean field: setgrad against mask tensors, and memory against the size of the set.

Claims checked: with the same networks, samples and loss, a step is at least 8 times faster at B=128, |V|=100 and 25
times at |V|=3000 on a CPU. Part of that comes from items that the loss does not read, which setgrad does not compute:
S* and as many others are a fifth of all ("all items" computes all). Peak memory grows linearly in |V| (exponent under
1.1 from 1,000 to 30,000 items). One set of 1,000,000 items trains in under 6 GB, with the published model and with the
default one.

Times are medians of steps in turns, after a warm-up. "cpu" is the ratio of processor times, which a busy machine
disturbs less. Peaks are the memory of a step beyond the memory after a step on ten items: resident memory of a new
process on the CPU, allocated tensors on the GPU. The exponent is the slope of a least-squares line through the logs of
these peaks and of |V|. In the tables n = |V| and k = |S*|, a tenth of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, final

import torch

from benchmarks.lib.machine import add_machine_options, announce
from benchmarks.lib.tables import format_bytes, format_seconds, table
from benchmarks.lib.timing import growth_exponent, time_in_turns
from benchmarks.speed.step_memory import peak_of
from benchmarks.speed.steps import MODELS, WAYS, Case, make_batch, make_step


@final
@dataclass(frozen=True)
class Plan:
    """What to measure. `targets` are the smallest ratios of times on the CPU, one for each pair of (B, |V|)."""

    pairs: Sequence[tuple[int, int]]
    targets: Sequence[float | None]
    growth: Sequence[int]
    growth_sets: int
    largest: int
    repeats: int


FULL = Plan(
    pairs=[(128, 100), (4, 1000), (4, 3000)],
    targets=[8.0, None, 25.0],
    growth=[1000, 3000, 10_000, 30_000],
    growth_sets=4,
    largest=1_000_000,
    repeats=5,
)
QUICK = Plan(pairs=[(8, 20)], targets=[None], growth=[200, 2000], growth_sets=1, largest=3000, repeats=1)
# Steps on a GPU take milliseconds, so more of them are affordable.
GPU_REPEATS = 30
EXPONENT_LIMIT = 1.1
LARGEST_LIMIT = 6e9


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_machine_options(parser)
    parser.add_argument(
        "--repeats", type=int, help=f"timed steps of each kind (default: {FULL.repeats}, {GPU_REPEATS} on a GPU)"
    )
    parser.add_argument(
        "--parts", default="speed,growth,largest", help="which parts to run, separated by commas (default: all)"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run and print all parts."""
    device = torch.device(options.device)
    plan = QUICK if options.quick else FULL
    repeats = options.repeats or (GPU_REPEATS if device.type == "cuda" and not options.quick else plan.repeats)
    plan = replace(plan, repeats=repeats)
    parts = {"speed": measure_speed, "growth": measure_growth, "largest": measure_largest}
    machine = announce(device, options.threads)
    results: dict[str, Any] = {"machine": machine, "repeats": plan.repeats}
    for name in options.parts.split(","):
        if name not in parts:
            raise SystemExit(f"unknown part {name!r}; choose from: {', '.join(parts)}")
        results[name] = parts[name](plan, device)
    return results


def measure_speed(plan: Plan, device: torch.device) -> list[dict[str, Any]]:
    """Measure and print time and memory of all ways."""
    print("\n## One training step (draw, forward, backward, AdamW), m = 5", flush=True)
    results, rows = [], []
    for (sets, items), target in zip(plan.pairs, plan.targets, strict=True):
        cases = [Case(sets, items, way) for way in WAYS]
        _log(f"B={sets}, n={items}")
        batch = make_batch(cases[0], device)
        steps = [make_step(case, device) for case in cases]
        ours, every, theirs = time_in_turns([partial(step, batch) for step in steps], device, plan.repeats)
        del steps
        our_peak, _, their_peak = peaks = [peak_of(case, device) for case in cases]
        ratio = theirs.clock / ours.clock
        results.append(
            {
                "sets": sets,
                "items": items,
                "mask_tensor": {**asdict(theirs), "peak": asdict(their_peak)},
                "setgrad": {**asdict(ours), "peak": asdict(our_peak)},
                "all_items": {**asdict(every), "peak": asdict(peaks[1])},
                "ratio": ratio,
                "processor_ratio": theirs.processor / ours.processor,
                "target": target if device.type == "cpu" else None,
            }
        )
        rows.append(
            [
                f"B={sets}, n={items}, k={cases[0].chosen}",
                format_seconds(theirs.clock),
                format_seconds(ours.clock),
                f"{ratio:.1f}",
                f"{theirs.processor / ours.processor:.1f}" if device.type == "cpu" else "-",
                f"{theirs.clock / every.clock:.1f}",
                f"at least {target:g}" if target and device.type == "cpu" else "-",
                format_bytes(their_peak.step),
                format_bytes(our_peak.step),
                f"{their_peak.step / max(1, our_peak.step):.1f}",
                f"{their_peak.step / max(1, peaks[1].step):.1f}",
            ]
        )
    times = ["mask tensor", "setgrad", "ratio", "cpu", "all items, ratio", "target"]
    head = ["batch", *times, "peak, mask tensor", "peak, setgrad", "ratio", "all items, ratio"]
    print(table(head, rows), flush=True)
    return results


def measure_growth(plan: Plan, device: torch.device) -> dict[str, Any]:
    """Measure and print the peak memory of setgrad against the size of the set."""
    peaks = []
    for items in plan.growth:
        _log(f"peak of setgrad, B={plan.growth_sets}, n={items}")
        peaks.append(peak_of(Case(plan.growth_sets, items), device))
    slope = growth_exponent(plan.growth, [peak.step for peak in peaks])
    print(f"\n## Peak memory of a setgrad step, B={plan.growth_sets}", flush=True)
    per_item = [peak.step / (items * plan.growth_sets) for items, peak in zip(plan.growth, peaks, strict=True)]
    rows = [
        [f"n={items:,}", format_bytes(peak.step), f"{each / 1e3:.1f} kB", format_seconds(peak.seconds)]
        for items, peak, each in zip(plan.growth, peaks, per_item, strict=True)
    ]
    print(table(["set", "peak beyond base", "per item", "one step"], rows))
    print(
        f"base {format_bytes(peaks[0].base)}; fitted exponent {slope:.3f} (target: under {EXPONENT_LIMIT})", flush=True
    )
    return {"items": list(plan.growth), "peaks": [asdict(peak) for peak in peaks], "exponent": slope}


def measure_largest(plan: Plan, device: torch.device) -> dict[str, Any]:
    """Measure and print one very large set, with the published model and with the default one."""
    peaks = {}
    for model in MODELS:
        _log(f"one set of {plan.largest:,} items, {model}")
        peaks[model] = peak_of(Case(1, plan.largest, model=model), device)
    print(f"\n## One set of {plan.largest:,} items", flush=True)
    rows = [
        [model, format_bytes(peak.total), format_bytes(peak.base), format_seconds(peak.seconds)]
        for model, peak in peaks.items()
    ]
    print(table(["model", "peak in all", "base", "one step"], rows))
    print(f"target: under {format_bytes(LARGEST_LIMIT)} in all", flush=True)
    return {model: asdict(peak) for model, peak in peaks.items()}


def _log(subject: str) -> None:
    print(f"measuring {subject}", file=sys.stderr, flush=True)
