"""The default item encoder for images: a convolutional network plus a linear map of the pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, flat_quantities
from setgrad.encoders.images import ImageItems
from setgrad.sets import Sets


@final
class PixelCNNItems(ItemEncoder):
    """The network of `ImageItems` plus a linear map of all pixels, on each image `(channels, height, width)`.

    The network keeps the largest value of each channel and loses its position, which suits content that moves, such as
    handwriting. The linear map knows every position: it suits aligned images, such as faces, and learns from few.

    Args:
        in_dim: Shape of an image, `(channels, height, width)`.
        dim: Number of features to return.

    Examples:
        >>> import torch
        >>> phi = PixelCNNItems((1, 28, 28), dim=16)
        >>> phi(Sets.from_lengths(torch.zeros(3, 1, 28, 28), [2, 0, 1])).shape
        torch.Size([3, 16])
    """

    def __init__(self, in_dim: int | Sequence[int], dim: int = 256) -> None:
        super().__init__()
        self.network = ImageItems(in_dim, dim)
        self.shape, self.out_dim = self.network.shape, dim
        self.pixels = nn.Linear(math.prod(self.shape), dim)

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all images, `(total, dim)`: the sum of both parts."""
        return self.network(sets) + self.pixels(flat_quantities(sets, self.shape, self.pixels.weight))
