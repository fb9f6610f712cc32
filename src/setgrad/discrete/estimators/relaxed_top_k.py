"""Choices of k items by coins whose chances sum to k."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from setgrad.discrete.estimators._relaxed import RelaxedSubset
from setgrad.discrete.noise import Noise

# Steps of Newton's method with a range to fall back on; see test_relaxations.py for what they leave.
_STEPS = 24
# Log-odds at which a chance rounds to 1; logits further apart than that need no more room.
_SURE = 100.0


@final
class RelaxedTopK(RelaxedSubset):
    """The best x with entries in [0, 1] and sum k, for <theta, x> plus temperature times the entropy of coins.

    The answer is sigmoid((theta - shift) / temperature), with the shift that makes the sum k, and its derivative is
    exact. With Gumbel noise it is a stochastic softmax trick for subsets (Paulus et al., 2020), without it a smooth
    top-k. A theta of minus infinity excludes an item.

    Args:
        k: Number of items.
        temperature: Above 0. As it falls x comes near to the k largest.
        hard: Return the k largest themselves, with the gradient of x.
        noise: Makes the layer a sampler, with an axis of samples in front.
        samples: How many draws of the noise.
        generator: Source of chance.

    Example:
        >>> RelaxedTopK(2)(torch.tensor([0.0, 0.0, 0.0, 0.0]))
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    def __init__(
        self,
        k: int,
        *,
        temperature: float = 1.0,
        hard: bool = False,
        noise: Noise | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(k, temperature=temperature, hard=hard, noise=noise, samples=samples, generator=generator)

    def relax(self, theta: Tensor) -> Tensor:
        """Find the coins."""
        coins: Tensor = _Coins.apply(theta / self.temperature, self.k)
        return coins


@final
class _Coins(torch.autograd.Function):
    """Chances of coins with given log-odds, up to a shift, that sum to k."""

    @staticmethod
    def forward(logits: Tensor, k: int) -> Tensor:
        n = logits.shape[-1]
        if k == n:
            return torch.ones_like(logits)
        # The shift lies between the k-th and the next logit, each moved out by a little more than log n. Counting from
        # the k-th keeps the digits of large logits.
        edge = logits.topk(k + 1, dim=-1).values
        logits = logits - edge[..., -2:-1]
        room = math.log(n) + 1
        high = torch.full_like(edge[..., :1], room)
        # Without a next item the k coins come up for sure, to the last digit.
        low = (edge[..., -1:] - edge[..., -2:-1]).clamp(min=-_SURE) - room
        shift = (low + high) / 2
        for _ in range(_STEPS):
            x = torch.sigmoid(logits - shift)
            over = x.sum(-1, keepdim=True) - k
            low, high = torch.where(over > 0, shift, low), torch.where(over > 0, high, shift)
            newton = shift + over / (x * (1 - x)).sum(-1, keepdim=True)
            # Newton's step, unless it leaves the range that is known to hold the shift (or is NaN, on flat ground).
            shift = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        return torch.sigmoid(logits - shift)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        weights = x * (1 - x)
        total = weights.sum(-1, keepdim=True)
        # Where all coins are settled the weights are 0, and so is the gradient.
        share = (weights * grad).sum(-1, keepdim=True) / torch.where(total > 0, total, 1)
        return weights * (grad - share), None
