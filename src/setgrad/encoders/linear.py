"""The paper's item encoder: one linear layer, no activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, flat_quantities, item_shape
from setgrad.sets import Sets


@final
class LinearItems(ItemEncoder):
    """A linear map of each item, as published for the synthetic and the Amazon data.

    With it, F sees a subset only through the sum of its raw features and, through the bias, its size.
    """

    def __init__(self, in_dim: int | Sequence[int], dim: int = 256) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.out_dim = dim
        self.linear = nn.Linear(math.prod(self.shape), dim)

    def forward(self, sets: Sets) -> Tensor:
        """Apply the layer to all items."""
        return self.linear(flat_quantities(sets, self.shape, self.linear.weight))
