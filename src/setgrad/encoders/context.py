"""The default item encoder: residual attention, so that an item's features depend on what else is on offer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, flat_quantities, item_shape
from setgrad.encoders.attention import InducedAttention, SelfAttention
from setgrad.errors import OptionError
from setgrad.sets import Layout, Sets, unpad


@final
class ContextItems(ItemEncoder):
    """Attention over the whole set V, normalised and residual.

    `slots=None` uses full self-attention; a number uses that many inducing slots, and cost grows linearly with the
    size of the set.

    Example:
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
        self.embed = nn.Linear(math.prod(self.shape), dim)
        self.blocks = nn.ModuleList(
            SelfAttention(dim, heads) if slots is None else InducedAttention(dim, heads, slots) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, sets: Sets) -> Tensor:
        """Embed the items, let them look at each other, and normalise."""
        embedded = self.embed(flat_quantities(sets, self.shape, self.embed.weight))
        # Empty sets have no items and no features; without them every softmax has something to average.
        lengths = sets.layout.host_lengths
        filled = sets.layout if lengths.all() else Layout.from_lengths(lengths[lengths > 0], sets.device)
        if not filled.total:
            return self.norm(embedded)
        batch = Sets(embedded, filled)
        x, mask = batch.padded()
        for block in self.blocks:
            x = block(x, None if filled.uniform else mask)
        return self.norm(unpad(x, batch))
