"""Contenders of the discrete VAE: from logits and a loss of samples to a loss with a gradient for the logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.discrete.dvae_distribution import law
from setgrad.discrete import (
    AIMLE,
    IMLE,
    SIMPLE,
    ArgMax,
    CombinatorialSolver,
    GradientEstimator,
    Gumbel,
    GumbelSoftmax,
    Identity,
    MeanProjection,
    Noise,
    PerInstanceRule,
    Projection,
    PublishedRule,
    ReinMax,
    RelaxedTopK,
    SoftSub,
    StdProjection,
    StepRule,
    SumOfGamma,
    Tempered,
    TopK,
    reinforce,
    rloo,
)

# Losses of points: (S, replicas, images, groups, n) -> (S, replicas, images).
Losses = Callable[[Tensor], Tensor]
# Noise, and the factor c for which the k-subset law of c * theta has about the marginals of top-k of theta + noise:
# exact for k = 1, else from simulation with 10 of 20 (root mean square error 0.02 for Gumbel, 0.06 for the others at
# worst). Sum-of-gamma noise makes the SCORE of a set about Gumbel, which does not make the sets follow the law of
# theta.
NOISES: dict[str, tuple[Callable[[int], Noise], dict[int, float]]] = {
    "gumbel": (lambda k: Gumbel(), {1: 1.0, 10: 1.33}),
    "sog 1": (SumOfGamma, {10: 7.0}),
    "sog 10": (lambda k: Tempered(SumOfGamma(k), 10.0), {10: 0.7}),
    "sog 10 swapped": (lambda k: Tempered(SumOfGamma(k, swapped=True), 10.0), {10: 3.8}),
}
SOLVER_NOISES = {1: ("gumbel",), 10: ("sog 1", "sog 10")}


class Sampler(nn.Module, ABC):
    """Draws points for logits (replicas, images, groups, n), and has a gradient for the logits."""

    @abstractmethod
    def draw(self, theta: Tensor) -> Tensor:
        """Points (S, *theta.shape)."""

    @abstractmethod
    def forward(self, theta: Tensor, losses: Losses) -> Tensor:
        """A loss (replicas, images) to call `backward` on, whose value is the mean over samples."""


@final
class Estimated(Sampler):
    """By an estimator that stands for all replicas, or by one for each, where it has a state."""

    def __init__(self, estimators: list[GradientEstimator]) -> None:
        super().__init__()
        self.estimators = nn.ModuleList(estimators)

    def draw(self, theta: Tensor) -> Tensor:
        """Choose."""
        if len(self.estimators) == 1:
            z: Tensor = self.estimators[0](theta)
            return z
        return torch.stack([one(part) for one, part in zip(self.estimators, theta, strict=True)], 1)

    def forward(self, theta: Tensor, losses: Losses) -> Tensor:
        """The gradient goes through the points."""
        return losses(self.draw(theta)).mean(0)


@final
class Scored(Sampler):
    """By exact samples and the score function. All groups of an image share one loss, so their scores are added.

    `SFESS` takes one choice at a time; here is the same control variate for the groups of an image together.
    """

    def __init__(self, k: int, samples: int, *, linear: bool) -> None:
        super().__init__()
        self.k = k
        self.samples = samples
        self.linear = linear

    def draw(self, theta: Tensor) -> Tensor:
        """Exact samples."""
        return law(theta, self.k).sample(self.samples)

    def forward(self, theta: Tensor, losses: Losses) -> Tensor:
        """The mean loss of the other samples is the baseline; with `linear`, plus the linear part of the difference."""
        q = law(theta, self.k)
        z = q.sample(self.samples)
        if not self.linear:
            return rloo(losses(z), q.log_prob(z).sum(-1))
        found = losses(z.requires_grad_())
        (slopes,) = torch.autograd.grad(found.sum(), z, retain_graph=True)
        z = z.detach()
        baseline = _others(found.detach()) + (_others(slopes) * (z - _others(z))).sum((-1, -2))
        means = q.marginals
        exact = (slopes.mean(0) * (means - means.detach())).sum((-1, -2))
        return reinforce(found, q.log_prob(z).sum(-1), baseline=baseline) + exact


def _others(values: Tensor) -> Tensor:
    """For each sample the mean of all others."""
    return (values.sum(0) - values) / (values.shape[0] - 1)


@final
@dataclass(frozen=True)
class Setting:
    """What a contender is made from."""

    k: int
    knob: float
    noise: Noise
    samples: int

    @property
    def solver(self) -> CombinatorialSolver:
        """One of n, or k of n."""
        return ArgMax() if self.k == 1 else TopK(self.k)


@final
@dataclass(frozen=True)
class Model:
    """A contender: values of its knob, the numbers k that it can choose, and which noises it is tried with.

    Without a noise it draws from the exact law.
    """

    make: Callable[[Setting], GradientEstimator | Sampler]
    knobs: tuple[float, ...] = (0.0,)
    ks: tuple[int, ...] = (1, 10)
    noises: dict[int, tuple[str, ...]] = field(default_factory=lambda: {1: ("",), 10: ("",)})
    fewest: int = 1
    stateful: bool = False


def _imle(central: bool) -> Model:
    def make(s: Setting) -> GradientEstimator:
        return IMLE(s.solver, noise=s.noise, samples=s.samples, lam=s.knob, central=central)

    return Model(make, knobs=(1.0, 10.0, 100.0), noises=SOLVER_NOISES)


def _aimle(central: bool, mode: StepRule, targets: tuple[float, ...]) -> Model:
    def make(s: Setting) -> GradientEstimator:
        return AIMLE(s.solver, noise=s.noise, samples=s.samples, central=central, mode=mode, target=s.knob)

    return Model(make, knobs=targets, noises=SOLVER_NOISES, stateful=True)


def _identity(projection: Projection | None) -> Model:
    def make(s: Setting) -> GradientEstimator:
        return Identity(s.solver, noise=s.noise, samples=s.samples, projection=projection)

    return Model(make, noises=SOLVER_NOISES)


def _relaxed(kind: type[SoftSub] | type[RelaxedTopK], hard: bool) -> Model:
    def make(s: Setting) -> GradientEstimator:
        return kind(s.k, temperature=s.knob, hard=hard, noise=Gumbel(), samples=s.samples)

    return Model(make, knobs=TEMPERATURES, ks=(10,), noises={10: ("gumbel",)})


def _gumbel_softmax(hard: bool) -> Model:
    def make(s: Setting) -> GradientEstimator:
        return GumbelSoftmax(temperature=s.knob, hard=hard, samples=s.samples)

    return Model(make, knobs=TEMPERATURES, ks=(1,))


TEMPERATURES = (0.3, 0.6, 1.0)
# The papers count changed entries of an image with 20 groups, the library those of one choice: 1 and 10 become these.
PAPER_TARGETS = (0.05, 0.5)
MODELS = {
    "sfess": Model(lambda s: Scored(s.k, s.samples, linear=True), fewest=2),
    "rloo": Model(lambda s: Scored(s.k, s.samples, linear=False), fewest=2),
    "simple": Model(lambda s: SIMPLE(s.k, samples=s.samples)),
    "aimle central": _aimle(True, PerInstanceRule(), (1.0,)),
    "aimle forward": _aimle(False, PerInstanceRule(), (1.0,)),
    "aimle central paper": _aimle(True, PublishedRule(), PAPER_TARGETS),
    "imle central": _imle(True),
    "imle forward": _imle(False),
    "identity std": _identity(StdProjection()),
    "identity mean": _identity(MeanProjection()),
    "identity (ste)": _identity(None),
    "gumbel-softmax": _gumbel_softmax(False),
    "straight-through gumbel": _gumbel_softmax(True),
    "reinmax": Model(lambda s: ReinMax(temperature=s.knob, samples=s.samples), knobs=(1.0, 1.3), ks=(1,)),
    "softsub": _relaxed(SoftSub, False),
    "softsub hard": _relaxed(SoftSub, True),
    "relaxed top-k": _relaxed(RelaxedTopK, False),
    "relaxed top-k hard": _relaxed(RelaxedTopK, True),
}


def make_sampler(name: str, *, k: int, knob: float, noise: str, samples: int, replicas: int) -> Sampler:
    """The contender of this name. With a state of its own, there is one estimator for each replica."""
    model = MODELS[name]
    drawn = NOISES[noise][0](k) if noise else Gumbel()
    made = [model.make(Setting(k, knob, drawn, samples)) for _ in range(replicas if model.stateful else 1)]
    first = made[0]
    return (
        first if isinstance(first, Sampler) else Estimated([one for one in made if isinstance(one, GradientEstimator)])
    )


def law_scale(noise: str, k: int) -> float:
    """By what theta is multiplied to get the logits of the law that is drawn from."""
    return NOISES[noise][1][k] if noise else 1.0
