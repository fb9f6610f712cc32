"""Cheapest paths across maps of terrain: a network learns costs from paths alone, through the path solver.

Claims checked: Identity, which has no lambda and solves one instance for each example, finds paths as good as
Blackbox's, with and without normalisation and noise margin (Sahoo et al., 2023, arXiv:2205.15213, table 7). AIMLE needs
no lambda, IMLE does. Rivals: a Fenchel-Young loss, and a network that is trained on the true costs ("two-stage"), which
the others never get.

The maps are generated, because the Warcraft maps of the publication are not available: smooth random fields, five kinds
of ground with hidden costs, drawn as textured tiles of 8 x 8 pixels. Test maps have tiles that training maps do not
have. The loss is L1 between paths. Its gradient is 0 at right cells, so Identity without margin and projection is the
structured perceptron; "linear" is the Hamming loss with the same value and a gradient everywhere. Lambda is per example
(published: 20 on means over batches of 70, that is 0.3). Several values are shown and none is chosen on test maps. All
methods share network, batches, learning rate and epochs; the last epoch is tested.

Results: best (%): paths as cheap as the cheapest (ties are frequent). ratio: true cost over the cheapest cost, x 100.
Generated maps; "two-stage" is trained on the true costs, the others on paths alone. Identity is level with Blackbox,
except with the linear loss, from which it does not learn. IMLE and AIMLE are among the best on 12 x 12 and 20 x 20 and
ahead of Identity, Blackbox and Fenchel-Young on 32 x 32, but solve two and three instances where these solve one or
two. Published for Warcraft maps of 32 x 32 (Sahoo et al., 2023, arXiv:2205.15213, table 7; other maps and networks),
ratio: Blackbox 100.9 ± 0.1, Identity 101.0 ± 0.1; normalised 100.9 ± 0.1 and 101.2 ± 0.1; noise 0.2 101.1 ± 0.1 and
101.0 ± 0.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from torch import Tensor

from benchmarks.discrete import decisions
from benchmarks.discrete.decisions import Examples, Method, Training
from benchmarks.discrete.terrain import CostNetwork, maps
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.discrete import GridPath, NoiseMargin, Normal, NormProjection, PublishedRule, SumOfGamma, Tempered
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

SIZES = (12, 20, 32)


def methods(size: int) -> dict[str, Method]:
    """Return all methods. The gamma noise depends on the approximate length of a path, as in the published code."""
    gamma = SumOfGamma(int(1.3 * size))
    return {
        "two-stage (oracle)": decisions.two_stage,
        "identity": partial(decisions.identity, loss=decisions.l1),
        "identity norm": partial(decisions.identity, loss=decisions.l1, projection=NormProjection()),
        "identity noise 0.2": partial(decisions.identity, loss=decisions.l1, margin=NoiseMargin(0.2)),
        "identity norm noise 0.02": partial(
            decisions.identity, loss=decisions.l1, projection=NormProjection(), margin=NoiseMargin(0.02)
        ),
        "identity linear": partial(decisions.identity, loss=decisions.linear_hamming),
        "identity linear norm": partial(decisions.identity, loss=decisions.linear_hamming, projection=NormProjection()),
        "blackbox 0.3": partial(decisions.blackbox, loss=decisions.l1, lam=0.3),
        "blackbox 3": partial(decisions.blackbox, loss=decisions.l1, lam=3.0),
        "blackbox 0.3 linear": partial(decisions.blackbox, loss=decisions.linear_hamming, lam=0.3),
        "blackbox 0.3 norm": partial(decisions.blackbox, loss=decisions.l1, lam=0.3, projection=NormProjection()),
        "blackbox 0.3 noise 0.2": partial(decisions.blackbox, loss=decisions.l1, lam=0.3, margin=NoiseMargin(0.2)),
        "imle 0.3": partial(decisions.imle, loss=decisions.l1, noise=gamma, lam=0.3),
        "imle 3": partial(decisions.imle, loss=decisions.l1, noise=gamma, lam=3.0),
        "aimle": partial(decisions.aimle, loss=decisions.l1, noise=gamma),
        "aimle paper": partial(decisions.aimle, loss=decisions.l1, noise=gamma, rule=PublishedRule()),
        "fenchel-young 0.5": partial(decisions.fenchel_young, noise=Tempered(Normal(), 0.5)),
    }


ALL = tuple(methods(12))


@final
@dataclass(frozen=True)
class Trial:
    """One training run. `size` is rows and columns of a map, `maps` the numbers of training and test maps."""

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
        """The head of its columns."""
        return f"{self.size} x {self.size}"

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task} {self.method} seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", default=",".join(ALL), help=f"default: all: {', '.join(ALL)}")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="rows of a map (default: 12,20,32)")
    parser.add_argument("--epochs", type=int, default=15, help="of training (default: 15)")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, the longest first."""
    if not all(word.strip().isdigit() and int(word) > 1 for word in options.sizes.split(",")):
        raise OptionError(f"--sizes takes whole numbers of 2 or more, not {options.sizes!r}")
    sizes = sorted((int(word) for word in options.sizes.split(",")), reverse=True)
    names = parse_names(options.methods, ALL, "method")
    if options.quick:
        # Enough steps for the running means of the normalisation to converge.
        small = partial(Trial, epochs=2, maps=(280, 50), batch=20, dim=8)
        return [small(name, min(sizes), 0) for name in names]
    return [
        Trial(name, size, seed, options.epochs)
        for size in sizes
        for name in sorted(names, key=lambda name: "imle" not in name)
        for seed in range(options.seeds)
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train on maps with their paths, and test."""
    device = resolve_device(context.device)
    order, noise = decisions.generators(trial.seed, device)
    train, test = (
        maps(count, trial.size, trial.seed, test=last).to(device)
        for count, last in zip(trial.maps, (False, True), strict=True)
    )
    solver = GridPath(on_failure="mask")
    network = CostNetwork(trial.dim).to(device)
    criterion = methods(trial.size)[trial.method](solver, noise).to(device)
    training = Training(trial.epochs, trial.batch, trial.rate, drop=0.6)
    decisions.learn(network, criterion, train, training, order)
    scores = measure(decisions.predict(network, test.inputs), test)
    return decisions.make_record(scores, solver, trial.task, f"best {scores['best']:.1f} %")


def measure(theta: Tensor, test: Examples) -> Record:
    """Return how often a path is as cheap as the cheapest, and the ratio of costs."""
    solved = GridPath(on_failure="mask").run(theta)
    cost = (solved.value * test.truth).flatten(1).sum(-1)
    least = (test.answers * test.truth).flatten(1).sum(-1)
    answered = solved.status == 0
    best = answered & (cost <= least * (1 + 1e-5))
    ratio = float((cost / least).mean()) * 100 if bool(answered.all()) else None
    same = (solved.value == test.answers).flatten(1).all(-1)
    return {"best": float(best.float().mean()) * 100, "same": float(same.float().mean()) * 100, "ratio": ratio}


def show(records: Sequence[Record]) -> str:
    """Return the table with one row for each method."""
    tasks = sorted({record["task"] for record in records}, key=lambda task: int(task.split()[0]))
    return decisions.show_rows(records, ALL, tasks, (("best", "best (%)", ".1f"), ("ratio", "ratio", ".2f")))


REPORT = Report.of_module(__doc__, "Cheapest paths across terrain", show, "paths --device cuda --jobs 15")
