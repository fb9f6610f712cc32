"""Relaxed spanning trees: the marginal probabilities of edges."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete.distributions.spanning_tree import RandomSpanningTree
from setgrad.discrete.estimators._relaxed import RelaxedChoice
from setgrad.discrete.noise import Gumbel, Noise


@final
class RelaxedSpanningTree(RelaxedChoice):
    """The stochastic softmax trick for spanning trees of n nodes; theta is (*batch, n, n), samples (S, *theta.shape).

    As in `SpanningTree`, an edge {i, j} has an entry at (i, j) and one at (j, i), and its weight is the sum of both.
    Each edge gets one draw of the noise. A sample has the probability of each edge in the distribution of trees,
    `RandomSpanningTree`, of (theta + noise) / temperature: entries from 0 to 1, n - 1 in each half. Their derivative is
    exact. Minus infinity excludes an edge. Time and memory grow with n^3. Paulus et al., 2020, arXiv:2006.08063.

    Args:
        temperature: Above 0. As it falls the samples approach the maximum spanning trees of theta + noise.
        hard: Return these trees, with the gradient of the soft samples.
        noise: Gumbel for samples, None for the relaxed best tree in the shape of theta.
        samples: The number of draws.
        generator: Source of random numbers.

    Raises:
        OptionError: If the temperature is not above 0.

    Examples:
        >>> layer = RelaxedSpanningTree(temperature=0.5, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.zeros(4, 4)).sum((-2, -1)).round(decimals=4)  # both entries of three edges
        tensor([6.])
    """

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        hard: bool = False,
        noise: Noise | None = Gumbel(),  # noqa: B008 -- a frozen value
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(temperature=temperature, hard=hard, noise=noise, samples=samples, generator=generator)

    def check(self, theta: Tensor) -> Tensor:
        """Return the weights of the edges in the upper half; raise an error if they do not connect all nodes."""
        weights = RandomSpanningTree(theta).logits
        return (weights + weights.mT).triu(1)

    def relax(self, theta: Tensor) -> Tensor:
        """Return the marginal probabilities of the edges."""
        return RandomSpanningTree(theta.triu(1) / self.temperature).marginals

    def solve(self, theta: Tensor) -> Tensor:
        """Return the maximum spanning trees."""
        return RandomSpanningTree(theta.triu(1)).mode
