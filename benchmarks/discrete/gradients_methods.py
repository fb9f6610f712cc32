"""Estimators of the gradient of a mean loss over k of n items, with the same interface, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.discrete.gradients_problems import Problem
from setgrad import discrete

# Random numbers at a time; runs are processed in groups of this size.
MAX_ENTRIES = 4_000_000
NOISES: dict[str, Callable[[int], discrete.Noise]] = {
    "gumbel": lambda k: discrete.Gumbel(),
    "sum of gamma": discrete.SumOfGamma,
    "sum of gamma, swapped": lambda k: discrete.SumOfGamma(k, swapped=True),
}
SIDES = {"forward": False, "central": True}


@final
@dataclass(frozen=True)
class Setting:
    """The options of a layer: k items, the number of samples, the noise, and the lambda or temperature (`option`)."""

    k: int
    samples: int
    noise: str = "gumbel"
    option: float = 1.0

    def make_noise(self) -> discrete.Noise:
        """Return the noise of this name."""
        return NOISES[self.noise](self.k)


@final
@dataclass(frozen=True)
class Method:
    """A way to estimate a gradient.

    Attributes:
        make: A function that builds the layer.
        noisy: Whether the noise can be chosen.
        option: The name of its one option: "lambda", "temperature" or nothing.
        least: The smallest number of samples; 0 if the method draws none.
        scored: Whether the layer takes the loss, instead of returning points.
        only: "categorical" or "top-k" if it supports only one of them.
    """

    make: Callable[[Setting], nn.Module]
    noisy: bool = False
    option: str = ""
    least: int = 1
    scored: bool = False
    only: str = ""


def _score(baseline: bool) -> Callable[[Setting], nn.Module]:
    return lambda s: discrete.ScoreFunction(
        lambda theta: discrete.KSubset(theta, s.k), samples=s.samples, baseline=baseline
    )


def _identity(projection: discrete.Projection | None) -> Callable[[Setting], nn.Module]:
    return lambda s: discrete.Identity(
        discrete.TopK(s.k), projection=projection, noise=s.make_noise(), samples=s.samples
    )


def _imle(central: bool) -> Callable[[Setting], nn.Module]:
    return lambda s: discrete.IMLE(
        discrete.TopK(s.k), noise=s.make_noise(), samples=s.samples, lam=s.option, central=central
    )


def _aimle(mode: discrete.StepRule, central: bool) -> Callable[[Setting], nn.Module]:
    return lambda s: discrete.AIMLE(
        discrete.TopK(s.k), noise=s.make_noise(), samples=s.samples, mode=mode, central=central
    )


@final
class CopiedSoftSub(nn.Module):
    """SoftSub as in published code: the noise has the wrong sign, and only the last pick is masked."""

    def __init__(self, k: int, *, temperature: float, samples: int) -> None:
        super().__init__()
        self.k, self.temperature, self.samples = k, temperature, samples

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return samples."""
        draws = discrete.Gumbel().sample((self.samples, *theta.shape), device=theta.device, generator=generator)
        scores, total, picked = theta - draws, torch.zeros_like(draws), torch.zeros_like(draws)
        for _ in range(self.k):
            picked = (
                (scores + (1 - picked).clamp(min=torch.finfo(theta.dtype).tiny).log()) / self.temperature
            ).softmax(-1)
            total = total + picked
        return total


