"""Categorical samples with a gradient of second-order accuracy."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, NoisyLayer, replace_gradient
from setgrad.discrete.distributions._base import check_item_logits
from setgrad.discrete.noise import Gumbel
from setgrad.discrete.solvers.top_k import ArgMax
from setgrad.errors import OptionError


@final
class ReinMax(NoisyLayer, GradientEstimator):
    """One-hot samples of softmax(theta), over the last axis, with a gradient that is unbiased for quadratic losses.

    The straight-through estimator uses the slope of the loss at one end of an interval; this one uses both ends (Heun's
    method). Liu et al., 2023, arXiv:2304.08612. A theta of minus infinity excludes an item.

    Args:
        temperature: Temperature of the softmax in the backward pass. Only 1 is unbiased; more lowers the variance.
        samples: The number of draws.
        generator: Source of random numbers.

    Raises:
        OptionError: If the temperature is not above 0.

    Examples:
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
        """Return one-hot samples, (S, *theta.shape).

        Raises:
            OptionError: If all items of an instance are excluded.
            DataError: If theta contains NaN or plus infinity.
        """
        logits = check_item_logits(theta, 1, "ReinMax")
        values = logits.detach()
        z = ArgMax().solve(self.perturb(values, generator))
        middle = (z + (values / self.temperature).softmax(-1)) / 2
        soft = 2 * _with_softmax_jacobian(logits, middle) - _with_softmax_jacobian(logits, values.softmax(-1)) / 2
        return replace_gradient(z, soft).to(theta.dtype)


def _with_softmax_jacobian(theta: Tensor, at: Tensor) -> Tensor:
    """Return a function of theta whose Jacobian is that of the softmax where the softmax has the value `at`."""
    finite = torch.where(theta.isfinite(), theta, 0)
    return at * (finite - (at * finite).sum(-1, keepdim=True))
