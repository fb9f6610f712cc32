"""Methods of the discrete VAE: from logits and a loss of samples to a loss with a gradient for the logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.discrete.dvae_distribution import choice_distribution
from setgrad import discrete

# Losses of points: (S, replicas, images, groups, n) -> (S, replicas, images).
Losses = Callable[[Tensor], Tensor]
# Noise, and the factor c for which the k-subset distribution of c * theta has about the marginals of noisy top-k:
# exact for k = 1, else from simulation with 10 of 20 (root mean square error 0.02 for Gumbel, 0.06 for the others at
# worst). Sum-of-gamma noise makes the SCORE of a set about Gumbel, but the sets do not follow the distribution of
# theta.
NOISES: dict[str, tuple[Callable[[int], discrete.Noise], dict[int, float]]] = {
    "gumbel": (lambda k: discrete.Gumbel(), {1: 1.0, 10: 1.33}),
    "sog 1": (discrete.SumOfGamma, {10: 7.0}),
    "sog 10": (lambda k: discrete.Tempered(discrete.SumOfGamma(k), 10.0), {10: 0.7}),
    "sog 10 swapped": (lambda k: discrete.Tempered(discrete.SumOfGamma(k, swapped=True), 10.0), {10: 3.8}),
}
SOLVER_NOISES = {1: ("gumbel",), 10: ("sog 1", "sog 10")}


class Sampler(nn.Module, ABC):
    """Draws points for logits (replicas, images, groups, n), with a gradient for the logits."""

    @abstractmethod
    def draw(self, theta: Tensor) -> Tensor:
        """Return points (S, *theta.shape)."""

    @abstractmethod
    def forward(self, theta: Tensor, losses: Losses) -> Tensor:
        """Return a loss (replicas, images) to call `backward` on, whose value is the mean over samples."""


@final
class EstimatorSampler(Sampler):
    """Samples by one estimator for all replicas, or by one for each if it has a state."""

    def __init__(self, estimators: list[discrete.GradientEstimator]) -> None:
        super().__init__()
        self.estimators = nn.ModuleList(estimators)

    def draw(self, theta: Tensor) -> Tensor:
        """Return the points of the estimator."""
        if len(self.estimators) == 1:
            z: Tensor = self.estimators[0](theta)
            return z
        return torch.stack([one(part) for one, part in zip(self.estimators, theta, strict=True)], 1)

    def forward(self, theta: Tensor, losses: Losses) -> Tensor:
        """Return the loss, with a gradient through the points."""
        return losses(self.draw(theta)).mean(0)


@final
class ScoreFunctionSampler(Sampler):
    """Exact samples with the score function. All groups of an image share one loss, so their scores are added.

    `SFESS` takes one choice at a time; this is its control variate for all groups of an image together.
    """

    def __init__(self, k: int, samples: int, *, linear: bool) -> None:
        super().__init__()
        self.k = k
        self.samples = samples
        self.linear = linear

    def draw(self, theta: Tensor) -> Tensor:
        """Return exact samples."""
        return choice_distribution(theta, self.k).sample(self.samples)

    def forward(self, theta: Tensor, losses: Losses) -> Tensor:
        """Return the loss; the baseline is the mean loss of the other samples and, with `linear`, a linear term."""
        q = choice_distribution(theta, self.k)
        z = q.sample(self.samples)
        if not self.linear:
            return discrete.rloo(losses(z), q.log_prob(z).sum(-1))
        values = losses(z.requires_grad_())
        (slopes,) = torch.autograd.grad(values.sum(), z, retain_graph=True)
        z = z.detach()
        baseline = _others(values.detach()) + (_others(slopes) * (z - _others(z))).sum((-1, -2))
        means = q.marginals
        exact = (slopes.mean(0) * (means - means.detach())).sum((-1, -2))
        return discrete.reinforce(values, q.log_prob(z).sum(-1), baseline=baseline) + exact


def _others(values: Tensor) -> Tensor:
    """Return for each sample the mean of all others."""
    return (values.sum(0) - values) / (values.shape[0] - 1)


@final
@dataclass(frozen=True)
class Setting:
    """The options that a sampler is built from."""

    k: int
    option: float
    noise: discrete.Noise
    samples: int

    @property
    def solver(self) -> discrete.CombinatorialSolver:
        """The solver: one of n, or k of n."""
        return discrete.ArgMax() if self.k == 1 else discrete.TopK(self.k)


@final
@dataclass(frozen=True)
class Model:
    """A method: values of its tuned option, the k that it supports, and the noises that it is tried with.

    Without a noise it draws from the exact distribution.
    """

    make: Callable[[Setting], discrete.GradientEstimator | Sampler]
    option_values: tuple[float, ...] = (0.0,)
    ks: tuple[int, ...] = (1, 10)
    noises: dict[int, tuple[str, ...]] = field(default_factory=lambda: {1: ("",), 10: ("",)})
    fewest: int = 1
    stateful: bool = False


def _imle(central: bool) -> Model:
    def make(s: Setting) -> discrete.GradientEstimator:
        return discrete.IMLE(s.solver, noise=s.noise, samples=s.samples, lam=s.option, central=central)

    return Model(make, option_values=(1.0, 10.0, 100.0), noises=SOLVER_NOISES)


def _aimle(central: bool, mode: discrete.StepRule, targets: tuple[float, ...]) -> Model:
    def make(s: Setting) -> discrete.GradientEstimator:
        return discrete.AIMLE(s.solver, noise=s.noise, samples=s.samples, central=central, mode=mode, target=s.option)

    return Model(make, option_values=targets, noises=SOLVER_NOISES, stateful=True)


def _identity(projection: discrete.Projection | None) -> Model:
    def make(s: Setting) -> discrete.GradientEstimator:
        return discrete.Identity(s.solver, noise=s.noise, samples=s.samples, projection=projection)

    return Model(make, noises=SOLVER_NOISES)


def _relaxed(kind: type[discrete.SoftSub] | type[discrete.RelaxedTopK], hard: bool) -> Model:
    def make(s: Setting) -> discrete.GradientEstimator:
        return kind(s.k, temperature=s.option, hard=hard, noise=discrete.Gumbel(), samples=s.samples)

    return Model(make, option_values=TEMPERATURES, ks=(10,), noises={10: ("gumbel",)})


def _gumbel_softmax(hard: bool) -> Model:
    def make(s: Setting) -> discrete.GradientEstimator:
        return discrete.GumbelSoftmax(temperature=s.option, hard=hard, samples=s.samples)

    return Model(make, option_values=TEMPERATURES, ks=(1,))


TEMPERATURES = (0.3, 0.6, 1.0)
# Publications count changed entries of an image with 20 groups, the library those of one choice: 1 and 10 become these.
PAPER_TARGETS = (0.05, 0.5)
MODELS = {
    "sfess": Model(lambda s: ScoreFunctionSampler(s.k, s.samples, linear=True), fewest=2),
    "rloo": Model(lambda s: ScoreFunctionSampler(s.k, s.samples, linear=False), fewest=2),
    "simple": Model(lambda s: discrete.SIMPLE(s.k, samples=s.samples)),
    "aimle central": _aimle(True, discrete.PerInstanceRule(), (1.0,)),
    "aimle forward": _aimle(False, discrete.PerInstanceRule(), (1.0,)),
    "aimle central paper": _aimle(True, discrete.PublishedRule(), PAPER_TARGETS),
    "imle central": _imle(True),
    "imle forward": _imle(False),
    "identity std": _identity(discrete.StdProjection()),
    "identity mean": _identity(discrete.MeanProjection()),
    "identity (ste)": _identity(None),
    "gumbel-softmax": _gumbel_softmax(False),
    "straight-through gumbel": _gumbel_softmax(True),
    "reinmax": Model(
        lambda s: discrete.ReinMax(temperature=s.option, samples=s.samples), option_values=(1.0, 1.3), ks=(1,)
    ),
    "softsub": _relaxed(discrete.SoftSub, False),
    "softsub hard": _relaxed(discrete.SoftSub, True),
    "relaxed top-k": _relaxed(discrete.RelaxedTopK, False),
    "relaxed top-k hard": _relaxed(discrete.RelaxedTopK, True),
}


def make_sampler(name: str, *, k: int, option: float, noise: str, samples: int, replicas: int) -> Sampler:
    """Return the sampler of this name. Estimators with a state are built once for each replica."""
    model = MODELS[name]
    drawn = NOISES[noise][0](k) if noise else discrete.Gumbel()
    samplers = [model.make(Setting(k, option, drawn, samples)) for _ in range(replicas if model.stateful else 1)]
    first = samplers[0]
    return (
        first
        if isinstance(first, Sampler)
        else EstimatorSampler([one for one in samplers if isinstance(one, discrete.GradientEstimator)])
    )


def distribution_scale(noise: str, k: int) -> float:
    """Return the factor from theta to the logits of the distribution that samples come from."""
    return NOISES[noise][1][k] if noise else 1.0
