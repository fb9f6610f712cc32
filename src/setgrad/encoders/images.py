"""The paper's item encoder for images: three convolutions, the largest value of each channel, a linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, pad

from setgrad.encoders._base import ItemEncoder, flat_quantities, item_shape
from setgrad.encoders.again import computed_again
from setgrad.errors import OptionError
from setgrad.sets import Sets

# Channels and kernel of each convolution, all with stride 2 and without padding, as published for CelebA.
_LAYERS = ((32, 3), (64, 4), (128, 5))
# The smallest side from which these layers leave one pixel.
_SMALLEST = 25
# Numbers that the first convolution may leave behind before the items are read in pieces: 512 MiB in float32.
_PIECE = 2**27


@final
class ImageItems(ItemEncoder):
    """A small convolutional network on each image `(channels, height, width)`, blind to the rest of its set.

    Images with a side below 25 pixels get a frame of zeros. Many images are read in pieces, which are computed again
    in the backward pass. To let images look at each other afterwards, see `Stacked`.

    Example:
        >>> phi = ImageItems((1, 28, 28), dim=16)
        >>> phi(Sets.from_lengths(torch.zeros(3, 1, 28, 28), [2, 0, 1])).shape
        torch.Size([3, 16])
    """

    def __init__(self, in_dim: int | Sequence[int], dim: int = 256) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        if len(self.shape) != 3:
            raise OptionError(f"images have shape (channels, height, width), but in_dim is {in_dim}; reshape the items")
        self.out_dim = dim
        channels, height, side = self.shape
        rows, columns = max(0, _SMALLEST - height), max(0, _SMALLEST - side)
        self.frame = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        self.chunk = max(1, 4 * _PIECE // (_LAYERS[0][0] * (height + rows) * (side + columns)))
        parts: list[nn.Module] = []
        for after, kernel in _LAYERS:
            parts += [nn.Conv2d(channels, after, kernel, stride=2), nn.ReLU()]
            channels = after
        self.layers = nn.Sequential(*parts)
        self.linear = nn.Linear(channels, dim)

    def forward(self, sets: Sets) -> Tensor:
        """Apply the network to all images."""
        pieces = flat_quantities(sets, self.shape, self.linear.weight).unflatten(1, self.shape).split(self.chunk)
        if len(pieces) == 1:
            return self._encode(pieces[0])
        return torch.cat([computed_again(self._encode, piece) for piece in pieces])

    def _encode(self, images: Tensor) -> Tensor:
        pixels = self.layers(pad(images, self.frame))
        return self.linear(adaptive_max_pool2d(pixels, 1).flatten(1))
