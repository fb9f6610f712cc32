"""Categorical choices by a softmax of perturbed logits."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete.estimators._relaxed import RelaxedSubset
from setgrad.discrete.noise import Gumbel


@final
class GumbelSoftmax(RelaxedSubset):
    """The softmax of (theta + Gumbel noise) / temperature, over the last axis: (S, *theta.shape).

    As the temperature falls it approaches one-hot points, and its gradient gets steeper. Jang et al., 2017,
    arXiv:1611.01144; Maddison et al., 2017, arXiv:1611.00712. A theta of minus infinity excludes an item.

    Args:
        temperature: Above 0.
        hard: Return the one-hot points, exact samples of softmax(theta), with the gradient of the soft ones: the
            straight-through Gumbel estimator.
        samples: The number of draws.
        generator: Source of random numbers.

    Raises:
        OptionError: If the temperature is not above 0.

    Examples:
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
        super().__init__(1, temperature=temperature, hard=hard, noise=Gumbel(), samples=samples, generator=generator)

    def relax(self, theta: Tensor) -> Tensor:
        """Return the softmax of theta / temperature."""
        return (theta / self.temperature).softmax(-1)
