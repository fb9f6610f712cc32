"""Learning to predict the inputs of a solver: shared code of the experiments on paths, tours, matchings and knapsacks.

A network maps inputs to theta, a solver maps theta to an answer. A criterion returns one loss for each example, from
the right answers or the true thetas. Losses of a batch are added, not averaged, so that lambda of Blackbox and IMLE
means the same for batches of every size; Adam ignores the scale. A published lambda, where losses were averaged, must
be divided by the published batch size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.lib.records import Record
from benchmarks.lib.summary import mean_cell
from benchmarks.lib.tables import table
from setgrad.discrete import (
    AIMLE,
    IMLE,
    Blackbox,
    CombinatorialSolver,
    FenchelYoung,
    Identity,
    Margin,
    Noise,
    PerInstanceRule,
    Projection,
    StepRule,
    hamming_loss,
    regret,
)

# From answers, the examples of a batch and their solver to one loss for each answer.
Loss = Callable[[Tensor, "Examples", CombinatorialSolver], Tensor]


@final
@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs of the network, the right answers, and the true thetas, which the right answers solve."""

    inputs: Tensor
    answers: Tensor
    truth: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Tensor | slice) -> Examples:
        return Examples(self.inputs[rows], self.answers[rows], self.truth[rows])

    def to(self, device: torch.device) -> Examples:
        """Return the examples on a device."""
        return Examples(self.inputs.to(device), self.answers.to(device), self.truth.to(device))


class Criterion(nn.Module, ABC):
    """A loss that a network is trained with."""

    @abstractmethod
    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return one loss for each example."""


# From a solver and a generator to a criterion.
Method = Callable[[CombinatorialSolver, torch.Generator], Criterion]


def l1(z: Tensor, batch: Examples, solver: CombinatorialSolver) -> Tensor:
    """Return the L1 distance, the published loss for paths and tours. Its gradient is 0 at right entries."""
    return (z - batch.answers).abs().flatten(z.ndim - solver.dims).sum(-1)


def linear_hamming(z: Tensor, batch: Examples, solver: CombinatorialSolver) -> Tensor:
    """Return the Hamming loss: the value of `l1` with a gradient that is not 0 at right entries."""
    return hamming_loss(z, batch.answers, dims=solver.dims)


def regret_loss(z: Tensor, batch: Examples, solver: CombinatorialSolver) -> Tensor:
    """Return the regret of the answer."""
    return regret(z, batch.truth, solver=solver, best=batch.answers)


@final
class EstimatorLoss(Criterion):
    """The loss of an estimator's answers. Projection and margin come before estimators that do not have them."""

    def __init__(
        self, estimator: Any, loss: Loss, *, projection: Projection | None = None, margin: Margin | None = None
    ) -> None:
        super().__init__()
        self.estimator = estimator
        self.loss = loss
        self.projection = projection
        self.margin = margin

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return the loss of the estimator's answers."""
        solver = self.estimator.solver
        if isinstance(self.estimator, Identity):
            z = self.estimator(theta, target=batch.answers)
        else:
            if self.projection is not None:
                theta = self.projection(theta, solver.dims)
            if self.margin is not None:
                sign = 1 if solver.sense == "max" else -1  # margins are defined for a maximisation
                theta = sign * self.margin(sign * theta, target=batch.answers)
            z = self.estimator(theta)
        losses = self.loss(z, batch, solver)
        return losses.mean(0) if losses.ndim > 1 else losses

    def drop_margin(self) -> None:
        """Remove the margin."""
        self.margin = None
        if isinstance(self.estimator, Identity):
            self.estimator.margin = None


@final
class FenchelYoungLoss(Criterion):
    """A Fenchel-Young loss against the right answers."""

    def __init__(self, loss: FenchelYoung) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return the loss of perturbed answers against the right ones."""
        losses: Tensor = self.loss(theta, batch.answers)
        return losses


@final
class TwoStage(Criterion):
    """Regression on the true theta. Of the other losses only SPO+ and the regret use it."""

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return the squared error."""
        return (theta - batch.truth).square().flatten(1).mean(-1)


@final
class SPOPlus(Criterion):
    """The convex bound on the regret by Elmachtoub and Grigas (2022), with one call of the solver for a batch."""

    def __init__(self, solver: CombinatorialSolver) -> None:
        super().__init__()
        self.solver = solver

    def forward(self, theta: Tensor, batch: Examples) -> Tensor:
        """Return <2 theta - c, z* - z(2 theta - c)> for a minimisation, and minus that for a maximisation."""
        sign = 1 if self.solver.sense == "min" else -1
        shifted = 2 * theta - batch.truth
        z = self.solver(shifted.detach())
        return sign * (shifted * (batch.answers - z)).flatten(1).sum(-1)


def identity(
    solver: CombinatorialSolver,
    generator: torch.Generator,
    *,
    loss: Loss,
    projection: Projection | None = None,
    margin: Margin | None = None,
) -> Criterion:
    """Return the loss of Identity."""
    return EstimatorLoss(Identity(solver, projection=projection, margin=margin, generator=generator), loss)


