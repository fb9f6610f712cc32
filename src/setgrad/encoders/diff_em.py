"""Differentiable expectation-maximisation (Kim, 2022): the code of a set is the mixture of Gaussians fitted to it.

The fit starts from a learned prior and takes a few steps of maximum a posteriori EM, all of them differentiable. Each
step is a sum over items given the last one's mixture: long sets are read in pieces, with one pass for each step. The
code is not a function of one sum, and this is no mergeable encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import ChunkedEncoder, counted, wide
from setgrad.encoders._passes import Passes
from setgrad.encoders._pooling import item_encoder
from setgrad.encoders._state import State
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_sum


@final
class DiffEM(ChunkedEncoder):
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

    def encode(self, passes: Passes) -> Tensor:
        """One pass for the centre, and one for each step."""
        passes, kind = passes.through(self.features), wide(self.means.dtype)
        # The mixture of a shifted set is the shifted mixture: near 0 the squares below lose no digits. The centre
        # cancels in value and in derivative, so it needs no graph.
        with torch.no_grad():
            found = passes.sums(_total, None)
            centre = found.sums[0] / found.count.clamp(min=torch.finfo(kind).tiny)[:, None]
        mean0, variance0 = self.means.to(kind) - centre[:, None], nn.functional.softplus(self.spread).to(kind)
        share = mean0.new_full(mean0.shape[:2], 1 / self.components)
        mixture = torch.cat([share[..., None], mean0, variance0.expand_as(mean0)], -1)
        for _ in range(self.steps):
            weight, first, second = passes.sums(_Belonging(centre, self.mixtures), mixture).sums
            mixture = self._fit(weight, first, second, mean0, variance0)
        share, mean, variance = mixture.split([1, *[self.phi.out_dim] * 2], -1)
        code = torch.cat([share, mean + centre[:, None], variance], -1).to(self.means.dtype)
        return code if self.head is None else self.head(code)

    def _fit(self, weight: Tensor, first: Tensor, second: Tensor, mean0: Tensor, variance0: Tensor) -> Tensor:
        """The mixture `(b, components, 1 + 2 * width)` of items with these moments, and of the prior."""
        tau = self.strength
        weight = (weight + tau)[..., None]
        mean = (first + tau * mean0) / weight
        # The prior alone is a bound from below; only rounding can fall under it.
        variance = (second + tau * (variance0 + mean0.square())) / weight - mean.square()
        variance = torch.maximum(variance, tau * variance0 / weight)
        parts = by_mixture(weight[..., 0], self.mixtures)
        share = (parts / parts.sum(-1, keepdim=True)).flatten(-2)
        return torch.cat([share[..., None], mean, variance], -1)


def _total(features: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
    """Sums of the features, for their mean."""
    kind = wide(features.dtype)
    total = segment_sum(features.values.to(kind) * weights.to(kind)[:, None], features)
    return State((total,), None, counted(features, weights, kind), None)


@final
@dataclass(frozen=True, eq=False)
class _Belonging:
    """Weight, first and second moment of the items that belong to each component of a mixture."""

    centre: Tensor
    mixtures: int

    def __call__(self, features: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        if queries is None:
            raise OptionError("items belong to a mixture; give one")
        # Squares and sums over many items need all their digits.
        with torch.autocast(queries.device.type, enabled=False):
            return self._moments(features, weights, queries)

    def _moments(self, features: Sets, weights: Tensor, queries: Tensor) -> State:
        kind, width = self.centre.dtype, self.centre.shape[-1]
        share, mean, variance = queries.split([1, width, width], -1)
        centred = features.values.to(kind) - self.centre.index_select(0, features.layout.ids)
        x, _ = features.with_values(centred).padded()
        counts, _ = features.with_values(weights.to(kind)).padded()
        squares, sharp = x.square(), (1 / variance).transpose(1, 2)
        constant = (mean.square() / variance + variance.log()).sum(-1) - 2 * share[..., 0].log()
        logits = x @ (mean.transpose(1, 2) * sharp) - (squares @ sharp + constant[:, None]) / 2
        # Padding has weight 0.
        belongs = torch.softmax(by_mixture(logits, self.mixtures), -1).flatten(-2) * counts[..., None]
        turned = belongs.transpose(1, 2)
        return State((belongs.sum(1), turned @ x, turned @ squares), None, counted(features, weights, kind), None)


def by_mixture(x: Tensor, mixtures: int) -> Tensor:
    """Components apart by their mixture."""
    return x.unflatten(-1, (mixtures, -1))
