"""Differentiable expectation-maximisation (Kim, 2022): the code of a set is a mixture of Gaussians fitted to it.

The fit starts from a learned prior and takes a few steps of maximum a posteriori EM, which are all differentiable. Each
step is a sum over items that depends on the mixture of the step before: long sets are read in chunks, with one pass for
each step. The code is not a function of a single sum, so this is not a mergeable encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import ChunkedEncoder, sum_dtype
from setgrad.encoders._passes import Passes
from setgrad.encoders._pooling import item_encoder
from setgrad.encoders._state import State
from setgrad.encoders.deep_sets import feature_sums
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_sum


@final
class DiffEM(ChunkedEncoder):
    """A set encoder that returns weight, mean and variance of every component of the mixtures fitted to a set.

    Differentiable expectation-maximisation (Kim, 2022): a few steps of EM that start from a learned prior.
    The code is `(b, mixtures * components, 1 + 2 * phi.out_dim)`; an empty set gives the prior.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: Item encoder or module that encodes each item; None for the raw features.
        components: Gaussians of a mixture.
        mixtures: Mixtures, fitted from different priors.
        steps: Steps of EM.
        strength: Weight of the prior of a component, as a number of items.
        head: Any module on the code; None to return the code.

    Raises:
        OptionError: If an option is out of range.

    Examples:
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
        # Softplus of this is the variance; it starts at 1, slightly different for every component.
        self.spread = nn.Parameter(math.log(math.expm1(1.0)) + 1e-3 * torch.randn(size))
        self.head = head

    def encode(self, passes: Passes) -> Tensor:
        """Return the mixtures after one pass for the centre and one for each step, or the output of the head."""
        passes, dtype = passes.map(self.features), sum_dtype(self.means.dtype)
        # The mixture of a shifted set is the shifted mixture: around 0 the squares below lose no digits. The centre
        # cancels in the value and in the derivative, so it needs no graph.
        with torch.no_grad():
            state = passes.sums(_read_features, None)
            centre = state.sums[0] / state.count.clamp(min=torch.finfo(dtype).tiny)[:, None]
        mean0, variance0 = self.means.to(dtype) - centre[:, None], nn.functional.softplus(self.spread).to(dtype)
        share = mean0.new_full(mean0.shape[:2], 1 / self.components)
        mixture = torch.cat([share[..., None], mean0, variance0.expand_as(mean0)], -1)
        for _ in range(self.steps):
            weight, first, second = passes.sums(_ReadMoments(centre, self.mixtures), mixture).sums
            mixture = self._fit(weight, first, second, mean0, variance0)
        share, mean, variance = mixture.split([1, *[self.phi.out_dim] * 2], -1)
        code = torch.cat([share, mean + centre[:, None], variance], -1).to(self.means.dtype)
        return code if self.head is None else self.head(code)

    def _fit(self, weight: Tensor, first: Tensor, second: Tensor, mean0: Tensor, variance0: Tensor) -> Tensor:
        """Return the mixture `(b, components, 1 + 2 * dim)` for items with these moments and the prior."""
        tau = self.strength
        weight = (weight + tau)[..., None]
        mean = (first + tau * mean0) / weight
        # The variance is at least the share of the prior; only rounding can fall below it.
        variance = (second + tau * (variance0 + mean0.square())) / weight - mean.square()
        variance = torch.maximum(variance, tau * variance0 / weight)
        parts = _split_mixtures(weight[..., 0], self.mixtures)
        share = (parts / parts.sum(-1, keepdim=True)).flatten(-2)
        return torch.cat([share[..., None], mean, variance], -1)


def _read_features(features: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
    """Return the sums of the features, for their mean."""
    return feature_sums(features.values, features, counts)


@final
@dataclass(frozen=True, eq=False)
class _ReadMoments:
    """Reads the weight, first and second moment of the items of each component of a mixture."""

    centre: Tensor
    mixtures: int

    def __call__(self, features: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        if queries is None:
            raise OptionError("moments are computed for a mixture; pass it as queries")
        # Squares and sums over many items need full precision.
        with torch.autocast(queries.device.type, enabled=False):
            return self._moments(features, counts, queries)

    def _moments(self, features: Sets, counts: Tensor, mixture: Tensor) -> State:
        dtype, dim = self.centre.dtype, self.centre.shape[-1]
        share, mean, variance = mixture.split([1, dim, dim], -1)
        counts = counts.to(dtype)
        centred = features.values.to(dtype) - self.centre.index_select(0, features.layout.ids)
        x, _ = features.with_values(centred).padded()
        padded_counts, _ = features.with_values(counts).padded()
        squares, precision = x.square(), (1 / variance).transpose(1, 2)
        constant = (mean.square() / variance + variance.log()).sum(-1) - 2 * share[..., 0].log()
        logits = x @ (mean.transpose(1, 2) * precision) - (squares @ precision + constant[:, None]) / 2
        # Padding has count 0.
        shares = torch.softmax(_split_mixtures(logits, self.mixtures), -1).flatten(-2) * padded_counts[..., None]
        transposed = shares.transpose(1, 2)
        sums = (shares.sum(1), transposed @ x, transposed @ squares)
        return State(sums, None, segment_sum(counts, features), None)


def _split_mixtures(x: Tensor, mixtures: int) -> Tensor:
    """Return the last axis as `(mixtures, components)`."""
    return x.unflatten(-1, (mixtures, -1))
