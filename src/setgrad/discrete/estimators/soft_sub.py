"""Relaxed choices of k items by k softmaxes, each without the items of the ones before."""

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
    Xie and Ermon, 2019, arXiv:1901.10517. Some published copies use the negative of Gumbel noise, and mask a picked
    item in the next round only; this one uses Gumbel noise and masks it in all later rounds.

    Args:
        k: The number of items.
        temperature: Above 0. As it falls the samples approach the k largest entries of theta + noise.
        hard: Return the k largest entries as ones, with the gradient of the soft sample.
        noise: Gumbel for samples, None for a relaxed top-k in the shape of theta.
        samples: The number of draws.
        generator: Source of random numbers.

    Raises:
        OptionError: If k is below 1 or the temperature is not above 0.

    Examples:
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
        """Return the sum of k softmaxes."""
        logits, total = theta, torch.zeros_like(theta)
        for turn in range(self.k):
            total = total + (logits / self.temperature).softmax(-1)
            if turn + 1 < self.k:
                logits = logits + _log_one_minus_softmax(logits / self.temperature)
        return total


def _log_one_minus_softmax(logits: Tensor) -> Tensor:
    """Return log(1 - softmax(logits)), with separate care for the largest entry, where 1 - softmax would cancel."""
    first = logits.argmax(-1, keepdim=True)
    total = logits.logsumexp(-1, keepdim=True)
    others = logits.scatter(-1, first, -torch.inf).logsumexp(-1, keepdim=True) - total
    small = logits.softmax(-1).scatter(-1, first, 0)
    return torch.log1p(-small).scatter(-1, first, others)