def blackbox(
    solver: CombinatorialSolver,
    generator: torch.Generator,
    *,
    loss: Loss,
    lam: float,
    projection: Projection | None = None,
    margin: Margin | None = None,
) -> Criterion:
    """Return the loss of Blackbox, which projection and margin come before."""
    return EstimatorLoss(Blackbox(solver, lam=lam), loss, projection=projection, margin=margin)


def imle(
    solver: CombinatorialSolver, generator: torch.Generator, *, loss: Loss, noise: Noise, lam: float, samples: int = 1
) -> Criterion:
    """Return the loss of IMLE with forward differences."""
    return EstimatorLoss(IMLE(solver, noise=noise, lam=lam, samples=samples, generator=generator), loss)


def aimle(
    solver: CombinatorialSolver,
    generator: torch.Generator,
    *,
    loss: Loss,
    noise: Noise,
    samples: int = 1,
    rule: StepRule = PerInstanceRule(),  # noqa: B008 -- a frozen value
) -> Criterion:
    """Return the loss of AIMLE with central differences and the default target of the rule."""
    return EstimatorLoss(AIMLE(solver, noise=noise, samples=samples, mode=rule, generator=generator), loss)


def fenchel_young(
    solver: CombinatorialSolver, generator: torch.Generator, *, noise: Noise | None, samples: int = 1
) -> Criterion:
    """Return a Fenchel-Young loss; without noise it is the structured perceptron."""
    return FenchelYoungLoss(FenchelYoung(solver, noise=noise, samples=samples, generator=generator))


def two_stage(solver: CombinatorialSolver, generator: torch.Generator) -> Criterion:
    """Return the squared error of theta. Solver and generator are not used."""
    return TwoStage()


def spo_plus(solver: CombinatorialSolver, generator: torch.Generator) -> Criterion:
    """Return SPO+."""
    return SPOPlus(solver)


@final
@dataclass(frozen=True)
class Training:
    """Options of training. After a share `drop` of the epochs the rate falls, after a share `margin` margins end."""

    epochs: int
    batch: int
    rate: float
    drop: float = 1.0
    margin: float = 1.0


def learn(
    network: nn.Module,
    criterion: Criterion,
    examples: Examples,
    training: Training,
    generator: torch.Generator,
    *,
    validate: Callable[[nn.Module], float] | None = None,
) -> None:
    """Train in place. With `validate` (smaller is better) the weights of the best epoch are restored at the end."""
    optimiser = torch.optim.Adam([*network.parameters(), *criterion.parameters()], lr=training.rate)
    device = examples.inputs.device
    best, best_weights = float("inf"), None
    for epoch in range(training.epochs):
        if epoch == round(training.drop * training.epochs):
            for group in optimiser.param_groups:
                group["lr"] /= 10
        if epoch == round(training.margin * training.epochs) and isinstance(criterion, EstimatorLoss):
            criterion.drop_margin()
        network.train()
        order = torch.randperm(len(examples), generator=generator).to(device)
        for rows in order.split(training.batch):
            batch = examples[rows]
            optimiser.zero_grad(set_to_none=True)
            criterion(network(batch.inputs), batch).sum().backward()
            optimiser.step()
        if validate is not None:
            network.eval()
            score = validate(network)
            if score < best:
                best, best_weights = score, deepcopy(network.state_dict())
    if best_weights is not None:
        network.load_state_dict(best_weights)
    network.eval()


@torch.no_grad()
def predict(network: nn.Module, inputs: Tensor, *, batch: int = 256) -> Tensor:
    """Return theta of all inputs, computed in batches."""
    return torch.cat([network(part) for part in inputs.split(batch)])


def generators(seed: int, device: torch.device) -> tuple[torch.Generator, torch.Generator]:
    """Return a generator on the host for the order of examples, and one on the device for noise."""
    return torch.Generator().manual_seed(seed), torch.Generator(device=device).manual_seed(seed)


def make_record(scores: Record, solver: CombinatorialSolver, task: str, summary: str) -> Record:
    """Return the record of a trial: the scores, and the work of the solver in training."""
    work = {"calls": solver.counter.calls, "instances": solver.counter.instances}
    return {**scores, **work, "task": task, "summary": summary}


def show_rows(
    records: Sequence[Record], methods: Sequence[str], tasks: Sequence[str], columns: Sequence[tuple[str, str, str]]
) -> str:
    """Return a table with one row for each method and the columns (key, head, format) for each task.

    A cell with missing values (None) says how many runs failed.
    """
    rows = []
    for method in methods:
        groups = [[r for r in records if (r["method"], r["task"]) == (method, task)] for task in tasks]
        if any(groups):
            cells = [_cell([r[key] for r in group], form) for group in groups for key, _, form in columns]
            rows.append([method, *cells, str(max(map(len, groups)))])
    heads = [f"{task}: {head}" for task in tasks for _, head, _ in columns]
    return table(["", *heads, "runs"], rows)


def _cell(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    note = f" ({len(values) - len(known)} failed)" if len(known) < len(values) else ""
    return mean_cell(known, form) + note
