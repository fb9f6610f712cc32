"""The divergence of a k-subset distribution from the uniform one, in few operations, because every step needs it.

`KSubset.kl` is exact for any n, with about two thousand small operations. Here n is 20, and a discrete Fourier
transform gives the distribution of the number of chosen items at once. The tests compare the two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from setgrad.discrete import Categorical, KSubset

# The shift that makes k the expected number of items may be rough: it does not change the result.
_HALVINGS = 12


def choice_distribution(theta: Tensor, k: int) -> Categorical | KSubset:
    """Return the distribution of one choice of k items."""
    return Categorical(theta) if k == 1 else KSubset(theta, k)


def divergence(theta: Tensor, k: int) -> Tensor:
    """Return KL(distribution of theta || uniform) by the library, for each instance."""
    uniform = torch.zeros(theta.shape[-1], dtype=theta.dtype, device=theta.device)
    return choice_distribution(theta, k).kl(choice_distribution(uniform, k))  # type: ignore[arg-type]


def softmax_divergence(theta: Tensor) -> Tensor:
    """Return KL(softmax || uniform), which publications use for every k. It is right for k = 1."""
    logs = theta.log_softmax(-1)
    return (logs.exp() * logs).sum(-1) + math.log(theta.shape[-1])


def quick_divergence(theta: Tensor, k: int) -> Tensor:
    """Return the same number as `divergence`, for small n."""
    if k == 1:
        return softmax_divergence(theta)
    n = theta.shape[-1]
    coins = theta + _shift(theta.detach(), k)
    chance = coins.sigmoid()
    # An odd number of roots: -1 is none of them, so no factor is 0, and each can be divided out of the product. All but
    # the first come in conjugate pairs, of which one is enough.
    roots = n + 1 + n % 2
    number = torch.arange(roots // 2 + 1, dtype=theta.dtype, device=theta.device)
    weight = (1 + (number > 0).to(theta.dtype)) / roots
    turn, back = (torch.polar(torch.ones_like(number), 2 * math.pi / roots * e * number) for e in (1, -k))
    factors = 1 + chance[..., None, :] * (turn - 1)[:, None]
    product = factors.prod(-1) * weight * back
    count = product.real.sum(-1)
    means = chance * ((product * turn)[..., None] / factors).real.sum(-2) / count[..., None]
    mass = count.log() - torch.nn.functional.logsigmoid(-coins).sum(-1)
    return (means * coins).sum(-1) - mass + math.log(math.comb(n, k))


def _shift(logits: Tensor, k: int) -> Tensor:
    n = logits.shape[-1]
    even = math.log(k / (n - k)) if 0 < k < n else 0.0
    low, high = even - logits.amax(-1, keepdim=True), even - logits.amin(-1, keepdim=True)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = (logits + middle).sigmoid().sum(-1, keepdim=True) >= k
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return (low + high) / 2
