"""Two item encoders in sequence, such as a network on each image followed by attention over the set."""

from __future__ import annotations

from typing import final

from torch import Tensor

from setgrad.encoders._base import ItemEncoder
from setgrad.errors import ShapeError
from setgrad.sets import Sets


@final
class Stacked(ItemEncoder):
    """An item encoder that encodes with `first`, then passes the features to `then` as items.

    Args:
        first: Encodes the items.
        then: Encodes the features of `first`.

    Raises:
        ShapeError: If `then` does not read as many features as `first` returns.

    Examples:
        >>> import torch
        >>> from setgrad.encoders import ContextItems, ImageItems
        >>> phi = Stacked(ImageItems((3, 64, 64), 32), ContextItems(32, 16))
        >>> phi(Sets.from_lengths(torch.zeros(3, 3, 64, 64), [2, 0, 1])).shape
        torch.Size([3, 16])
    """

    def __init__(self, first: ItemEncoder, then: ItemEncoder) -> None:
        super().__init__()
        # An encoder without a shape reads items of any shape.
        shape = getattr(then, "shape", (first.out_dim,))
        if shape != (first.out_dim,):
            raise ShapeError(
                f"the first encoder gives {first.out_dim} features, but the second reads items of shape {shape}; "
                f"build it with in_dim={first.out_dim}"
            )
        self.first = first
        self.then = then
        self.out_dim, self.reads_tokens = then.out_dim, first.reads_tokens
        self.itemwise = first.itemwise and then.itemwise

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all items, `(total, then.out_dim)`."""
        return self.then(sets.with_values(self.first(sets)))
