"""A bilinear score of an item and the mean of its set: how the item relates to the available items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import flat_quantities, item_shape
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_mean

# The mean of a few dozen standardised items is about this much smaller than an item. A constant, not the root of the
# size, so that equal means count the same in sets of other sizes.
_GAIN = 8.0


@final
class Relation(nn.Module):
    """A score <P x, Q m> of every item x and the mean m of its set. A new relation returns 0.

    It learns from few sets what "unlike the others" or "complements the others" means, for which attention needs many.
    With thousands of training sets, attention alone was slightly better.

    Args:
        in_dim: Number of features, or shape, of an item.
        rank: Number of rows of P and Q.

    Raises:
        OptionError: If the rank is below 1.

    Examples:
        >>> relation = Relation(2, rank=4)
        >>> relation(Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], []])).tolist()
        [0.0, 0.0]
    """

    def __init__(self, in_dim: int | Sequence[int], rank: int = 64) -> None:
        super().__init__()
        if rank < 1:
            raise OptionError(f"the rank of a relation must be at least 1, not {rank}; leave the relation out instead")
        self.shape = item_shape(in_dim)
        self.items = nn.Linear(math.prod(self.shape), rank, bias=False)
        self.means = nn.Linear(math.prod(self.shape), rank, bias=False)
        nn.init.zeros_(self.means.weight)

    def forward(self, sets: Sets) -> Tensor:
        """Return the score of every item, `(total,)`.

        Raises:
            DataError: If the items are not real numbers.
            ShapeError: If the items do not have the shape `in_dim`.
        """
        items = flat_quantities(sets, self.shape, self.items.weight)
        means = self.means(segment_mean(items, sets)) * (_GAIN * self.items.out_features**-0.5)
        return (self.items(items) * means.index_select(0, sets.layout.ids)).sum(1)


def make_relation(in_dim: int | Sequence[int], rank: int) -> Relation | None:
    """Return a relation of this rank, or None if the rank is 0."""
    return Relation(in_dim, rank) if rank else None
