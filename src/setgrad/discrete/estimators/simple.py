"""Exact samples of k items, with the gradient of their exact marginals."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, replace_gradient
from setgrad.discrete.distributions.k_subset import KSubset
from setgrad.discrete.solvers._parameters import check_counts


@final
class SIMPLE(GradientEstimator):
    """Samples of the k-subset distribution, (S, *theta.shape), with the gradient of the marginal probabilities.

    The gradient is unbiased for losses that are linear in z. Ahmed et al., 2023, arXiv:2210.01941.

    Args:
        k: The number of items.
        samples: The number of draws.
        generator: Source of random numbers.

    Examples:
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
        """Return samples of k items.

        Raises:
            OptionError: If an instance has fewer than k items that are not excluded.
            DataError: If theta contains NaN or plus infinity.
        """
        q = KSubset(theta, self.k)
        z = q.sample(self.samples, generator=generator or self.generator).to(theta.dtype)
        return replace_gradient(z, q.marginals.to(theta.dtype).expand_as(z))
