"""Differentiable expectation-maximisation (Kim, 2022): the code of a set is the mixture of Gaussians fitted to it.

The fit starts from a learned prior and takes a few steps of maximum a posteriori EM, all of them differentiable. Each
step is a sum over items given the last one's mixture, so that sets could be read in pieces with one pass for each
step; the code is not a function of one sum, and this is no mergeable encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import SetEncoder, wide
from setgrad.encoders._pooling import item_encoder, item_features
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_mean


@final
class DiffEM(SetEncoder):
    """Weight, mean and variance of every component of the mixtures fitted to a set.

    The code is `(b, mixtures * components, 1 + 2 * width)`; that of nothing is the prior.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: What is seen of an item; None for the item itself.
        components: Gaussians of a mixture.
        mixtures: Mixtures, fitted from different priors.
        steps: Steps of EM.
        strength: How many items the prior of a component is worth.
        head: Any module on the code.

    Example:
        >>> encoder = DiffEM(2, components=3)
        >>> encoder(Sets.from_list([torch.zeros(5, 2), torch.zeros(0, 2)])).shape
        torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        phi: nn.Module | None = None,
        *,
        components: int = 4,
        mixtures: int = 1,
        steps: int = 3,
        strength: float = 1.0,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if min(components, mixtures, steps) < 1 or not strength > 0:
            raise OptionError(
                "components, mixtures and steps must be at least 1 and strength above 0, not "
                f"{components}, {mixtures}, {steps} and {strength}"
            )
        self.shape, self.components, self.mixtures = item_shape(in_dim), components, mixtures
        self.steps, self.strength = steps, strength
        self.phi = item_encoder(phi, in_dim)
        size = (mixtures * components, self.phi.out_dim)
        self.means = nn.Parameter(torch.randn(size) * 0.1)
        # Softplus of this is the variance; it starts at 1, a little different for every component.
        self.spread = nn.Parameter(math.log(math.expm1(1.0)) + 1e-3 * torch.randn(size))
        self.head = head

    def forward(self, sets: Sets) -> Tensor:
        """Codes, or what the head makes of them."""
        features = item_features(self.phi, sets, self.shape)
        kind = wide(features.dtype)
        # The mixture of a shifted set is the shifted mixture: near 0 the squares below lose no digits. The centre
        # cancels in value and in derivative, so it needs no graph.
        centre = segment_mean(features.detach().to(kind), sets)
        centred = features.to(kind) - centre.index_select(0, sets.layout.ids)
        x, mask = sets.with_values(centred).padded()
        share, mean, variance = self._fit(x, mask, self.means.to(kind) - centre[:, None])
        code = torch.cat([share[..., None], mean + centre[:, None], variance], -1).to(features.dtype)
        return code if self.head is None else self.head(code)

    def _fit(self, x: Tensor, mask: Tensor, mean0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """EM on `(b, n, width)` from the prior means `(b, components, width)`."""
        squares, tau = x.square(), self.strength
        variance0 = nn.functional.softplus(self.spread).to(x.dtype)
        mean, variance = mean0, variance0.expand_as(mean0)
        share = x.new_full(mean.shape[:2], 1 / self.components)
        for _ in range(self.steps):
            sharp = (1 / variance).transpose(1, 2)
            constant = (mean.square() / variance + variance.log()).sum(-1) - 2 * share.log()
            logits = x @ (mean.transpose(1, 2) * sharp) - (squares @ sharp + constant[:, None]) / 2
            belongs = torch.softmax(self._by_mixture(logits), -1).flatten(-2) * mask[..., None]
            weight = (belongs.sum(1) + tau)[..., None]
            mean = (belongs.transpose(1, 2) @ x + tau * mean0) / weight
            second = (belongs.transpose(1, 2) @ squares + tau * (variance0 + mean0.square())) / weight
            # The prior alone is a bound from below; only rounding can fall under it.
            variance = torch.maximum(second - mean.square(), tau * variance0 / weight)
            weight = self._by_mixture(weight[..., 0])
            share = (weight / weight.sum(-1, keepdim=True)).flatten(-2)
        return share, mean, variance

    def _by_mixture(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.mixtures, self.components))
