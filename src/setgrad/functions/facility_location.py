"""Facility location: every item of V is served by the most similar item of S."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from setgrad.functions._set_function import BoundSetFunction, SetFunction, pad_masks, take_items
from setgrad.functions.similarity import Similarity, pairwise_similarities
from setgrad.sets import Sets


@final
@dataclass(frozen=True, eq=False)
class FacilityLocation(SetFunction):
    """F(S) = sum over j in V of the largest similarity s_ij with i in S, or 0 if none is positive.

    Monotone and submodular. Fractional masks give the multilinear extension: i serves j if i is chosen and no item that
    is more similar to j is chosen.

    Args:
        similarity: Similarity of items; None for `rbf()`.

    Examples:
        >>> sets = Sets.from_list([[[0.0], [0.0], [9.0]]])
        >>> FacilityLocation().value(sets, torch.tensor([[True, False, False], [True, False, True]])).tolist()
        [[2.0], [3.0]]
    """

    similarity: Similarity | None = None

    def bind(self, sets: Sets) -> BoundSetFunction:
        """Return the function bound to these sets, with all pairs compared once.

        Raises:
            ShapeError: If the similarity does not return one number for each pair of items.
        """
        return _BoundFacilityLocation(sets, pairwise_similarities(self.similarity, sets).clamp(min=0))


@final
class _BoundFacilityLocation(BoundSetFunction):
    relaxed = True

    def __init__(self, sets: Sets, pairs: Tensor) -> None:
        self.sets, self.pairs = sets, pairs

    def value(self, masks: Tensor) -> Tensor:
        if masks.is_floating_point():
            return self._served(self._sorted(masks))[:, :, 0].sum(2)
        return self._offers(masks).amax(2).sum(2)

    def gains(self, masks: Tensor, coordinates: Tensor | None = None) -> Tensor:
        if masks.is_floating_point():
            return take_items(self._slopes(self._sorted(masks)), self.sets, coordinates)
        layout = self.sets.layout
        ids = layout.ids if coordinates is None else layout.ids[coordinates]
        positions = layout.positions if coordinates is None else layout.positions[coordinates]
        top, owner = self._offers(masks).topk(2, dim=2)
        # Without item i, the items that it serves get the second best offer.
        serves = owner[:, ids, 0] == positions[:, None]
        rest = torch.where(serves, top[:, ids, 1], top[:, ids, 0])
        return (self.pairs[ids, positions] - rest).clamp(min=0).sum(2)

    def _offers(self, masks: Tensor) -> Tensor:
        """Return the similarities that the chosen items offer each item, `(m, b, longest + 2, longest)`."""
        x = pad_masks(masks, self.sets, self.pairs.dtype)
        # Two offers of 0, so that there is always a best and a second best.
        return torch.cat([x[..., None] * self.pairs, x.new_zeros(*x.shape[:2], 2, x.shape[2])], 2)

    @cached_property
    def _ranking(self) -> tuple[Tensor, Tensor]:
        """Offers to each item, best first, and the items that make them, `(b, longest, longest)`."""
        return self.pairs.sort(dim=1, descending=True)

    def _sorted(self, masks: Tensor) -> Tensor:
        """Return the masks in the order of the offers to each item, best first, `(m, b, longest, longest)`."""
        x = pad_masks(masks, self.sets, self.pairs.dtype)[..., None]
        order = self._ranking[1].expand(len(x), -1, -1, -1)
        return x.expand_as(order).gather(2, order)

    def _served(self, x: Tensor) -> Tensor:
        """Return the expected service by the offer at each rank or a later one, and 0 after the last."""
        # t_k = x_k s_k + (1 - x_k) t_{k+1}, by doubling, in log n steps instead of n.
        served, missed, step = x * self._ranking[0], 1 - x, 1
        while step < x.shape[2]:
            improved = served[:, :, :-step] + missed[:, :, :-step] * served[:, :, step:]
            served = torch.cat([improved, served[:, :, -step:]], 2)
            missed = torch.cat([missed[:, :, :-step] * missed[:, :, step:], missed[:, :, -step:]], 2)
            step *= 2
        return torch.cat([served, x.new_zeros(*x.shape[:2], 1, x.shape[3])], 2)

    def _slopes(self, x: Tensor) -> Tensor:
        """Return the gains in the padded batch: if no better offer is chosen, an item replaces the later ones."""
        offers, order = self._ranking
        free = torch.cat([torch.ones_like(x[:, :, :1]), 1 - x[:, :, :-1]], 2).cumprod(2)
        slopes = free * (offers - self._served(x)[:, :, 1:])
        return torch.zeros_like(slopes).scatter(2, order.expand_as(slopes), slopes).sum(3)
