"""F(S, V) = sum over the pairs of S of a learned similarity: which items go together."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from setgrad.encoders._base import flat_quantities, item_shape
from setgrad.functions._additive import AdditiveBoundFunction
from setgrad.functions._combined import BoundCombination
from setgrad.functions._set_function import BoundSetFunction, SetFunction
from setgrad.sets import Sets, segment_matmul
from setgrad.sets._sets import pad

# The weights are learned in units of this, so that they can move by several units in a few hundred steps.
_UNIT = 32.0


@final
class PairScores(nn.Module, SetFunction):
    """A weighted cosine of each pair of chosen items, summed over the pairs.

    A new term prefers items that are alike. It learns a weight for each feature, also negative ones for items that
    should differ, and how much each further item costs or adds. Features are multiplied by the buffer `scale` first,
    which is 1 unless it is set.

    Args:
        in_dim: Number of features, or shape, of an item.
        weight: The weight of every feature before training.
        tied: Features that have one weight together, such as the counts of the words of a text.

    Examples:
        >>> import setgrad as sg
        >>> F = PairScores(2, weight=1.0)
        >>> sets = sg.Sets.from_list([[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]])
        >>> F.value(sets, torch.tensor([[True, True, False], [True, False, True]])).tolist()
        [[1.0], [0.0]]
    """

    scale: Tensor

    def __init__(self, in_dim: int | Sequence[int], weight: float = 3.0, tied: Sequence[slice] = ()) -> None:
        super().__init__()
        self.shape, self.tied = item_shape(in_dim), tuple(tied)
        self.register_buffer("scale", torch.ones(math.prod(self.shape)))
        self.weights = nn.Parameter(torch.full((math.prod(self.shape),), weight / _UNIT))
        self.constant = nn.Parameter(torch.zeros(1))

    @torch.no_grad()
    def start(self, weight: float, features: slice = slice(None), constant: float = 0.0) -> None:
        """Set the weight of these features, that of the others to 0, and the constant, as before training."""
        self.weights.zero_()
        self.weights[features] = weight / _UNIT
        self.constant.fill_(constant)

    @property
    def all_weights(self) -> Tensor:
        """The weight of each feature, and the constant."""
        weights: Tensor = self.weights
        for features in self.tied:
            mean = weights[features].mean().expand_as(weights[features])
            weights = torch.cat([weights[: features.start], mean, weights[features.stop :]])
        return torch.cat([weights * _UNIT, self.constant])

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with unit vectors of the items.

        Raises:
            DataError: If the items are not real numbers.
            ShapeError: If the items do not have the shape `in_dim`.
        """
        units = normalize(flat_quantities(sets, self.shape, self.weights) * self.scale, dim=1)
        # A constant feature makes the constant a weight like the others.
        rows = torch.cat([units, torch.ones_like(units[:, :1])], 1)
        return _BoundPairScores(sets, rows, self.all_weights)


@final
class _BoundPairScores(AdditiveBoundFunction):
    relaxed = True
    item_attributes = ("rows", "own")

    def __init__(self, sets: Sets, rows: Tensor, weights: Tensor) -> None:
        self.sets, self.rows, self.weights = sets, rows, weights
        # The similarity of each item with itself, once it is computed.
        self.own: Tensor | None = None
        # The sums over chosen items that are not among those of the sets.
        self.others: tuple[Tensor, ...] | None = None

    def pooled(self, masks: Tensor) -> tuple[Tensor, ...]:
        """Return the sums of the rows, and of the similarity of each item with itself."""
        sums = segment_matmul(masks, self.rows, self.sets)
        own = segment_matmul(masks * masks, self._own()[:, None], self.sets).squeeze(2)
        return sums, own

    def beside(self, pooled: Sequence[Tensor]) -> _BoundPairScores:
        other = copy.copy(self)
        other.others = tuple(pooled if self.others is None else map(torch.add, self.others, pooled))
        return other

    def prepared(self) -> _BoundPairScores:
        other = copy.copy(self)
        other.own = self._own()
        return other

    def value(self, masks: Tensor) -> Tensor:
        # The square of the sum has every pair twice, and every item with itself.
        sums, own = self.pooled(masks) if self.others is None else map(torch.add, self.pooled(masks), self.others)
        return ((sums.square() * self.weights).sum(-1) - own) / 2

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        sums = segment_matmul(masks, self.rows, self.sets)
        sums = (sums if self.others is None else sums + self.others[0]) * self.weights
        rows, layout, own = self.rows, self.sets.layout, self._own()
        if coordinates is None and layout.uniform:
            # One product for each set instead of a copy of its sum for each item.
            table = rows.reshape(len(layout), layout.longest, -1) @ sums.permute(1, 2, 0)
            return table.flatten(0, 1).T - masks * own
        ids = layout.ids
        if coordinates is not None:
            rows, ids, own, masks = rows[coordinates], ids[coordinates], own[coordinates], masks[:, coordinates]
        return torch.einsum("mkd,kd->mk", sums.index_select(1, ids), rows) - masks * own

    def linearisation(self, masks: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        padded = pad(self.rows, self.sets)
        table = (padded * self.weights) @ padded.mT
        table = table - torch.diag_embed(table.diagonal(dim1=-2, dim2=-1))
        by_numbers = pad(slopes.mean(0), self.sets)[:, None]
        return self.gains(masks).mean(0), (table * by_numbers).detach()

    def _own(self) -> Tensor:
        """Return the similarity of each item with itself, `(total,)`."""
        return (self.rows.square() * self.weights).sum(1) if self.own is None else self.own


@final
class BoundSum(BoundCombination, AdditiveBoundFunction):
    """The sum of functions that are bound to the same sets."""

    def pooled(self, masks: Tensor) -> tuple[Tensor, ...]:
        """Return the sums of all parts, one after the other."""
        return tuple(x for part in self._additive() for x in part.pooled(masks))

    def beside(self, pooled: Sequence[Tensor]) -> BoundSum:
        """Return the sum of the parts, each beside its share of the sums."""
        # Every part has two sums.
        shares = zip(pooled[::2], pooled[1::2], strict=True)
        return BoundSum([part.beside(share) for part, share in zip(self._additive(), shares, strict=True)])

    def _additive(self) -> list[AdditiveBoundFunction]:
        return [part for part in self.parts if isinstance(part, AdditiveBoundFunction)]

    def _combine(self, results: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(results)).sum(0)
