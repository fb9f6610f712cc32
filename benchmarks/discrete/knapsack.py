"""Half-hours of energy chosen under a budget: prices learned through the solver, or by regression.

Claims checked: networks trained through the knapsack solver (Identity, Blackbox, IMLE, AIMLE, Fenchel-Young) lose less
than the same networks fitted to prices by squared error ("two-stage"), and no more than with SPO+, the usual loss for
such tasks (implemented here, and PyEPO's where PyEPO is installed).

789 days in their order: the first 552 for training (a random fifth of them for validation), the last 237 for the test.
Every day has 48 half-hours with eight features. Their weights (3, 5, 7) are the same every day, and values grow with
weight and price. Published work predicts values from the eight features alone ("plain"), and so cannot know that
heavier items are worth more; "weights" adds the features for each weight separately. Regret is the loss against choices
that know the values, in percent of their value, over all test days. All networks have the same batches, learning rate
and epochs, but Fenchel-Young, IMLE and AIMLE draw four samples of each day, so they solve 4, 8 and 12 instances where
SPO+ and Identity solve one and Blackbox two. The epoch with the least regret on validation days is used, for two-stage
too. Values are divided by their deviation; lambda and noise are in that unit. Regret is linear in the choice, so its
gradient does not depend on the choice and a margin would change nothing for Identity; with the L1 distance to the best
choice it does. "ridge" and "trees" (scikit-learn) are two-stage too, "by weight" predicts the mean value of each
weight.

Results: Columns: features and budget (all items weigh 240). On plain features AIMLE and IMLE lose less than SPO+, with
up to twelve times the instances solved. Fenchel-Young lies between two-stage and SPO+. Identity and Blackbox lose more
than SPO+ nearly everywhere, and with the smallest budget and plain features Identity loses more than two-stage.
Deterministic fits (by weight, ridge, trees) have one run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.discrete import decisions
from benchmarks.discrete.decisions import Criterion, Examples, Method, Training
from benchmarks.lib.data import data_folder, read_arrays
from benchmarks.lib.pages import Report
from benchmarks.lib.records import Record, RunContext
from benchmarks.lib.trials import add_trial_options, parse_names, run_and_show
from setgrad import discrete
from setgrad.errors import OptionError
from setgrad.selector import resolve_device

SLOTS = 48
FEATURES = ("plain", "weights")
MODELS = ("linear", "mlp")
PYEPO = "pyepo spo+"


@final
class PyEPOLoss(Criterion):
    """PyEPO's SPO+ with the same solver, which it calls for one instance at a time."""

    def __init__(self, solver: discrete.CombinatorialSolver) -> None:
        super().__init__()
        losses = importlib.import_module("pyepo.func")
        self.loss = losses.SPOPlus(discrete.to_pyepo(solver, SLOTS), processes=1, reduction="sum")

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return one number for the whole batch."""
        best = (batch.truth * batch.answers).sum(-1, keepdim=True)
        value: Tensor = self.loss(theta, batch.truth, batch.answers, best)
        return value


def _pyepo(solver: discrete.CombinatorialSolver, generator: torch.Generator) -> Criterion:
    return PyEPOLoss(solver)


_WAYS: dict[str, Method] = {
    "two-stage": decisions.two_stage,
    "spo+": decisions.spo_plus,
    PYEPO: _pyepo,
    "fenchel-young 0.5": partial(decisions.fenchel_young, noise=discrete.Tempered(discrete.Normal(), 0.5), samples=4),
    "identity": partial(decisions.identity, loss=decisions.regret_loss),
    "identity norm": partial(decisions.identity, loss=decisions.regret_loss, projection=discrete.NormProjection()),
    "identity l1": partial(decisions.identity, loss=decisions.l1),
    "identity l1 noise 0.5": partial(decisions.identity, loss=decisions.l1, margin=discrete.NoiseMargin(0.5)),
    "blackbox 0.1": partial(decisions.blackbox, loss=decisions.regret_loss, lam=0.1),
    "blackbox 1": partial(decisions.blackbox, loss=decisions.regret_loss, lam=1.0),
    "blackbox 10": partial(decisions.blackbox, loss=decisions.regret_loss, lam=10.0),
    "imle 1": partial(
        decisions.imle, loss=decisions.regret_loss, noise=discrete.Tempered(discrete.Gumbel(), 0.3), lam=1.0, samples=4
    ),
    "aimle": partial(
        decisions.aimle, loss=decisions.regret_loss, noise=discrete.Tempered(discrete.Gumbel(), 0.3), samples=4
    ),
    "aimle paper": partial(
        decisions.aimle,
        loss=decisions.regret_loss,
        noise=discrete.Tempered(discrete.Gumbel(), 0.3),
        samples=4,
        rule=discrete.PublishedRule(),
    ),
}
METHODS = {f"{name} {model}": (way, model) for name, way in _WAYS.items() for model in MODELS}
PLAIN = ("by weight", "ridge", "trees")
ALL = (*PLAIN, *METHODS)


@final
@dataclass(frozen=True)
class Trial:
    """One fit."""

    method: str
    features: str
    budget: int
    seed: int
    epochs: int
    days: int = 552
    batch: int = 32
    rate: float = 5e-3

    @property
    def task(self) -> str:
        """The head of its columns."""
        return f"{self.features}, {self.budget}"

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        return f"{self.task} {self.method} seed {self.seed}"


@final
@dataclass(frozen=True, eq=False)
class Days:
    """Features (days, 48, f) and values (days, 48) of both parts, and the weights (48)."""

    learnt: tuple[Tensor, Tensor]
    tested: tuple[Tensor, Tensor]
    weights: Tensor


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--methods", help="default: all, PyEPO's where it is installed")
    parser.add_argument("--features", default=",".join(FEATURES), help="plain, weights (default: both)")
    parser.add_argument("--budgets", default="60,120,180", help="of 240 that all items weigh (default: 60,120,180)")
    parser.add_argument("--epochs", type=int, default=40, help="of training (default: 40)")
    add_trial_options(parser, seeds=5)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the trials that have no record, and show the page."""
    return run_and_show(options, plan(options), attempt, REPORT, folders={"knapsack_energy": "the prices of energy"})


