"""The Set Transformer (Lee et al., 2019): items look at each other, a few seeds gather them, and look at each other.

Padding is masked in every step, whatever it holds, and a set without items has a code: seeds that gathered nothing.
The blocks are this room's own, which normalise before they attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import SetEncoder, log_weights, weighed_items
from setgrad.encoders._pooling import item_encoder, item_features, require_sizes
from setgrad.encoders.attention import FeedForward, InducedAttention, SelfAttention, attend, join, split
from setgrad.sets import Sets


@final
class Seeds(nn.Module):
    """Pooling by attention: `outputs` learned seeds gather the items of a set.

    Example:
        >>> Seeds(8, outputs=2, heads=4)(torch.zeros(3, 5, 8), None, None).shape
        torch.Size([3, 2, 8])
    """

    def __init__(self, width: int, *, outputs: int = 1, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.seeds = nn.Parameter(torch.randn(outputs, width) * width**-0.5)
        self.feed_items, self.norm_items = FeedForward(width), nn.LayerNorm(width)
        self.norm_seeds, self.ask = nn.LayerNorm(width), nn.Linear(width, width)
        self.read_items, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.feed = FeedForward(width)

    def forward(self, x: Tensor, seen: Tensor | None, some: Tensor | None) -> Tensor:
        """From items `(b, n, width)`, masked as for blocks, to `(b, outputs, width)`.

        Sets of which `some` `(b, 1)` is false have no items: their seeds gather nothing.
        """
        asked = self.ask(self.norm_seeds(self.seeds)).expand(x.shape[0], -1, -1)
        read = self.read_items(self.norm_items(self.feed_items(x)))
        q, k, v = (split(part, self.heads) for part in (asked, *read.chunk(2, -1)))
        gathered = attend(q, k, v, None if seen is None else seen[:, None, None])
        if some is not None:
            gathered = torch.where(some[..., None, None], gathered, 0.0)
        return self.feed(self.seeds + self.out(join(gathered)))


@final
class TransformerHead(nn.Module):
    """The Set Transformer from vectors on: a head for the slots of UMBC, `(b, slots, dim)` to `(b, outputs, dim)`.

    Args:
        dim: Width of the vectors.
        outputs: Seeds that gather them.
        layers: Blocks before the seeds.
        decode: Blocks of self-attention among the seeds.
        heads: Attention heads.
        slots: Inducing slots of the blocks before the seeds, whose cost is then linear; None for full attention.

    Example:
        >>> from setgrad.encoders import UMBC
        >>> encoder = UMBC(3, dim=8, slots=4, head=TransformerHead(8, outputs=2))
        >>> encoder(Sets.from_list([torch.zeros(5, 3)])).shape
        torch.Size([1, 2, 8])
    """

    def __init__(
        self,
        dim: int,
        *,
        outputs: int = 1,
        layers: int = 2,
        decode: int = 1,
        heads: int = 4,
        slots: int | None = None,
    ) -> None:
        super().__init__()
        require_sizes(dim, heads, outputs, "outputs")
        self.blocks = nn.ModuleList(
            SelfAttention(dim, heads) if slots is None else InducedAttention(dim, heads, slots) for _ in range(layers)
        )
        self.seeds = Seeds(dim, outputs=outputs, heads=heads)
        self.decoder = nn.ModuleList(SelfAttention(dim, heads) for _ in range(decode))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Codes `(b, outputs, dim)` of `(b, n, dim)`.

        `mask` `(b, n)` is true where an item is real, or the logarithm of how often it counts, -inf where it is not.
        """
        if not x.shape[1]:
            x = x.new_zeros(x.shape[0], 1, x.shape[2])
            mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        seen = some = None
        if mask is not None:
            real = mask if mask.dtype == torch.bool else mask > -torch.inf
            # Padding may hold anything, even NaN, which 0 times would not make 0.
            x, some = torch.where(real[..., None], x, 0.0), real.any(1, keepdim=True)
            # A set without items attends to its padding, or the softmax would be NaN: 1 is true, or one weight for all.
            seen = mask.masked_fill(~some, 1)
        for block in self.blocks:
            x = block(x, seen)
        x = self.seeds(x, seen, some)
        for block in self.decoder:
            x = block(x, None)
        return self.norm(x)


@final
class SetTransformer(SetEncoder):
    """Attention over whole sets of any size. It cannot read a set in pieces; as the head of UMBC it can.

    `DeepUMBC` is its nearest kin that reads a set in pieces.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Width inside.
        outputs: Vectors of a code.
        layers: Blocks before the seeds.
        decode: Blocks of self-attention among the seeds.
        heads: Attention heads.
        slots: Inducing slots of the blocks (ISAB); None for full attention (SAB).
        phi: What is seen of an item; None for the item itself.
        head: Any module on `(b, outputs, dim)`; None to return that.

    Example:
        >>> encoder = SetTransformer(3, dim=8, outputs=2, slots=4)
        >>> encoder(Sets.from_list([torch.zeros(5, 3), torch.zeros(0, 3)])).shape
        torch.Size([2, 2, 8])
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        dim: int = 128,
        *,
        outputs: int = 1,
        layers: int = 2,
        decode: int = 1,
        heads: int = 4,
        slots: int | None = None,
        phi: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        self.embed = nn.Linear(self.phi.out_dim, dim)
        self.attend = TransformerHead(dim, outputs=outputs, layers=layers, decode=decode, heads=heads, slots=slots)
        self.head = head

    def forward(self, sets: Sets, weights: Tensor | None = None) -> Tensor:
        """Codes `(b, outputs, dim)`, or what the head makes of them. `weights` `(total,)`: how often an item counts."""
        sets, counts = weighed_items(sets, weights, self.phi)
        features = item_features(self.phi, sets, self.shape, self.embed.weight)
        x, real = sets.with_values(self.embed(features)).padded()
        mask = None if sets.layout.uniform else real
        if weights is not None:
            mask, _ = sets.with_values(log_weights(counts, x.dtype)).padded(fill=-torch.inf)
        out = self.attend(x, mask)
        return out if self.head is None else self.head(out)
