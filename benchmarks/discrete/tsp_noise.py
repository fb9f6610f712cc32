"""Tours with wrong labels and noisy gradients: Identity and Blackbox, with and without projection and margin.

Claims checked: Identity with standardised costs is as good as Blackbox without disturbances, and better with noise in
the gradient and with wrong labels; once the noise margin ends, after half of the epochs, the costs of Blackbox
collapse under gradient noise and those of Identity do not (Sahoo et al., 2023, arXiv:2205.15213, figures 4 and 6b,
published without numbers). The publication shows Identity with the projection and Blackbox without; here both are
with and without, and also without the margin.

Task and network are those of `tsp`. Gradient noise: a normal number of deviation sigma is added to each entry of the
gradient at the tour, where the loss has entries of -1, 0 and 1. Published are deviations up to about 0.5; if losses
were averaged over the published batches of 50, that is 25 in this unit, so both ranges are tried. Labels: each pair
of cities of a training tour changes from leg to no leg, or back, with probability rho / k, once for all epochs.
Margin: noise of width 0.2 in the first half. The epoch with the best tours of 500 other sets is tested, as published;
"last" is the last.

Results: tours: percentage of tours of 1,000 test sets with every leg right, of the best epoch by validation sets.
last: the same for the last epoch. norm: mean norm of the predicted distances of a set in the last epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.discrete import decisions
from benchmarks.discrete.decisions import Examples, Loss, Training
from benchmarks.discrete.tsp import Globe, draw_sets, measure, read_globe, with_tours
from benchmarks.lib.pages import Report
from benchmarks.lib.plots import new_figure, save_figure
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import table
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad.discrete import TSP, CombinatorialSolver, NoiseMargin, StdProjection
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

WIDTH = 0.2
# From the name of a method to the function, its options, and whether it has the margin.
METHODS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    f"{name}{' margin' if margin else ''}": (way, options, margin)
    for name, way, options in (
        ("identity std", decisions.identity, {"projection": StdProjection()}),
        ("identity", decisions.identity, {}),
        ("blackbox", decisions.blackbox, {"lam": 0.4}),
        ("blackbox std", decisions.blackbox, {"lam": 0.4, "projection": StdProjection()}),
    )
    for margin in (True, False)
}
SIGMAS = (0.0, 0.25, 1.0, 4.0, 16.0)
RHOS = (0.25, 0.5, 1.0)


@final
@dataclass(frozen=True)
class Trial:
    """One training run. `sets` has the numbers of training, validation and test sets."""

    method: str
    cities: int
    seed: int
    sigma: float
    rho: float
    epochs: int
    sets: tuple[int, int, int] = (10_000, 500, 1_000)
    batch: int = 200
    rate: float = 1e-3

    @property
    def task(self) -> str:
        """The head of its columns."""
        return f"sigma {self.sigma:g}" if not self.rho else f"rho {self.rho:g}"

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"TSP({self.cities}) {self.method}, {self.task}, seed {self.seed}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", default=",".join(METHODS), help=f"default: all: {', '.join(METHODS)}")
    parser.add_argument("--cities", type=int, default=5, help="flags of a tour (default: 5)")
    parser.add_argument("--sigmas", type=float, nargs="*", default=SIGMAS, help="of the gradient noise")
    parser.add_argument("--rhos", type=float, nargs="*", default=RHOS, help="expected wrong legs of a city")
    parser.add_argument("--epochs", type=int, default=40, help="of training (default: 40)")
    add_trial_options(parser, seeds=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT, folders={"globe_tsp_ingredients": "the flags"})


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, seed by seed."""
    if not 3 <= options.cities <= 20 or options.epochs < 2:
        raise OptionError("--cities takes 3 to 20, and --epochs at least 2: the margin ends after half of them")
    kinds = [*((sigma, 0.0) for sigma in options.sigmas), *((0.0, rho) for rho in options.rhos)]
    names = parse_names(options.methods, METHODS, "method")
    if options.quick:
        return [Trial(name, options.cities, 0, 1.0, 0.5, 2, sets=(400, 100, 100)) for name in names]
    return [
        Trial(name, options.cities, seed, sigma, rho, options.epochs)
        for seed in range(options.seeds)
        for sigma, rho in kinds
        for name in names
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train on disturbed gradients or labels, and test; the curve has norm and tours after each epoch."""
    device = resolve_device(context.device)
    order, noise = decisions.generators(trial.seed, device)
    flags, places = read_globe(context.data_dir)
    drawn = draw_sets(sum(trial.sets), trial.cities, trial.seed)
    train, validation, test = (with_tours(part.to(device), places.to(device)) for part in drawn.split(trial.sets))
    train = with_wrong_labels(train, trial.rho / trial.cities, noise)
    network, solver = Globe(flags).to(device), TSP(on_failure="mask")
    way, options, margin = METHODS[trial.method]
    loss = noisy(decisions.l1, trial.sigma, noise) if trial.sigma else decisions.l1
    criterion = way(solver, noise, loss=loss, margin=NoiseMargin(WIDTH) if margin else None, **options)
    curve: list[tuple[float, float]] = []

    def validate(network: nn.Module) -> float:
        theta = decisions.predict(network, validation.inputs)
        curve.append((float(theta.flatten(1).norm(dim=1).mean()), measure(theta, validation)["tours"]))
        if len(curve) == trial.epochs:
            last.update(measure(decisions.predict(network, test.inputs), test))
        return -curve[-1][1]

    last: Record = {}
    training = Training(trial.epochs, trial.batch, trial.rate, drop=0.8, margin=0.5)
    decisions.learn(network, criterion.to(device), train, training, order, validate=validate)
    scores = measure(decisions.predict(network, test.inputs), test)
    curves = {"norms": [norm for norm, _ in curve], "validation": [tours for _, tours in curve]}
    return decisions.make_record(
        {**scores, **curves, "last": last["tours"]}, solver, trial.task, f"tours {scores['tours']:.1f} %"
    )


def noisy(loss: Loss, sigma: float, generator: torch.Generator) -> Loss:
    """Return the loss with normal noise of this deviation on each entry of its gradient at the answers."""

    def disturbed(z: Tensor, batch: Examples, solver: CombinatorialSolver) -> Tensor:
        def add(grad: Tensor) -> Tensor:
            return grad + sigma * torch.randn(grad.shape, generator=generator, device=grad.device, dtype=grad.dtype)

        if z.requires_grad:
            z.register_hook(add)
        return loss(z, batch, solver)

    return disturbed


def with_wrong_labels(examples: Examples, share: float, generator: torch.Generator) -> Examples:
    """Return the examples with this share of the pairs of cities changed from leg to no leg, or back."""
    drawn = torch.rand(examples.answers.shape, generator=generator, device=examples.answers.device).triu(1)
    wrong = (drawn > 0) & (drawn < share)
    return Examples(examples.inputs, (examples.answers - (wrong | wrong.mT).float()).abs(), examples.truth)


def show(records: Sequence[Record]) -> str:
    """Return a table of scores for each number of cities, and one of norms."""
    pages = []
    for cities in sorted({record["cities"] for record in records}):
        selected = [record for record in records if record["cities"] == cities]
        tasks = sorted({r["task"] for r in selected}, key=lambda task: (task[0] == "r", float(task.split()[1])))
        names = [name for name in METHODS if any(record["method"] == name for record in selected)]
        for title, score, form in (
            ("tours of the best epoch (%)", _best, ".1f"),
            ("tours of the last epoch (%)", _last, ".1f"),
            ("norm of the costs in the last epoch", _norm, ".2f"),
        ):
            rows = []
            for name in names:
                runs = [[r for r in selected if (r["method"], r["task"]) == (name, task)] for task in tasks]
                rows.append([name, *(mean_cell([score(r) for r in group], form) for group in runs)])
            pages.append(f"## TSP({cities}): {title}\n\n{table(['', *tasks], rows)}")
    return "\n\n".join(pages)


def _best(record: Record) -> float:
    return float(record["tours"])


def _last(record: Record) -> float:
    return float(record["last"])


def _norm(record: Record) -> float:
    return float(record["norms"][-1])


def draw(records: Sequence[Record], page: Path) -> list[Path]:
    """Draw the norm of the costs and the right tours against the epoch, for the smallest number of cities, seed 0."""
    few = min(record["cities"] for record in records)
    shown = [record for record in records if (record["cities"], record["seed"], record["rho"]) == (few, 0, 0.0)]
    tasks = sorted({record["task"] for record in shown}, key=lambda task: float(task.split()[1]))
    if not tasks:
        return []
    figure = new_figure(4 * len(tasks), 6.5)
    grid = figure.subplots(2, len(tasks), squeeze=False, sharex=True, sharey="row")
    for column, task in zip(grid.T, tasks, strict=True):
        for number, name in enumerate(METHODS):
            for record in [r for r in shown if (r["task"], r["method"]) == (task, name)]:
                style = {"label": name, "color": f"C{number // 2}", "linestyle": "-" if METHODS[name][2] else ":"}
                for axis, key in zip(column, ("norms", "validation"), strict=True):
                    axis.plot(range(1, len(record[key]) + 1), record[key], **style)
        column[0].set_title(f"TSP({few}), {task}")
        column[1].set_xlabel("epoch")
    grid[0][0].set_ylabel("norm of the costs")
    grid[1][0].set_ylabel("right tours (%)")
    grid[0][0].legend(fontsize=6)
    return save_figure(figure, page.with_suffix(".png"))


REPORT = Report.of_module(
    __doc__, "Tours with wrong labels and noisy gradients", show, "tsp-noise --data-dir DATA --device cpu", draw
)
