"""A multilayer perceptron on each item."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, flat_quantities, item_shape, place_of
from setgrad.sets import Sets


@final
class MLPItems(ItemEncoder):
    """Fully connected layers on each item, blind to the rest of its set."""

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
        """Apply the layers to all items."""
        return self.layers(flat_quantities(sets, self.shape, place_of(self.layers)))
