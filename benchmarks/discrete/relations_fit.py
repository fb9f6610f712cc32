"""One trial of relational inference: train encoder, tree and decoder; test the bound and the edges."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.discrete.relations_data import Systems, simulate
from benchmarks.discrete.relations_models import METHODS, Decoder, Encoder, make_chooser
from benchmarks.lib.records import Record, RunContext
from setgrad.discrete import RandomSpanningTree, RelaxedSpanningTree, SpanningTree
from setgrad.selector import resolve_device

# Fixed trees, and an encoder that is trained on the true trees.
FIXED = ("true tree", "nearest", "no edges")
SUPERVISED = "supervised"
VARIANCE = 5e-5
_SHOWN = 4


@final
@dataclass(frozen=True)
class Trial:
    """One training run and its test. `lam` is for IMLE alone."""

    times: int
    method: str
    seed: int
    lam: float | None = None
    horizon: int = 1
    samples: int = 4
    steps: int = 1500
    batch: int = 64
    dim: int = 64
    rate: float = 2e-3
    systems: int = 20_000
    held: int = 2_000
    particles: int = 10
    # How much more the divergence weighs at the start; this falls to 0 in the first half of training.
    warm: float = 300.0

    @property
    def label(self) -> str:
        """The name that is printed while it runs."""
        step = "" if self.lam is None else f" {self.lam:g}"
        return f"T={self.times}, {self.method}{step}, seed {self.seed}"


def attempt(trial: Trial, context: RunContext) -> Record:
    """Train, and test the weights with the best validation bound."""
    device = resolve_device(context.device)
    source = torch.Generator(device).manual_seed(trial.seed)
    train, validation, test = (
        simulate(count, trial.times, source, particles=trial.particles)
        for count in (trial.systems, trial.held, trial.held)
    )
    model = Model(trial, device).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, trial.steps)
    best, best_weights, number = -math.inf, copy.deepcopy(model.state_dict()), 0
    for step in range(1, trial.steps + 1):
        rows = torch.randint(len(train), (trial.batch,), device=device, generator=source)
        loss = model.loss(train[rows], 1 + trial.warm * max(0.0, 1 - 2 * step / trial.steps))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % max(1, trial.steps // 10) == 0:
            reached = measure(model, validation, source)["elbo"]
            if reached > best:
                best, best_weights, number = reached, copy.deepcopy(model.state_dict()), step
    model.load_state_dict(best_weights)
    scores = measure(model, test, source)
    edges = "" if scores["precision"] is None else f", precision {scores['precision']:.1f}"
    summary = f"bound {scores['elbo']:.0f}{edges}"
    return {**scores, "validation": best, "best_step": number, "summary": summary}


@final
class Model(nn.Module):
    """Encoder, estimator and decoder."""

    def __init__(self, trial: Trial, device: torch.device) -> None:
        super().__init__()
        self.trial = trial
        self.encoder, self.decoder = Encoder(trial.times, trial.dim), Decoder(trial.dim)
        learned = trial.method in METHODS
        self.chooser = (
            make_chooser(trial.method, trial.particles, trial.samples, trial.lam, device) if learned else None
        )

    def loss(self, batch: Systems, weight: float = 1.0) -> Tensor:
        """Return minus the bound for each predicted number, so that it has the same scale for all lengths."""
        size = 2 * self.trial.particles * (self.trial.times - 1)

        def losses(tree: Tensor) -> Tensor:
            return self.negative_log(batch.places, tree)

        if self.trial.method == SUPERVISED:
            return -RandomSpanningTree(self.encoder(batch.places)).log_prob(batch.trees).mean()
        if self.chooser is None:
            return losses(given(self.trial.method, batch)[None]).mean() / size
        theta = self.encoder(batch.places)
        # Estimators get the loss in the same units.
        return (self.chooser(theta, lambda tree: losses(tree) / size) + weight * divergence(theta) / size).mean()

    def negative_log(self, places: Tensor, tree: Tensor) -> Tensor:
        """Return -log p(positions after the first | first, tree), (S, B)."""
        predicted, truth = self.decoder.unroll(places, tree, self.trial.horizon)
        each = (predicted - truth).square() / (2 * VARIANCE) + 0.5 * math.log(2 * math.pi * VARIANCE)
        return each.flatten(2).sum(-1)


def divergence(theta: Tensor) -> Tensor:
    """Return the exact KL between the distribution of trees and the uniform one."""
    return RandomSpanningTree(theta).kl(RandomSpanningTree(torch.zeros_like(theta[:1])))


def given(method: str, batch: Systems) -> Tensor:
    """Return trees by a rule."""
    if method == "true tree":
        return batch.trees
    if method == "no edges":
        return torch.zeros_like(batch.trees)
    last = batch.places[:, :, -1]
    return SpanningTree()(-torch.cdist(last, last))


@torch.no_grad()
def measure(model: Model, systems: Systems, generator: torch.Generator) -> Record:
    """Return the bound in nats, the published figure, and the percentage of right edges."""
    sums: dict[str, float] = {}
    for rows in torch.arange(len(systems), device=systems.trees.device).split(500):
        for name, value in _test_batch(model, systems[rows], generator).items():
            sums[name] = sums.get(name, 0.0) + float(value.sum())
    means: Record = {name: total / len(systems) for name, total in sums.items()}
    return {"elbo": None, "published": None, "precision": None, "sampled": None, **means}


def _test_batch(model: Model, batch: Systems, generator: torch.Generator) -> dict[str, Tensor]:
    n, method = batch.trees.shape[-1], model.trial.method
    if method in FIXED:
        trees = given(method, batch)
        # A certain tree has the divergence log(n^(n-2)) from the uniform distribution; without edges there is no tree.
        kl = 0.0 if method == "no edges" else (n - 2) * math.log(n)
        scores = {"elbo": -model.negative_log(batch.places, trees[None])[0] - kl}
        return scores if method == "no edges" else {**scores, "precision": agreement(trees, batch.trees)}
    theta = model.encoder(batch.places)
    distribution = RandomSpanningTree(theta)
    drawn = distribution.sample(_SHOWN, generator=generator)
    scores = {"precision": agreement(distribution.mode, batch.trees), "sampled": agreement(drawn, batch.trees).mean(0)}
    if method == SUPERVISED:
        # Its decoder is untrained, so it is validated by the log-probability of the trees.
        return {**scores, "elbo": distribution.log_prob(batch.trees)}
    scores["elbo"] = -model.negative_log(batch.places, drawn).mean(0) - divergence(theta)
    scores["published"] = published_bound(model, theta, batch, generator)
    return scores


def published_bound(model: Model, theta: Tensor, batch: Systems, generator: torch.Generator) -> Tensor:
    """Return the ELBO of the published code: trees of Gumbel weights, the KL of these weights, no constant, over n."""
    trees = RelaxedSpanningTree(hard=True)(theta, generator=generator)
    predicted, truth = model.decoder.unroll(batch.places, trees, model.trial.horizon)
    error = ((predicted - truth).square() / (2 * VARIANCE)).flatten(2).sum(-1)[0]
    n = theta.shape[-1]
    apart = 1 - torch.eye(n, device=theta.device)
    weights = 2 * theta
    # A shift of all weights changes no tree; the best shift for this divergence makes the mean of exp(-u) 1.
    shift = ((-weights).exp() * apart).sum((1, 2), keepdim=True).div(n * (n - 1)).log()
    # Both directions of an edge are counted.
    divergences = ((weights + shift) * apart).sum((1, 2))
    return -(error + divergences) / n


def agreement(trees: Tensor, truth: Tensor) -> Tensor:
    """Return the percentage of right edges. Trees have equally many edges, so precision is recall."""
    return 100 * (trees * truth).sum((-2, -1)) / truth.sum((-2, -1))
