"""An item encoder with a multilayer perceptron on each item."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, first_tensor, flat_quantities, item_shape
from setgrad.sets import Sets


@final
class MLPItems(ItemEncoder):
    """Fully connected layers on each item, independent of the other items of its set.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Number of features to return, and units of every hidden layer.
        layers: Number of linear layers.

    Examples:
        >>> MLPItems(2, dim=8)(Sets.from_list([[[0.0, 1.0]], []])).shape
        torch.Size([1, 8])
    """

    def __init__(self, in_dim: int | Sequence[int], dim: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.out_dim = dim
        sizes = [math.prod(self.shape), *[dim] * layers]
        parts: list[nn.Module] = []
        for before, after in pairwise(sizes):
            parts += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all items, `(total, dim)`."""
        return self.layers(flat_quantities(sets, self.shape, first_tensor(self.layers)))
