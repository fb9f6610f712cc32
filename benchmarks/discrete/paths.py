"""Cheapest paths across maps of terrain: an image-to-cost network learns from paths alone, through the path solver.

Claims checked: Identity, without any lambda and with one call of the solver a step, finds paths as good as Blackbox's,
with or without normalisation and noise margin (paper 002, table 7); AIMLE needs no lambda where IMLE does; what a rival
with a Fenchel-Young loss does; and a network that is told the true costs ("two-stage": the others never see a cost).
Found: Identity is level with Blackbox but with the linear loss, from which it does not learn; IMLE and AIMLE, which
solve two and three instances where Identity and Fenchel-Young solve one, are among the best on 12 x 12 and 20 x 20,
ahead even of the network that is told the costs, and ahead of the others on 32 x 32.

The maps are generated (smooth random fields, five kinds of ground with hidden costs, drawn as textured tiles of 8 x 8
pixels; tiles of test maps are never seen in training) because the Warcraft maps cannot be had here. The published
ratios of table 7 stand beside the table for orientation only: other maps, a ResNet18, more training. Loss: L1 between
paths, whose gradient is 0 at right cells, so that Identity without margin and projection is the structured perceptron;
"linear" is the Hamming loss with the same value and a gradient everywhere.
Lambda is per example (published: 20 on means over batches of 70, that is 0.3), several are shown and none is chosen on
test maps. All methods share network, batches, rate and epochs; the last epoch is tested. Ties between paths are
frequent, so "best" counts paths as cheap as the cheapest, and "ratio" is true cost over cheapest cost, x 100.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from torch import Tensor

from benchmarks.discrete.decisions import (
    Examples,
    Method,
    Training,
    aimle,
    blackbox,
    fenchel_young,
    generators,
    identity,
    imle,
    l1,
    learn,
    linear_hamming,
    predict,
    show_rows,
    two_stage,
)
from benchmarks.discrete.terrain import CostNetwork, maps
from benchmarks.lib.device import resolve_device
from benchmarks.lib.records import Place, Record
from benchmarks.lib.trials import add_trial_options, chosen, run_and_show
from setgrad.discrete import GridPath, NoiseMargin, Normal, SumOfGamma, Tempered
from setgrad.errors import OptionError

USUAL = Path("benchmarks/results/paths.jsonl")
SIZES = (12, 20, 32)
PUBLISHED = (
    "Published for Warcraft maps of 32 x 32, ratio x 100 (paper 002, table 7; other maps and networks): Blackbox "
    "100.9 ± 0.1, Identity 101.0 ± 0.1; normalised 100.9 ± 0.1 and 101.2 ± 0.1; noise 0.2 101.1 ± 0.1 and 101.0 ± 0.1."
)


def methods(size: int) -> dict[str, Method]:
    """All contenders. The gamma noise knows about how long a path is, as in the code of IMLE."""
    gamma = SumOfGamma(int(1.3 * size))
    return {
        "two-stage (oracle)": two_stage,
        "identity": partial(identity, loss=l1),
        "identity norm": partial(identity, loss=l1, projection="norm"),
        "identity noise 0.2": partial(identity, loss=l1, margin=NoiseMargin(0.2)),
        "identity norm noise 0.02": partial(identity, loss=l1, projection="norm", margin=NoiseMargin(0.02)),
        "identity linear": partial(identity, loss=linear_hamming),
        "identity linear norm": partial(identity, loss=linear_hamming, projection="norm"),
        "blackbox 0.3": partial(blackbox, loss=l1, lam=0.3),
        "blackbox 3": partial(blackbox, loss=l1, lam=3.0),
        "blackbox 0.3 linear": partial(blackbox, loss=linear_hamming, lam=0.3),
        "blackbox 0.3 norm": partial(blackbox, loss=l1, lam=0.3, projection="norm"),
        "blackbox 0.3 noise 0.2": partial(blackbox, loss=l1, lam=0.3, margin=NoiseMargin(0.2)),
        "imle 0.3": partial(imle, loss=l1, noise=gamma, lam=0.3),
        "imle 3": partial(imle, loss=l1, noise=gamma, lam=3.0),
        "aimle": partial(aimle, loss=l1, noise=gamma),
        "fenchel-young 0.5": partial(fenchel_young, noise=Tempered(Normal(), 0.5)),
    }


ALL = tuple(methods(12))


@final
@dataclass(frozen=True)
class Trial:
    """One training. `size` is rows and columns of a map, `maps` how many are learnt from and tested on."""

    method: str
    size: int
    seed: int
    epochs: int
    maps: tuple[int, int] = (2000, 500)
    batch: int = 40
    rate: float = 3e-3
    dim: int = 32

    @property
    def task(self) -> str:
        """Head of its columns."""
        return f"{self.size} x {self.size}"

    @property
    def label(self) -> str:
        """What is shown while it runs."""
        return f"{self.task} {self.method} seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", default=",".join(ALL), help=f"default: all: {', '.join(ALL)}")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="rows of a map (default: 12,20,32)")
    parser.add_argument("--epochs", type=int, default=15, help="of training (default: 15)")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that are missing and print the table."""
    return run_and_show(
        options,
        plan(options),
        attempt,
        USUAL,
        page=lambda records: f"# Paths across terrain\n\n{show(records)}\n\n{PUBLISHED}",
    )


