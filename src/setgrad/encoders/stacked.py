"""One item encoder after another, such as a network on each image and then attention over the set."""

from __future__ import annotations

from typing import final

from torch import Tensor

from setgrad.encoders._base import ItemEncoder
from setgrad.errors import ShapeError
from setgrad.sets import Sets


@final
class Stacked(ItemEncoder):
    """Encode with `first`, and hand the features to `then` as sets of items.

    Example:
        >>> import torch
        >>> from setgrad.encoders import ContextItems, ImageItems
        >>> phi = Stacked(ImageItems((3, 64, 64), 32), ContextItems(32, 16))
        >>> phi(Sets.from_lengths(torch.zeros(3, 3, 64, 64), [2, 0, 1])).shape
        torch.Size([3, 16])
    """

    def __init__(self, first: ItemEncoder, then: ItemEncoder) -> None:
        super().__init__()
        # ItemWise reads whatever its module reads, and says nothing about it.
        reads = getattr(then, "shape", (first.out_dim,))
        if reads != (first.out_dim,):
            raise ShapeError(
                f"the first encoder gives {first.out_dim} features, but the second reads items of shape {reads}; "
                f"make it with in_dim={first.out_dim}"
            )
        self.first = first
        self.then = then
        self.out_dim, self.reads_tokens = then.out_dim, first.reads_tokens
        self.itemwise = first.itemwise and then.itemwise

    def forward(self, sets: Sets) -> Tensor:
        """Apply both."""
        return self.then(sets.with_values(self.first(sets)))
