"""Featurewise sort pooling (Zhang et al., 2020): each feature is sorted over the set and weighed by its rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import SetEncoder, wide
from setgrad.encoders._pooling import item_encoder, item_features
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_sum


@final
class FSPool(SetEncoder):
    """Sorts every feature, largest first, and sums it with weights that are piecewise linear in the relative rank.

    Ranks run from 0 to 1 whatever the size of the set, so that one curve of `pieces` pieces for each feature serves
    all sizes. A single item has rank 0; of nothing the sum is 0. Sets are sorted as they are, without padding. Weights
    of items are refused: half an item has no rank.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: What is seen of an item; None for the item itself.
        pieces: Pieces of the weight curves.
        head: Any module on `(b, width)`.

    Example:
        >>> pool = FSPool(2, pieces=4)
        >>> pool(Sets.from_list([torch.zeros(5, 2), torch.zeros(0, 2)])).shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        phi: nn.Module | None = None,
        *,
        pieces: int = 20,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if pieces < 1:
            raise OptionError(f"weight curves need at least one piece, not {pieces}")
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        self.knots = nn.Parameter(torch.randn(pieces + 1, self.phi.out_dim))
        self.head = head

    def forward(self, sets: Sets, weights: Tensor | None = None) -> Tensor:
        """Codes `(b, width)`, or what the head makes of them."""
        if weights is not None:
            raise OptionError(
                "FSPool weighs items by their rank and takes no other weights; repeat items that count more than once "
                "and leave out those of weight 0, or let UMBC read the weights: UMBC(..., head=OnSlots(FSPool(dim)))"
            )
        features, layout = item_features(self.phi, sets, self.shape, self.knots), sets.layout
        # By value, then by set: a stable sort leaves each set sorted. The items of set b stay in its own rows.
        order = features.detach().sort(dim=0, descending=True, stable=True).indices
        order = order.gather(0, layout.ids[order].sort(dim=0, stable=True).indices)
        last = (layout.lengths - 1).clamp(min=1).index_select(0, layout.ids)
        kind = wide(features.dtype)
        weighed = features.gather(0, order).to(kind) * self._weights(layout.positions.to(kind) / last)
        pooled = segment_sum(weighed, layout).to(features.dtype)
        return pooled if self.head is None else self.head(pooled)

    def _weights(self, rank: Tensor) -> Tensor:
        """The curves at relative ranks `(total,)`, as `(total, width)`."""
        place = rank * (len(self.knots) - 1)
        below = place.floor().long().clamp(max=len(self.knots) - 2)
        share = (place - below)[:, None]
        return torch.lerp(self.knots[below].to(share.dtype), self.knots[below + 1].to(share.dtype), share)
