"""Choices of k items by k softmaxes, each without what the last one took."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from setgrad.discrete.estimators._relaxed import RelaxedSubset
from setgrad.discrete.noise import Gumbel, Noise


@final
class SoftSub(RelaxedSubset):
    """Relaxed samples of k items without replacement: entries above 0 that sum to k, of shape (S, *theta.shape).

    An entry may be a little above 1 while the temperature is high. A theta of minus infinity excludes an item.
    "Reparameterizable subset sampling via continuous relaxations" (Xie and Ermon, 2019). Here the noise is Gumbel
    noise and not its negative, and every pick is masked in all later rounds, not in the next one alone: copies in
    circulation differ in both.

    Args:
        k: Number of items.
        temperature: Above 0. As it falls the samples come near to the k largest of theta + noise.
        hard: Return the k largest themselves, with the gradient of the soft sample.
        noise: Gumbel for samples, None for a relaxed top-k in the shape of theta.
        samples: How many draws.
        generator: Source of chance.

    Example:
        >>> layer = SoftSub(2, temperature=0.5, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.zeros(3, 6)).sum(-1).round(decimals=4)
        tensor([[2., 2., 2.]])
    """

    def __init__(
        self,
        k: int,
        *,
        temperature: float = 1.0,
        hard: bool = False,
        noise: Noise | None = Gumbel(),  # noqa: B008 -- a frozen value
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(k, temperature=temperature, hard=hard, noise=noise, samples=samples, generator=generator)

    def relax(self, theta: Tensor) -> Tensor:
        """Add up k softmaxes."""
        logits, total = theta, torch.zeros_like(theta)
        for turn in range(self.k):
            total = total + (logits / self.temperature).softmax(-1)
            if turn + 1 < self.k:
                logits = logits + _log_rest(logits / self.temperature)
        return total


def _log_rest(logits: Tensor) -> Tensor:
    """log(1 - softmax(logits)). Near 1 the softmax has no digits left for it; only the largest entry comes there."""
    first = logits.argmax(-1, keepdim=True)
    whole = logits.logsumexp(-1, keepdim=True)
    others = logits.scatter(-1, first, -torch.inf).logsumexp(-1, keepdim=True) - whole
    small = logits.softmax(-1).scatter(-1, first, 0)
    return torch.log1p(-small).scatter(-1, first, others)
