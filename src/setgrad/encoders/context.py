"""The default item encoder: residual attention, so that the features of an item depend on the other items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad._linear import Linear
from setgrad.encoders._base import ItemEncoder, flat_quantities, item_shape
from setgrad.encoders.attention import attention_blocks
from setgrad.errors import OptionError
from setgrad.sets import Layout, Sets, unpad


@final
class ContextItems(ItemEncoder):
    """An item encoder with residual, normalised attention over the whole set V.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Number of features to return.
        layers: Number of attention blocks.
        heads: Number of attention heads.
        slots: Inducing slots of a block, with a cost that is linear in the size of the set; None for full
            self-attention.

    Raises:
        OptionError: If `dim` is not a multiple of `heads`.

    Examples:
        >>> phi = ContextItems(2, dim=16, slots=4)
        >>> phi(Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], []])).shape
        torch.Size([2, 16])
    """

    itemwise = False

    def __init__(
        self,
        in_dim: int | Sequence[int],
        dim: int = 128,
        *,
        layers: int = 2,
        heads: int = 4,
        slots: int | None = None,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise OptionError(f"dim must be a multiple of heads, but {dim} is not a multiple of {heads}")
        self.shape = item_shape(in_dim)
        self.out_dim = dim
        self.embed = Linear(math.prod(self.shape), dim)
        self.blocks = attention_blocks(layers, dim, heads, slots)
        self.norm = nn.LayerNorm(dim)

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all items, `(total, dim)`."""
        embedded = self.embed(flat_quantities(sets, self.shape, self.embed.weight))
        # Without the empty sets, every softmax has something to average.
        lengths = sets.layout.host_lengths
        filled = sets.layout if lengths.all() else Layout.from_lengths(lengths[lengths > 0], sets.device)
        if not filled.total:
            return self.norm(embedded)
        batch = Sets(embedded, filled)
        x, mask = batch.padded()
        for block in self.blocks:
            x = block(x, None if filled.uniform else mask)
        return self.norm(unpad(x, batch))
