"""Categorical choices by a softmax of perturbed logits."""

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
class GumbelSoftmax(Noisy, GradientEstimator):
    """The softmax of (theta + Gumbel noise) / temperature, over the last axis: (S, *theta.shape).

    It comes nearer to one-hot points as the temperature falls, and its gradient gets steeper ("Categorical
    reparameterization with Gumbel-softmax", Jang et al., 2017; "The concrete distribution", Maddison et al., 2017).
    A theta of minus infinity excludes an item.

    Args:
        temperature: Above 0.
        hard: Return the one-hot points, exact samples of softmax(theta), with the gradient of the soft ones: the
            straight-through Gumbel estimator.
        samples: How many draws.
        generator: Source of chance.

    Example:
        >>> layer = GumbelSoftmax(temperature=0.5, hard=True, samples=2, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.zeros(3, 4)).sum(-1)
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        hard: bool = False,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(noise=Gumbel(), samples=samples, generator=generator)
        if not temperature > 0:
            raise OptionError(f"the temperature must be above 0, got {temperature}; for hard points use hard=True")
        self.temperature = temperature
        self.hard = hard

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw."""
        seen = self.perturb(check_choice(theta, 1, "GumbelSoftmax"), generator)
        soft = (seen / self.temperature).softmax(-1)
        return (replace(ArgMax().solve(seen.detach()), soft) if self.hard else soft).to(theta.dtype)
