"""Featurewise sort pooling (Zhang et al., 2020, arXiv:1906.02795): sort each feature, then weigh it by its rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._mergeable import SetEncoder, sum_dtype
from setgrad.encoders._pooling import item_encoder, item_features
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_sum


@final
class FSPool(SetEncoder):
    """A set encoder that sorts every feature, largest first, and sums it with weights that depend on the rank.

    Zhang et al., 2020, arXiv:1906.02795. Weights are piecewise linear in the relative rank, which runs from 0 to 1 for
    sets of all sizes, so that one curve for each feature serves all sizes. A single item has rank 0, and an empty set
    gives 0. Sets are sorted without padding. Counts of items are rejected: half an item has no rank.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: Item encoder or module that encodes each item; None for the raw features.
        pieces: Linear pieces of the weight curves.
        head: Any module on `(b, phi.out_dim)`; None to return that.

    Raises:
        OptionError: If `pieces` is below 1.

    Examples:
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
        self.phi = item_encoder(phi, in_dim)
        self.knots = nn.Parameter(torch.randn(pieces + 1, self.phi.out_dim))
        self.head = head

    def forward(self, sets: Sets, counts: Tensor | None = None) -> Tensor:
        """Return codes `(b, phi.out_dim)`, or the output of the head.

        Raises:
            OptionError: If counts are passed.
        """
        if counts is not None:
            raise OptionError(
                "FSPool weighs items by their rank and does not support counts; repeat items that count several times "
                "and leave out those of count 0, or let UMBC read the counts: UMBC(..., head=OnSlots(FSPool(dim)))"
            )
        features, layout = item_features(self.phi, sets, self.knots), sets.layout
        # By value, then by set: a stable sort leaves each set sorted, and the items of a set in its rows.
        order = features.detach().sort(dim=0, descending=True, stable=True).indices
        order = order.gather(0, layout.ids[order].sort(dim=0, stable=True).indices)
        last = (layout.lengths - 1).clamp(min=1).index_select(0, layout.ids)
        dtype = sum_dtype(features.dtype)
        weighted = features.gather(0, order).to(dtype) * self._weights(layout.positions.to(dtype) / last)
        pooled = segment_sum(weighted, layout).to(features.dtype)
        return pooled if self.head is None else self.head(pooled)

    def _weights(self, rank: Tensor) -> Tensor:
        """Return the curves at relative ranks `(total,)`, as `(total, features)`."""
        position = rank * (len(self.knots) - 1)
        below = position.floor().long().clamp(max=len(self.knots) - 2)
        fraction = (position - below)[:, None]
        return torch.lerp(self.knots[below].to(fraction.dtype), self.knots[below + 1].to(fraction.dtype), fraction)