def plan(options: argparse.Namespace) -> list[Trial]:
    """Return all trials of the options, the longest first. Deterministic fits have one seed."""
    known = importlib.util.find_spec("pyepo") is not None
    usual = [name for name in ALL if known or not name.startswith(PYEPO)]
    names = parse_names(options.methods, ALL, "method") if options.methods else usual
    features = parse_names(options.features, FEATURES, "features")
    words = options.budgets.split(",")
    if not all(word.strip().isdigit() for word in words):
        raise OptionError(f"--budgets takes whole numbers, not {options.budgets!r}")
    budgets = list(map(int, words))
    if options.quick:
        return [Trial(name, features[0], budgets[0], 0, epochs=2, days=96) for name in names]
    return [
        Trial(name, kind, budget, seed, 0 if name in PLAIN else options.epochs)
        for name in sorted(names, key=lambda name: (PYEPO not in name, "imle" not in name))
        for kind in features
        for budget in budgets
        for seed in range(1 if name in PLAIN else options.seeds)
    ]


def attempt(trial: Trial, context: RunContext) -> Record:
    """Fit, and return the regret on test days."""
    device = resolve_device(context.device)
    data = read_days(context.data_dir, trial.features)
    # The second solver is for validation and test, whose calls are not counted.
    solver, judge = (discrete.Knapsack(data.weights, trial.budget, on_failure="mask") for _ in range(2))
    features, values = (part[: trial.days].to(device) for part in data.learnt)
    test = _examples(data.tested[0].to(device), data.tested[1].to(device), judge)
    order, noise = decisions.generators(trial.seed, device)
    if trial.method in PLAIN:
        theta = _regress(trial.method, features, values, test.inputs, data.weights).to(device)
    else:
        rows = torch.randperm(len(features), generator=order).to(device)
        last = len(rows) // 5
        validation, train = (
            _examples(features[part_rows], values[part_rows], judge) for part_rows in (rows[:last], rows[last:])
        )
        make, model = METHODS[trial.method]
        network = make_network(model, features.shape[-1], float(values.mean())).to(device)
        criterion = make(solver, noise).to(device)
        training = Training(trial.epochs, trial.batch, trial.rate, drop=0.7)
        score = partial(_score, examples=validation, solver=judge)
        decisions.learn(network, criterion, train, training, order, validate=score)
        theta = decisions.predict(network, test.inputs)
    scores = {**measure(theta, test, judge), "error": float((theta - test.truth).square().mean())}
    return decisions.make_record(scores, solver, trial.task, f"regret {scores['regret']:.2f} %")


