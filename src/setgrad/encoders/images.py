"""The item encoder for images of Özcan et al., 2024 (arXiv:2412.11239): convolutions, max pooling, a linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, pad

from setgrad.encoders._base import ItemEncoder, flat_quantities, item_shape
from setgrad.encoders._checkpoint import checkpointed
from setgrad.errors import OptionError
from setgrad.sets import Sets

# Channels and kernel of each convolution, all with stride 2 and without padding, as published for CelebA.
_LAYERS = ((32, 3), (64, 4), (128, 5))
# The smallest side of an image for which these layers leave one pixel.
_MIN_SIDE = 25
# Outputs of the first convolution that are kept at a time: 512 MiB in float32.
_MAX_OUTPUTS = 2**27


@final
class ImageItems(ItemEncoder):
    """A small convolutional network on each image, independent of the other images of its set.

    Images with a side below 25 pixels are padded with zeros. Many images are read in chunks, which are computed again
    in the backward pass. To let images attend to each other afterwards, see `Stacked`.

    Args:
        in_dim: Shape of an image, `(channels, height, width)`.
        dim: Number of features to return.

    Raises:
        OptionError: If `in_dim` is not the shape of an image.

    Examples:
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
        channels, height, width = self.shape
        rows, columns = max(0, _MIN_SIDE - height), max(0, _MIN_SIDE - width)
        self.padding = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        self.chunk = max(1, 4 * _MAX_OUTPUTS // (_LAYERS[0][0] * (height + rows) * (width + columns)))
        parts: list[nn.Module] = []
        for out_channels, kernel in _LAYERS:
            parts += [nn.Conv2d(channels, out_channels, kernel, stride=2), nn.ReLU()]
            channels = out_channels
        self.layers = nn.Sequential(*parts)
        self.linear = nn.Linear(channels, dim)

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all images, `(total, dim)`."""
        chunks = flat_quantities(sets, self.shape, self.linear.weight).unflatten(1, self.shape).split(self.chunk)
        if len(chunks) == 1:
            return self._encode(chunks[0])
        return torch.cat([checkpointed(self._encode, chunk) for chunk in chunks])

    def _encode(self, images: Tensor) -> Tensor:
        pixels = self.layers(pad(images, self.padding))
        return self.linear(adaptive_max_pool2d(pixels, 1).flatten(1))