def plan(options: argparse.Namespace) -> list[Trial]:
    """All trials asked for, the longest first."""
    if not all(word.strip().isdigit() and int(word) > 1 for word in options.sizes.split(",")):
        raise OptionError(f"--sizes takes whole numbers of 2 or more, not {options.sizes!r}")
    sizes = sorted((int(word) for word in options.sizes.split(",")), reverse=True)
    names = chosen(options.methods, ALL, "method")
    if options.quick:
        # Steps enough for the running means of the normalisation to settle.
        small = partial(Trial, epochs=2, maps=(280, 50), batch=20, dim=8)
        return [small(name, min(sizes), 0) for name in names]
    return [
        Trial(name, size, seed, options.epochs)
        for size in sizes
        for name in sorted(names, key=lambda name: "imle" not in name)
        for seed in range(options.seeds)
    ]


def attempt(trial: Trial, place: Place) -> Record:
    """Train on maps with their paths, and test."""
    device = resolve_device(place.device)
    order, noise = generators(trial.seed, device)
    train, test = (
        maps(count, trial.size, trial.seed, test=last).to(device)
        for count, last in zip(trial.maps, (False, True), strict=True)
    )
    solver = GridPath(on_failure="mask")
    network = CostNetwork(trial.dim).to(device)
    criterion = methods(trial.size)[trial.method](solver, noise).to(device)
    training = Training(trial.epochs, trial.batch, trial.rate, drop=0.6)
    learn(network, criterion, train, training, order)
    work = {"calls": solver.counter.calls, "instances": solver.counter.instances}
    found = {**measure(predict(network, test.inputs), test), **work}
    return {**found, "task": trial.task, "said": f"best {found['best']:.1f} %"}


def measure(theta: Tensor, test: Examples) -> Record:
    """How often a path is as cheap as the cheapest, and by how much the others are dearer."""
    solved = GridPath(on_failure="mask").run(theta)
    cost = (solved.value * test.truth).flatten(1).sum(-1)
    least = (test.answers * test.truth).flatten(1).sum(-1)
    answered = solved.status == 0
    best = answered & (cost <= least * (1 + 1e-5))
    ratio = float((cost / least).mean()) * 100 if bool(answered.all()) else None
    same = (solved.value == test.answers).flatten(1).all(-1)
    return {
        "best": float(best.float().mean()) * 100,
        "same": float(same.float().mean()) * 100,
        "ratio": ratio,
    }


def show(records: list[Record]) -> str:
    """One row for each method."""
    tasks = sorted({record["task"] for record in records}, key=lambda task: int(task.split()[0]))
    return show_rows(records, ALL, tasks, (("best", "best (%)", ".1f"), ("ratio", "ratio", ".2f")))