RULES = {
    "default": discrete.PerInstanceRule(),
    "paper": discrete.PublishedRule(),
    "reference": discrete.ReferenceCodeRule(),
}
PROJECTIONS = {"mean": discrete.MeanProjection(), "norm": discrete.NormProjection(), "std": discrete.StdProjection()}
# Relaxations of one of n and of k of n items, whose option is a temperature.
_relax_one = partial(Method, option="temperature", only="categorical")
_relax_k = partial(Method, option="temperature", only="top-k")
ADAPTIVE: dict[str, Method] = {
    f"aimle {mode} {side}": Method(_aimle(rule, central), noisy=True)
    for mode, rule in RULES.items()
    for side, central in SIDES.items()
}
METHODS: dict[str, Method] = {
    **{f"imle {side}": Method(_imle(central), noisy=True, option="lambda") for side, central in SIDES.items()},
    **ADAPTIVE,
    "blackbox": Method(lambda s: discrete.Blackbox(discrete.TopK(s.k), lam=s.option), option="lambda", least=0),
    "ste (identity)": Method(_identity(None), noisy=True),
    **{f"identity {name}": Method(_identity(p), noisy=True) for name, p in PROJECTIONS.items()},
    "sfe": Method(_score(False), scored=True),
    "rloo": Method(_score(True), scored=True, least=2),
    "sfess": Method(lambda s: discrete.SFESS(s.k, samples=s.samples), scored=True, least=2),
    "simple": Method(lambda s: discrete.SIMPLE(s.k, samples=s.samples)),
    "perturbed": Method(lambda s: discrete.Perturbed(discrete.TopK(s.k), noise=discrete.Gumbel(), samples=s.samples)),
    "gumbel-softmax": _relax_one(lambda s: discrete.GumbelSoftmax(temperature=s.option, samples=s.samples)),
    "st-gumbel": _relax_one(lambda s: discrete.GumbelSoftmax(temperature=s.option, hard=True, samples=s.samples)),
    "reinmax": Method(lambda s: discrete.ReinMax(samples=s.samples), only="categorical"),
    "softsub": _relax_k(lambda s: discrete.SoftSub(s.k, temperature=s.option, samples=s.samples)),
    "softsub hard": _relax_k(lambda s: discrete.SoftSub(s.k, temperature=s.option, hard=True, samples=s.samples)),
    "softsub as copied": _relax_k(lambda s: CopiedSoftSub(s.k, temperature=s.option, samples=s.samples)),
    "relaxed top-k": _relax_k(
        lambda s: discrete.RelaxedTopK(s.k, temperature=s.option, noise=discrete.Gumbel(), samples=s.samples)
    ),
}


def estimate(method: Method, problem: Problem, setting: Setting, generator: torch.Generator) -> tuple[Tensor, int]:
    """Return gradients (runs, n), and the instances that were solved or drawn for each run."""
    count = max(1, MAX_ENTRIES // (max(1, setting.samples) * problem.n))
    gradients, calls = [], 0
    for first in range(0, len(problem.theta), count):
        part = problem.part(first, count)
        layer = method.make(setting)
        gradients.append(gradient_of(layer, part, generator, scored=method.scored))
        calls = _cost(layer, setting.samples) // (len(part.theta) if _counts(layer) else 1)
    return torch.cat(gradients), calls


def adapt(
    method: Method, problem: Problem, setting: Setting, marks: Sequence[int], generator: torch.Generator
) -> Iterator[tuple[int, Tensor, int]]:
    """Yield for each mark (a number of warm-up steps) the gradients after it, with fixed alpha, and all calls so far.

    Every run has a separate layer, because all instances of a layer share one alpha. The calls of a mark do not include
    those of the estimates at earlier marks.
    """
    gradients: dict[int, list[Tensor]] = {mark: [] for mark in marks}
    calls: dict[int, int] = {}
    for run in range(len(problem.theta)):
        layer, part, measured = method.make(setting), problem.part(run, 1), 0
        for step in range(max(marks) + 1):
            if step in gradients:
                before = _cost(layer, setting.samples)
                gradients[step].append(gradient_of(layer.eval(), part, generator))
                after = _cost(layer.train(), setting.samples)
                calls[step] = after - measured
                measured += after - before
            if step < max(marks):
                gradient_of(layer, part, generator)
    for mark in marks:
        yield mark, torch.cat(gradients[mark]), calls[mark]


def gradient_of(layer: nn.Module, problem: Problem, generator: torch.Generator, *, scored: bool = False) -> Tensor:
    """Return one estimate for every run; the loss is the mean over samples and the sum over runs."""
    theta = problem.theta.clone().requires_grad_()
    draw = partial(layer, theta, generator=generator)
    losses = draw(problem.loss) if scored else problem.loss(draw())
    return torch.autograd.grad(losses.reshape(-1, len(theta)).mean(0).sum(), theta)[0]


def _cost(layer: Any, samples: int) -> int:
    """Return the number of solved instances; one for each sample where samples are drawn without a solver."""
    return int(layer.solver.counter.instances) if _counts(layer) else samples


def _counts(layer: nn.Module) -> bool:
    return hasattr(layer, "solver")
