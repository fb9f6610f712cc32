"""The mean of perturbed solutions, and its derivative."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, Noisy, check_solver, last, orient, spread, usable, wide
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.noise import Antithetic, Gumbel, Logistic, Noise, Normal, Tempered
from setgrad.discrete.schedules import Temperature
from setgrad.errors import OptionError


@final
class Perturbed(Noisy, GradientEstimator):
    """The mean of solver(theta + noise) over samples, which is smooth in theta, in the shape of theta.

    Unlike the other estimators it returns no discrete points, but their mean. Its gradient is an unbiased estimate of
    the gradient of the true mean: the noise's law, moved by theta, has a derivative where the solver has none.
    "Learning with differentiable perturbed optimizers" (Berthet et al., 2020). The way back does not call the solver.

    The output and its gradient come from the same draws. A loss that is linear in the output gets an unbiased gradient;
    for others the bias falls as 1/samples.

    Args:
        solver: The map from theta to z.
        noise: `Gumbel()`, `Normal()` or `Logistic()`, also within `Tempered` or `Antithetic`. The density of
            `SumOfGamma` has no closed form to differentiate.
        samples: How many draws. One alone gives a gradient of large variance.
        reduce: Subtract from each solution the mean of those that share no noise with it: no bias, less variance.
        generator: Source of chance.

    Example:
        >>> from setgrad.discrete import ArgMax
        >>> theta = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
        >>> layer = Perturbed(ArgMax(), noise=Gumbel(), samples=100_000, generator=torch.Generator().manual_seed(0))
        >>> layer(theta)[1].backward()
        >>> round(theta.grad[1].item(), 2)  # a softmax has 0.1966
        0.2
    """

    noise: Noise

    def __init__(
        self,
        solver: CombinatorialSolver,
        *,
        noise: Noise,
        samples: int,
        reduce: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(noise=noise, samples=samples, generator=generator)
        score(noise, torch.zeros(1))
        self.solver = check_solver(solver)
        self.reduce = reduce

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The mean solution."""
        given, theta = theta, orient(wide(theta), self.solver)
        draws = self.noise.sample(
            (self.samples, *theta.shape),
            dtype=theta.dtype,
            device=theta.device,
            generator=generator or self.generator,
        )
        solved = self.solver.maximise(theta.detach() + draws)
        known = spread(usable(solved).all(0), theta)
        points = torch.where(known, solved.value, 0)
        alone = (self.samples + 1) // 2 if _mirrored(self.noise) else self.samples
        mean: Tensor = _Mean.apply(theta, points, score(self.noise, draws), self.solver.dims, alone, self.reduce)
        return mean.to(given.dtype)


@final
class _Mean(torch.autograd.Function):
    """The mean of given points, differentiated through the law that they were drawn from."""

    @staticmethod
    def forward(theta: Tensor, points: Tensor, scores: Tensor, dims: int, alone: int, reduce: bool) -> Tensor:
        return points.mean(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        theta, points, scores, ctx.dims, ctx.alone, ctx.reduce = inputs
        ctx.save_for_backward(theta, points, scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, points, scores = ctx.saved_tensors
        with torch.no_grad():
            rated = (points * grad).sum(tuple(range(-ctx.dims, 0)), keepdim=True)
            if ctx.reduce:
                rated = rated - _others(rated, ctx.alone)
            pulled = (rated * scores).mean(0)
        return last(pulled, theta, grad), None, None, None, None, None


def _others(values: Tensor, alone: int) -> Tensor:
    """For each sample, the mean of those whose noise is independent of its own; 0 if there are none.

    Samples i and i + alone are mirror images; with `alone` samples in all, there are no mirror images.
    """
    number = torch.arange(values.shape[0], device=values.device) % alone
    sums = torch.zeros_like(values[:alone]).index_add_(0, number, values)
    # How many have the same number, by arithmetic: to count them, the host would wait for the device.
    sizes = ((values.shape[0] - 1 - number) // alone + 1).reshape(-1, *(1,) * (values.ndim - 1))
    return (values.sum(0) - sums[number]) / (values.shape[0] - sizes).clamp(min=1)


@singledispatch
def score(noise: Noise, draws: Tensor) -> Tensor:
    """Minus the derivative of the log-density of the noise, at its draws."""
    raise OptionError(
        f"{type(noise).__name__} has no density in closed form to differentiate; use Gumbel(), Normal() or Logistic(), "
        "also within Tempered or Antithetic"
    )


@score.register
def _(noise: Normal, draws: Tensor) -> Tensor:
    return draws


@score.register
def _(noise: Gumbel, draws: Tensor) -> Tensor:
    return -torch.expm1(-draws)


@score.register
def _(noise: Logistic, draws: Tensor) -> Tensor:
    return torch.tanh(draws / 2)


@score.register
def _(noise: Antithetic, draws: Tensor) -> Tensor:
    return score(noise.noise, draws)


@score.register
def _(noise: Tempered, draws: Tensor) -> Tensor:
    scale = noise.temperature.value if isinstance(noise.temperature, Temperature) else noise.temperature
    if not scale > 0:
        raise OptionError("at temperature 0 the mean solution has no derivative; use a temperature above 0")
    return score(noise.noise, draws / scale) / scale


def _mirrored(noise: Noise) -> bool:
    """Whether the draws come in pairs."""
    return isinstance(noise, Antithetic) or (isinstance(noise, Tempered) and _mirrored(noise.noise))
