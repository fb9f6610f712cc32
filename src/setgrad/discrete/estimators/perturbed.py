"""The mean of perturbed solutions, and its derivative."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete._estimator import (
    GradientEstimator,
    SolverLayer,
    as_maximisation,
    at_least_float32,
    without_second_derivative,
)
from setgrad.discrete._solver import CombinatorialSolver, expand_flags
from setgrad.discrete.noise import Antithetic, Gumbel, Logistic, Noise, Normal, Tempered
from setgrad.errors import OptionError


@final
class Perturbed(SolverLayer, GradientEstimator):
    """The mean of solver(theta + noise) over samples, which is smooth in theta, in the shape of theta.

    Unlike the other estimators it returns the mean of discrete points. Its gradient is an unbiased estimate of the
    gradient of the expected solution: the distribution of theta + noise has a derivative where the solver has none.
    Berthet et al., 2020, arXiv:2002.08676. The backward pass does not call the solver.

    The output and its gradient come from the same draws. A loss that is linear in the output gets an unbiased gradient;
    for others the bias falls as 1/samples.

    Args:
        solver: The map from theta to z.
        noise: `Gumbel()`, `Normal()` or `Logistic()`, also within `Tempered` or `Antithetic`. The density of
            `SumOfGamma` has no closed form to differentiate.
        samples: The number of draws. With one draw the gradient has a large variance.
        reduce: Subtract from each solution the mean of those with independent noise: no bias, less variance.
        generator: Source of random numbers.

    Raises:
        OptionError: If the density of the noise has no derivative in closed form.

    Examples:
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
        super().__init__(solver, noise=noise, samples=samples, generator=generator)
        score(noise, torch.zeros(1))
        self.reduce = reduce

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean solution."""
        clean = as_maximisation(at_least_float32(theta), self.solver)
        draws = self.draw_noise(self.noise, clean, generator)
        result = self.solver.maximise(clean.detach() + draws)
        points = torch.where(expand_flags(result.has_answer.all(0), clean), result.value, 0)
        independent = (self.samples + 1) // 2 if _is_antithetic(self.noise) else self.samples
        mean: Tensor = _Mean.apply(clean, points, score(self.noise, draws), self.solver.dims, independent, self.reduce)
        return mean.to(theta.dtype)


@final
class _Mean(torch.autograd.Function):
    """The mean of sampled points, differentiated through the distribution that they were drawn from."""

    @staticmethod
    def forward(theta: Tensor, points: Tensor, scores: Tensor, dims: int, independent: int, reduce: bool) -> Tensor:
        return points.mean(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        theta, points, scores, ctx.dims, ctx.independent, ctx.reduce = inputs
        ctx.save_for_backward(theta, points, scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, points, scores = ctx.saved_tensors
        with torch.no_grad():
            values = (points * grad).sum(tuple(range(-ctx.dims, 0)), keepdim=True)
            if ctx.reduce:
                values = values - _mean_of_independent(values, ctx.independent)
            gradient = (values * scores).mean(0)
        return without_second_derivative(gradient, theta, grad), None, None, None, None, None


def _mean_of_independent(values: Tensor, independent: int) -> Tensor:
    """Return for each sample the mean of the samples whose noise is independent of its own; 0 if there are none.

    Samples i and i + independent are an antithetic pair; with `independent` samples in all, there are no pairs.
    """
    pair = torch.arange(values.shape[0], device=values.device) % independent
    sums = torch.zeros_like(values[:independent]).index_add_(0, pair, values)
    # The size of each sample's pair, by arithmetic: counting would make the CPU wait for the device.
    sizes = ((values.shape[0] - 1 - pair) // independent + 1).reshape(-1, *(1,) * (values.ndim - 1))
    return (values.sum(0) - sums[pair]) / (values.shape[0] - sizes).clamp(min=1)


@singledispatch
def score(noise: Noise, draws: Tensor) -> Tensor:
    """Return minus the derivative of the log-density of the noise, at its draws.

    Raises:
        OptionError: If the density has no derivative in closed form.
    """
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
    scale = noise.scale
    if not scale > 0:
        raise OptionError("at temperature 0 the mean solution has no derivative; use a temperature above 0")
    return score(noise.noise, draws / scale) / scale


def _is_antithetic(noise: Noise) -> bool:
    return isinstance(noise, Antithetic) or (isinstance(noise, Tempered) and _is_antithetic(noise.noise))
