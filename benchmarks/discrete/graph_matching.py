"""Deep graph matching: points that look alike in pairs, matched by scores of pairs through the quadratic solver.

Claims checked: with the Hamming loss, Identity without a projection is as good as Blackbox and a projection by the norm
makes it worse; a margin is needed, and one of noise does as well as one that knows the right answer; Blackbox with the
norm is slightly better than without (Sahoo et al., 2023, arXiv:2205.15213, section 4.2, tables 2 and 4, published as
dots between 65 and 80 % for photographs that are not available). Here also: the quadratic solver against a linear
assignment of the same points, and against the exact likelihood of all matchings, which calls no solver in training.

Each shape has three looks, each at two of its six points, and the second image has one more point with one of these
looks. It is turned by any angle, stretched, and its points are moved, so that only distances between points tell points
of the same look apart. A network embeds points by their features, and pairs of points by both features and the
distance; scores are products of embeddings. "messages": the embedding of a point includes messages from all points of
its image, so that a linear assignment may learn to use distances. The solver is `GraphMatching`, which compares all
5,040 matchings. The loss is the L1 distance of points and pairs of points; "nodes": of points alone. Margins have
widths 0.1, 1 and 10, on the scores of points and of pairs. Lambda is per example (published: 80 on batches of 8, that
is 10). All share data, rate and batches; 6 epochs of 3,000 pairs, 30 for linear assignments, whose steps are cheap.

Results: points: points with the right partner. images: pairs of images without an error. size: root mean square of the
scores.
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
from benchmarks.discrete.keypoints import CrossEntropy
from benchmarks.discrete.shapes import OTHERS, POINTS, Likelihood, ShapeMatcher, make_solver, shape_pairs
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad import discrete
from setgrad.selector import resolve_device

NODES = POINTS * OTHERS
WIDTHS = (0.1, 1.0, 10.0)
LINEAR, MESSAGES = "linear", "messages"


def _likelihood(solver: discrete.CombinatorialSolver, generator: torch.Generator) -> Criterion:
    return Likelihood()


def _cross_entropy(solver: discrete.CombinatorialSolver, generator: torch.Generator) -> Criterion:
    return CrossEntropy()


def _nodes(z: Tensor, batch: Examples, solver: discrete.CombinatorialSolver) -> Tensor:
    """Return the L1 distance of the matchings of points alone."""
    return (z - batch.answers)[..., :NODES].abs().sum(-1)


def _margins(name: str, way: Any, widths: Sequence[float] = WIDTHS, **options: Any) -> dict[str, Method]:
    """Return a method without a margin, and with margins of each kind and width."""
    methods: dict[str, Method] = {name: partial(way, loss=decisions.l1, **options)}
    for kind, margin in (("noise", discrete.NoiseMargin), ("informed", discrete.InformedMargin)):
        methods |= {
            f"{name} {kind} {width:g}": partial(way, loss=decisions.l1, margin=margin(width), **options)
            for width in widths
        }
    return methods


_NORM, _UNIT = discrete.NormProjection(), discrete.NoiseMargin(1.0)
_blackbox: Any = partial(decisions.blackbox, lam=10.0)
METHODS: dict[str, Method] = {
    f"{LINEAR} cross-entropy": _cross_entropy,
    f"{LINEAR} {MESSAGES} cross-entropy": _cross_entropy,
    f"{LINEAR} {MESSAGES} identity noise 1": partial(decisions.identity, loss=decisions.l1, margin=_UNIT),
    "likelihood": _likelihood,
    f"likelihood {MESSAGES}": _likelihood,
    **_margins("identity", decisions.identity),
    f"identity {MESSAGES} noise 1": partial(decisions.identity, loss=decisions.l1, margin=_UNIT),
    "identity nodes noise 1": partial(decisions.identity, loss=_nodes, margin=_UNIT),
    **_margins("identity norm", decisions.identity, (0.1,), projection=_NORM),
    **_margins("blackbox", _blackbox),
    "blackbox nodes noise 1": partial(_blackbox, loss=_nodes, margin=_UNIT),
    **_margins("blackbox norm", _blackbox, (0.1,), projection=_NORM),
    "imle 10": partial(decisions.imle, loss=decisions.l1, noise=discrete.Gumbel(), lam=10.0),
    "aimle": partial(decisions.aimle, loss=decisions.l1, noise=discrete.Gumbel()),
    "aimle paper": partial(decisions.aimle, loss=decisions.l1, noise=discrete.Gumbel(), rule=discrete.PublishedRule()),
}


@final
@dataclass(frozen=True)
class Trial:
    """One training run. `pairs` has the numbers of training and test pairs."""

    method: str
    seed: int
    epochs: int
    deformation: float = 0.25
    pairs: tuple[int, int] = (3000, 1000)
    batch: int = 50
    rate: float = 2e-3

    @property
    def task(self) -> str:
        """The head of its columns."""
        return f"deformation {self.deformation:g}"

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.method}, seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", default=",".join(METHODS), help=f"default: all: {', '.join(METHODS)}")
    parser.add_argument("--epochs", type=int, default=6, help="of training; linear: five times (default: 6)")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT)


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, seed by seed."""
    names = parse_names(options.methods, METHODS, "method")
    if options.quick:
        return [Trial(name, 0, epochs=2, pairs=(100, 50)) for name in names]
    return [
        Trial(name, seed, (5 if name.startswith(LINEAR) else 1) * options.epochs)
        for seed in range(options.seeds)
        for name in names
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train on pairs of images with their matchings, and test."""
    device = resolve_device(context.device)
    order, noise = decisions.generators(trial.seed, device)
    drawn = torch.Generator().manual_seed(1_000 + trial.seed)
    train, test = (shape_pairs(n, drawn, deformation=trial.deformation).to(device) for n in trial.pairs)
    linear = trial.method.startswith(LINEAR)
    solver: discrete.CombinatorialSolver = discrete.Assignment(on_failure="mask")
    if not linear:
        solver = make_solver(on_failure="mask")
    network = ShapeMatcher(pairs=not linear, messages=MESSAGES in trial.method).to(device)
    criterion = METHODS[trial.method](solver, noise).to(device)
    training = Training(trial.epochs, trial.batch, trial.rate, drop=0.7)
    decisions.learn(network, criterion, of_nodes(train) if linear else train, training, order)
    theta = decisions.predict(network, test.inputs)
    scores = measure(theta, test, linear=linear)
    return decisions.make_record(scores, solver, trial.task, f"points {scores['points']:.1f} %")


def of_nodes(examples: Examples) -> Examples:
    """Return examples with the matching of points alone as the answer."""
    nodes = examples.answers[:, :NODES].unflatten(1, (POINTS, OTHERS))
    return Examples(examples.inputs, nodes, nodes)


def measure(theta: Tensor, test: Examples, *, linear: bool) -> Record:
    """Return the share of points with the right partner, and of pairs of images without an error."""
    solver = discrete.Assignment(on_failure="mask") if linear else make_solver(on_failure="mask")
    z = torch.cat([solver(part) for part in theta.split(200)])
    nodes = z if linear else z[:, :NODES].unflatten(1, (POINTS, OTHERS))
    right = (nodes * of_nodes(test).answers).sum(-1)
    return {
        "points": float(right.mean()) * 100,
        "images": float(right.all(-1).float().mean()) * 100,
        "size": float(theta.square().mean().sqrt()) if bool(theta.isfinite().all()) else None,
    }


def show(records: Sequence[Record]) -> str:
    """Return the table with one row for each method."""
    tasks = sorted({record["task"] for record in records}, key=lambda task: float(task.split()[1]))
    columns = (("points", "points (%)", ".1f"), ("images", "images (%)", ".1f"), ("size", "size of scores", ".2g"))
    return decisions.show_rows(records, tuple(METHODS), tasks, columns)


REPORT = Report.of_module(__doc__, "Deep graph matching", show, "graph-matching --device cpu")
