"""Categorical choices with a gradient of second order."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, Noisy, replace
from setgrad.discrete.distributions._base import check_choice
from setgrad.discrete.noise import Gumbel
from setgrad.discrete.solvers.top_k import ArgMax
from setgrad.errors import OptionError


@final
class ReinMax(Noisy, GradientEstimator):
    """One-hot samples of softmax(theta), over the last axis, with a gradient that is exact for quadratic losses.

    Exact means: on average over samples. Where the straight-through estimator takes the slope of the loss at one end,
    this takes it at both (Heun's rule). "Bridging discrete and backpropagation: straight-through and beyond" (Liu et
    al., 2023). A theta of minus infinity excludes an item.

    Args:
        temperature: Of the softmax in the backward pass. Only 1 keeps the promise above; more lowers the variance.
        samples: How many draws.
        generator: Source of chance.

    Example:
        >>> layer = ReinMax(samples=5, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.zeros(3, 4)).shape
        torch.Size([5, 3, 4])
    """

    def __init__(self, *, temperature: float = 1.0, samples: int = 1, generator: torch.Generator | None = None) -> None:
        super().__init__(noise=Gumbel(), samples=samples, generator=generator)
        if not temperature > 0:
            raise OptionError(f"the temperature must be above 0, got {temperature}")
        self.temperature = temperature

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw, and put a function with the right gradient behind the draws."""
        given, theta = theta, check_choice(theta, 1, "ReinMax")
        seen = self.perturb(theta.detach(), generator)
        z = ArgMax().solve(seen)
        middle = (z + (theta.detach() / self.temperature).softmax(-1)) / 2
        return replace(z, 2 * _moved(theta, middle) - _moved(theta, theta.detach().softmax(-1)) / 2).to(given.dtype)


def _moved(theta: Tensor, at: Tensor) -> Tensor:
    """A function of theta whose Jacobian is that of the softmax where it has the value `at`."""
    finite = torch.where(theta.isfinite(), theta, 0)
    return at * (finite - (at * finite).sum(-1, keepdim=True))
