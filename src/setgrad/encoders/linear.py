"""An item encoder with one linear layer and no activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, flat_quantities, item_shape
from setgrad.sets import Sets


@final
class LinearItems(ItemEncoder):
    """A linear map of each item, as in Özcan et al., 2024 (arXiv:2412.11239) for the synthetic and the Amazon data.

    With it, F depends on a subset only through the sum of its raw features and, through the bias, its size.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Number of features to return.

    Examples:
        >>> LinearItems(2, dim=8)(Sets.from_list([[[0.0, 1.0]], []])).shape
        torch.Size([1, 8])
    """

    def __init__(self, in_dim: int | Sequence[int], dim: int = 256) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.out_dim = dim
        self.linear = nn.Linear(math.prod(self.shape), dim)

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all items, `(total, dim)`."""
        return self.linear(flat_quantities(sets, self.shape, self.linear.weight))
