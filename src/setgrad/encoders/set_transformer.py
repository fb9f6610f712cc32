"""The Set Transformer (Lee et al., 2019, arXiv:1810.00825): attention among items, pooling by seeds, attention again.

Padding is masked in every step, whatever it holds. For an empty set, the seeds gather nothing.
The blocks are those of `attention.py`, which normalise before they attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._mergeable import SetEncoder, counted_items, log_counts
from setgrad.encoders._pooling import check_attention_sizes, item_encoder, item_features
from setgrad.encoders.attention import FeedForward, SelfAttention, attend, attention_blocks, join, split
from setgrad.sets import Sets


@final
class AttentionPool(nn.Module):
    """Pooling by multi-head attention: `outputs` learned seeds attend to the items of a set.

    Examples:
        >>> AttentionPool(8, outputs=2, heads=4)(torch.zeros(3, 5, 8), None, None).shape
        torch.Size([3, 2, 8])
    """

    def __init__(self, dim: int, *, outputs: int = 1, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.seeds = nn.Parameter(torch.randn(outputs, dim) * dim**-0.5)
        self.feed_items, self.norm_items = FeedForward(dim), nn.LayerNorm(dim)
        self.norm_seeds, self.ask = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.read_items, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.feed = FeedForward(dim)

    def forward(self, x: Tensor, mask: Tensor | None, nonempty: Tensor | None) -> Tensor:
        """Return seeds `(b, outputs, dim)` that attended to items `(b, n, dim)`, masked as for blocks.

        The seeds of sets for which `nonempty` `(b, 1)` is false gather nothing.
        """
        queries = self.ask(self.norm_seeds(self.seeds)).expand(x.shape[0], -1, -1)
        projected = self.read_items(self.norm_items(self.feed_items(x)))
        q, k, v = (split(part, self.heads) for part in (queries, *projected.chunk(2, -1)))
        gathered = attend(q, k, v, None if mask is None else mask[:, None, None])
        if nonempty is not None:
            gathered = torch.where(nonempty[..., None, None], gathered, 0.0)
        return self.feed(self.seeds + self.out(join(gathered)))


@final
class TransformerHead(nn.Module):
    """The Set Transformer on vectors: a head for the slots of UMBC, from `(b, slots, dim)` to `(b, outputs, dim)`.

    Args:
        dim: Length of the vectors.
        outputs: Number of seeds that pool them.
        layers: Blocks before the pooling.
        decode: Blocks of self-attention among the seeds.
        heads: Number of attention heads.
        slots: Inducing slots of the blocks before the pooling, with linear cost; None for full attention.

    Raises:
        OptionError: If an option is out of range.

    Examples:
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
        check_attention_sizes(dim, heads, outputs, "outputs")
        self.blocks = attention_blocks(layers, dim, heads, slots)
        self.seeds = AttentionPool(dim, outputs=outputs, heads=heads)
        self.decoder = nn.ModuleList(SelfAttention(dim, heads) for _ in range(decode))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return codes `(b, outputs, dim)` of vectors `(b, n, dim)`.

        `mask` `(b, n)` is true for real vectors, or holds the logarithms of their counts, -inf for padding.
        """
        if not x.shape[1]:
            x = x.new_zeros(x.shape[0], 1, x.shape[2])
            mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        nonempty = None
        if mask is not None:
            real = mask if mask.dtype == torch.bool else mask > -torch.inf
            # Padding may hold anything, even NaN, which stays NaN times 0.
            x, nonempty = torch.where(real[..., None], x, 0.0), real.any(1, keepdim=True)
            # An empty set attends to its padding, or the softmax would be NaN: 1 is true, or an equal weight for all.
            mask = mask.masked_fill(~nonempty, 1)
        for block in self.blocks:
            x = block(x, mask)
        x = self.seeds(x, mask, nonempty)
        for block in self.decoder:
            x = block(x, None)
        return self.norm(x)


@final
class SetTransformer(SetEncoder):
    """A set encoder with attention over whole sets of any size (Lee et al., 2019, arXiv:1810.00825).

    It cannot read a set in chunks. `TransformerHead` as the head of UMBC can, and `DeepUMBC` is similar.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Length of the vectors.
        outputs: Number of vectors of a code.
        layers: Blocks before the pooling.
        decode: Blocks of self-attention among the seeds.
        heads: Number of attention heads.
        slots: Inducing slots of the blocks (ISAB); None for full attention (SAB).
        phi: Item encoder or module that encodes each item; None for the raw features.
        head: Any module on `(b, outputs, dim)`; None to return that.

    Raises:
        OptionError: If an option is out of range.

    Examples:
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
        self.phi = item_encoder(phi, in_dim)
        self.embed = nn.Linear(self.phi.out_dim, dim)
        self.attend = TransformerHead(dim, outputs=outputs, layers=layers, decode=decode, heads=heads, slots=slots)
        self.head = head

    def forward(self, sets: Sets, counts: Tensor | None = None) -> Tensor:
        """Return codes `(b, outputs, dim)`, or the output of the head.

        `counts` `(total,)` is how often each item counts; 1 if None.
        """
        sets, item_counts = counted_items(sets, counts, self.phi)
        x, real = sets.with_values(self.embed(item_features(self.phi, sets, self.embed.weight))).padded()
        mask = None if sets.layout.uniform else real
        if counts is not None:
            mask, _ = sets.with_values(log_counts(item_counts, x.dtype)).padded(fill=-torch.inf)
        out = self.attend(x, mask)
        return out if self.head is None else self.head(out)
