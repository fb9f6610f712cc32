"""How an item goes with all that is on offer: a bilinear score of the item and the mean of its set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import flat_quantities, item_shape
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_mean

# The mean of some tens of standardised items is about so many times smaller than an item. A fixed number, and not the
# root of the size: means stay what they are in sets of other sizes.
_GAIN = 8.0


@final
class Relation(nn.Module):
    """<P x, Q m> for every item x and the mean m of its set; 0 to begin with.

    Attention needs many sets to learn what "unlike the rest" or "goes with what is missing here" means; this needs few.
    With thousands of sets attention alone was a little better.

    Example:
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
        """A score of every item, `(total,)`."""
        items = flat_quantities(sets, self.shape, self.items.weight)
        means = self.means(segment_mean(items, sets)) * (_GAIN * self.items.out_features**-0.5)
        return (self.items(items) * means.index_select(0, sets.layout.ids)).sum(1)


def make_relation(in_dim: int | Sequence[int], rank: int) -> Relation | None:
    """A relation of that rank, none for 0."""
    return Relation(in_dim, rank) if rank else None
