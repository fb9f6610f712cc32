"""Exact samples of k items, with the gradient of their exact marginals."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, replace
from setgrad.discrete.distributions.k_subset import KSubset
from setgrad.discrete.solvers._parameters import check_counts


@final
class SIMPLE(GradientEstimator):
    """Samples of the k-subset law, (S, *theta.shape); backwards, the derivative of the probability of each item.

    "SIMPLE: a gradient estimator for k-subset sampling" (Ahmed et al., 2023). The gradient is exact, on average, for
    losses that are linear in z.

    Args:
        k: Number of items.
        samples: How many draws.
        generator: Source of chance.

    Example:
        >>> layer = SIMPLE(2, samples=3, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.zeros(5)).sum(-1)
        tensor([2., 2., 2.])
    """

    def __init__(self, k: int, *, samples: int = 1, generator: torch.Generator | None = None) -> None:
        super().__init__()
        check_counts(k=k)
        check_counts(1, samples=samples)
        self.k = k
        self.samples = samples
        self.generator = generator

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw."""
        q = KSubset(theta, self.k)
        z = q.sample(self.samples, generator=generator or self.generator).to(theta.dtype)
        return replace(z, q.marginals.to(theta.dtype).expand_as(z))
