"""Matching keypoints of two images: features learned through the assignment solver against cross-entropy and Sinkhorn.

Claims checked: with an L1 loss between matchings, whose gradient points at the right answer, Identity needs no
projection, is as good as Blackbox, and is worse with a projection; margins matter, both noise and margins that know the
right answer (Sahoo et al., 2023, arXiv:2205.15213, section 4.2, published as a figure without numbers). Rivals that the
publication does not show: cross-entropy of each row, and of a Sinkhorn matrix, which call no solver in training.

The images are generated: 10 keypoints of 40 kinds, each with noisy features that are mixed with stronger ones that say
nothing (deviation 1.5, and 3 for a harder task), at positions that are rotated and moved at random; the second image
has 5 more points of clutter. A point is embedded together with messages from the other points of its image. Margins
have widths 0.1, 1 and 10; with "norm", where the scores of an image have norm 1, these are relatively larger. "linear"
is the Hamming loss with the same value and a gradient that is not 0 at right entries. Lambda is per example (published:
80 on batches of 8, that is 10). All methods share network, batches, learning rate and epochs; the last epoch is tested.

Results: points: keypoints with the right partner. images: pairs of images without an error. size: root mean square of
the scores. "nearest" matches the features without training. Without a margin the projection "std" helps Identity and
"norm" hurts it. With a margin of 0.1 "norm" makes little difference on the easier task. Cross-entropy, which calls no
solver, is as good as any method.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.discrete import decisions
from benchmarks.discrete.decisions import Criterion, Examples, Method, Training
from benchmarks.discrete.keypoints import CrossEntropy, Matcher, Sinkhorn, nearest, pairs
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad import discrete
from setgrad.selector import resolve_device

NEAREST = "nearest"
WIDTHS = (0.1, 1.0, 10.0)


def _cross_entropy(solver: discrete.CombinatorialSolver, generator: torch.Generator) -> Criterion:
    return CrossEntropy()


def _sinkhorn(solver: discrete.CombinatorialSolver, generator: torch.Generator) -> Criterion:
    return Sinkhorn()


def _margins(name: str, way: Any, **options: Any) -> dict[str, Method]:
    """Return a method without a margin, and with margins of each kind and width."""
    methods: dict[str, Method] = {name: partial(way, loss=decisions.l1, **options)}
    for kind, margin in (("noise", discrete.NoiseMargin), ("informed", discrete.InformedMargin)):
        methods |= {
            f"{name} {kind} {width:g}": partial(way, loss=decisions.l1, margin=margin(width), **options)
            for width in WIDTHS
        }
    return methods


METHODS: dict[str, Method] = {
    "cross-entropy": _cross_entropy,
    "sinkhorn": _sinkhorn,
    **_margins("identity", decisions.identity),
    **_margins("identity norm", decisions.identity, projection=discrete.NormProjection()),
    "identity std": partial(decisions.identity, loss=decisions.l1, projection=discrete.StdProjection()),
    "identity linear": partial(decisions.identity, loss=decisions.linear_hamming),
    "identity linear std": partial(
        decisions.identity, loss=decisions.linear_hamming, projection=discrete.StdProjection()
    ),
    **_margins("blackbox 10", decisions.blackbox, lam=10.0),
    "blackbox 1": partial(decisions.blackbox, loss=decisions.l1, lam=1.0),
    "blackbox 10 norm": partial(decisions.blackbox, loss=decisions.l1, lam=10.0, projection=discrete.NormProjection()),
    "imle 10": partial(decisions.imle, loss=decisions.l1, noise=discrete.Gumbel(), lam=10.0),
    "aimle": partial(decisions.aimle, loss=decisions.l1, noise=discrete.Gumbel()),
    "aimle paper": partial(decisions.aimle, loss=decisions.l1, noise=discrete.Gumbel(), rule=discrete.PublishedRule()),
    "fenchel-young 1": partial(decisions.fenchel_young, noise=discrete.Tempered(discrete.Normal(), 1.0)),
}
ALL = (NEAREST, *METHODS)


@final
@dataclass(frozen=True)
class Trial:
    """One training run, or none for "nearest". `pairs` has the numbers of training and test pairs."""

    method: str
    nuisance: float
    seed: int
    epochs: int
    pairs: tuple[int, int] = (4000, 1000)
    batch: int = 50
    rate: float = 1e-3

    @property
    def task(self) -> str:
        """The head of its columns."""
        return f"nuisance {self.nuisance:g}"

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task} {self.method} seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", default=",".join(ALL), help=f"default: all: {', '.join(ALL)}")
    parser.add_argument("--epochs", type=int, default=12, help="of training (default: 12)")
    parser.add_argument("--nuisance", type=float, nargs="+", default=[1.5, 3.0], help="deviations (default: 1.5 3)")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options."""
    names = parse_names(options.methods, ALL, "method")
    if options.quick:
        return [Trial(name, options.nuisance[0], 0, epochs=2, pairs=(300, 100)) for name in names]
    return [
        Trial(name, nuisance, seed, options.epochs)
        for nuisance in options.nuisance
        for name in names
        for seed in range(options.seeds)
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train on pairs of images with their matchings, and test."""
    device = resolve_device(context.device)
    order, noise = decisions.generators(trial.seed, device)
    drawn = torch.Generator().manual_seed(1_000 + trial.seed)
    train, test = (pairs(count, drawn, nuisance=trial.nuisance).to(device) for count in trial.pairs)
    solver = discrete.Assignment(on_failure="mask")
    if trial.method == NEAREST:
        theta = nearest(test.inputs)
    else:
        network = Matcher().to(device)
        criterion = METHODS[trial.method](solver, noise).to(device)
        decisions.learn(network, criterion, train, Training(trial.epochs, trial.batch, trial.rate, drop=0.7), order)
        theta = decisions.predict(network, test.inputs)
    scores = measure(theta, test)
    return decisions.make_record(scores, solver, trial.task, f"points {scores['points']:.1f} %")


def measure(theta: Tensor, test: Examples) -> Record:
    """Return the share of points with the right partner, and of pairs of images without an error."""
    right = (discrete.Assignment(on_failure="mask")(theta) * test.answers).sum(-1)
    return {
        "points": float(right.mean()) * 100,
        "images": float(right.all(-1).float().mean()) * 100,
        "size": float(theta.square().mean().sqrt()) if bool(theta.isfinite().all()) else None,
    }


def show(records: Sequence[Record]) -> str:
    """Return the table with one row for each method."""
    tasks = sorted({record["task"] for record in records}, key=lambda task: float(task.split()[1]))
    columns = (("points", "points (%)", ".1f"), ("images", "images (%)", ".1f"), ("size", "size of scores", ".2g"))
    return decisions.show_rows(records, ALL, tasks, columns)


REPORT = Report.of_module(__doc__, "Matching keypoints", show, "matching --device cpu --jobs 15")