def read_days(data_dir: str | None, features: str) -> Days:
    """Return the days in order. Features are standardised on the first part, values divided by their deviation."""
    path = data_folder(data_dir, "knapsack_energy", "the prices of energy") / "Data.npz"
    names = ("X_1gtrain", "y_train", "X_1gtest", "y_test", "weights")
    x, y, x_test, y_test, weights = read_arrays(path, names)
    mean, deviation, scale = x[:, 1:].mean(0), x[:, 1:].std(0), y.std()  # the first column is the index of the day

    def part(inputs: Any, values: Any) -> tuple[Tensor, Tensor]:
        scaled = ((inputs[:, 1:] - mean) / np.where(deviation > 0, deviation, 1)).reshape(
            -1, SLOTS, inputs.shape[1] - 1
        )
        if features == "weights":
            kinds = (weights[:, None] == np.unique(weights)).astype(float)
            apart = (np.pad(scaled, ((0, 0), (0, 0), (0, 1)), constant_values=1)[..., None] * kinds[:, None]).reshape(
                len(scaled), SLOTS, -1
            )
            scaled = np.concatenate([scaled, apart], -1)
        return torch.from_numpy(scaled).float(), torch.from_numpy(values.reshape(-1, SLOTS) / scale).float()

    return Days(part(x, y), part(x_test, y_test), torch.from_numpy(weights))


def make_network(model: str, features: int, start: float) -> nn.Module:
    """Return a network that predicts the value of an item from its features; it starts with the mean value."""
    last = nn.Linear(features if model == "linear" else 64, 1)
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.fill_(start)
    body = [] if model == "linear" else [nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*body, last, nn.Flatten(-2))


def measure(theta: Tensor, test: Examples, solver: discrete.CombinatorialSolver) -> Record:
    """Return the regret of the choices by theta, in percent of the best."""
    z = solver(theta)
    regret = discrete.normalized_regret(z, test.truth, solver=solver, best=test.answers)
    return {"regret": float(regret) * 100}


def show(records: Sequence[Record]) -> str:
    """Return a table with one row for each method, one column for each kind of features and budget."""
    tasks = sorted({record["task"] for record in records}, key=lambda t: (t.split(",")[0], int(t.split(",")[1])))
    return decisions.show_rows(records, ALL, tasks, (("regret", "regret", ".2f"),))


def _score(network: nn.Module, *, examples: Examples, solver: discrete.CombinatorialSolver) -> float:
    return float(measure(decisions.predict(network, examples.inputs), examples, solver)["regret"])


def _examples(features: Tensor, values: Tensor, solver: discrete.CombinatorialSolver) -> Examples:
    return Examples(features, solver(values), values)


def _regress(method: str, features: Tensor, values: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Return the predictions of scikit-learn models of single half-hours, or of means."""
    if method == "by weight":
        means = [values[:, weights == weight].mean() for weight in weights]
        return torch.stack(means).cpu().expand(len(wanted), -1)
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(np.logspace(-3, 3, 13)) if method == "ridge" else HistGradientBoostingRegressor(random_state=0)
    model.fit(features.flatten(0, 1).cpu().numpy(), values.flatten().cpu().numpy())
    predicted = model.predict(wanted.flatten(0, 1).cpu().numpy())
    return torch.from_numpy(predicted).float().reshape(wanted.shape[:2])


REPORT = Report.of_module(
    __doc__, "Energy under a budget: regret on test days (%)", show, "knapsack --data-dir DATA --device cpu --jobs 15"
)
