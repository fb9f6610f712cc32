"""An item encoder for sets of any size: the context of an item is what slots gathered from its whole set, by UMBC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from setgrad.encoders._base import ItemEncoder, item_shape
from setgrad.encoders.attention import SelfAttention
from setgrad.encoders.deep_umbc import AttendToSlots
from setgrad.encoders.mlp import MLPItems
from setgrad.encoders.umbc import UMBC
from setgrad.sets import Sets


@final
class UMBCItems(ItemEncoder):
    """An item encoder with the own features of an item and a context of the whole set V, gathered by `UMBC`.

    Slots attend to the items of V in one pass and then to each other; every item attends to the slots. The gathering is
    a sum over the items (`context`, a `MergeableEncoder`), and given its result every item is encoded by itself
    (`describe`). So a set may be read in chunks of any partition, and its state may be merged, saved and updated.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Number of features to return.
        layers: Blocks of attention among the slots, and how often an item attends to them.
        heads: Number of attention heads.
        slots: Number of slots.

    Raises:
        OptionError: If `dim` is not a multiple of `heads`.

    Examples:
        >>> import torch
        >>> phi = UMBCItems(2, dim=16, slots=4)
        >>> sets = Sets.from_list([[[0.0, 1.0], [1.0, 0.0]], []])
        >>> phi(sets).shape
        torch.Size([2, 16])
        >>> state = phi.context.begin()
        >>> for chunk in ([[0.0, 1.0]], [[1.0, 0.0]]):
        ...     state = phi.context.update(state, Sets.from_list([chunk]))
        >>> last = phi.describe(Sets.from_list([[[1.0, 0.0]]]), phi.context.finish(state))
        >>> torch.allclose(last, phi(sets)[1:], atol=1e-6)
        True
    """

    itemwise = False

    def __init__(
        self, in_dim: int | Sequence[int], dim: int = 128, *, layers: int = 2, heads: int = 4, slots: int = 32
    ) -> None:
        super().__init__()
        self.shape, self.out_dim = item_shape(in_dim), dim
        head = SlotBlocks(dim, layers, heads)
        self.context = UMBC(in_dim, dim, slots, heads=heads, phi=MLPItems(in_dim, dim, layers=2), head=head)
        self.attend = nn.ModuleList(AttendToSlots(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, sets: Sets) -> Tensor:
        """Return the features of all items, `(total, dim)`."""
        return self.describe(sets, self.context(sets))

    def describe(self, sets: Sets, context: Tensor) -> Tensor:
        """Return the features of items `(total, dim)`, given what was gathered from their sets, `(b, slots, dim)`."""
        x = self.context.features(sets)
        for block in self.attend:
            x = block(sets.with_values(x), context)
        return self.norm(x)


@final
class SlotBlocks(nn.Module):
    """Blocks of self-attention among slots, as a head of UMBC."""

    def __init__(self, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(SelfAttention(dim, heads) for _ in range(layers))

    def forward(self, slots: Tensor) -> Tensor:
        """Return slots of the same shape, `(b, slots, dim)`."""
        for block in self.blocks:
            slots = block(slots, None)
        return slots
