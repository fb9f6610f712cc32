"""Relaxed choices of k items by independent probabilities that sum to k."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete.estimators._relaxed import RelaxedSubset

# Steps of Newton's method with bisection as a fallback; test_relaxations.py checks the remaining error.
_STEPS = 24
# Log-odds at which a probability rounds to 1; a larger range of logits is not needed.
_CERTAIN = 100.0


@final
class RelaxedTopK(RelaxedSubset):
    """The best x with entries in [0, 1] and sum k, for `<theta, x>` plus temperature times the binary entropies.

    The result is sigmoid((theta - shift) / temperature), with the shift that makes the sum k, and its derivative is
    exact. With Gumbel noise it is a stochastic softmax trick for subsets (Paulus et al., 2020, arXiv:2006.08063),
    without noise a smooth top-k. A theta of minus infinity excludes an item.

    Args:
        k: The number of items.
        temperature: Above 0. As it falls x approaches the k largest entries.
        hard: Return the k largest entries as ones, with the gradient of x.
        noise: Turns the layer into a sampler, with an axis of samples in front.
        samples: The number of draws of the noise.
        generator: Source of random numbers.

    Raises:
        OptionError: If k is below 1 or the temperature is not above 0.

    Examples:
        >>> RelaxedTopK(2)(torch.tensor([0.0, 0.0, 0.0, 0.0]))
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    def relax(self, theta: Tensor) -> Tensor:
        """Return the probabilities."""
        probabilities: Tensor = _ProbabilitiesWithSum.apply(theta / self.temperature, self.k)
        return probabilities


@final
class _ProbabilitiesWithSum(torch.autograd.Function):
    """sigmoid(logits - shift), with the shift that makes the sum k."""

    @staticmethod
    def forward(logits: Tensor, k: int) -> Tensor:
        n = logits.shape[-1]
        if k == n:
            return torch.ones_like(logits)
        # The shift lies between the k-th and the next logit, each moved out by a little more than log n. Logits are
        # measured from the k-th one, which keeps the digits of large logits.
        edge = logits.topk(k + 1, dim=-1).values
        logits = logits - edge[..., -2:-1]
        slack = math.log(n) + 1
        high = torch.full_like(edge[..., :1], slack)
        # If the next item is excluded, the k probabilities are exactly 1.
        low = (edge[..., -1:] - edge[..., -2:-1]).clamp(min=-_CERTAIN) - slack
        shift = (low + high) / 2
        for _ in range(_STEPS):
            x = torch.sigmoid(logits - shift)
            excess = x.sum(-1, keepdim=True) - k
            low, high = torch.where(excess > 0, shift, low), torch.where(excess > 0, high, shift)
            newton = shift + excess / (x * (1 - x)).sum(-1, keepdim=True)
            # Bisect where Newton's step leaves the interval that contains the shift, or is NaN.
            shift = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        return torch.sigmoid(logits - shift)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        slope = x * (1 - x)
        total = slope.sum(-1, keepdim=True)
        # Where all probabilities are 0 or 1 the slopes are 0, and so is the gradient.
        mean = (slope * grad).sum(-1, keepdim=True) / torch.where(total > 0, total, 1)
        return slope * (grad - mean), None
