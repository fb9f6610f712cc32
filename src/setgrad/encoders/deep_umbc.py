"""UMBC in several passes: the slots gather a set, the items look at the slots, and the slots gather again.

One pass asks every set the same questions, and an item answers without knowing the others. Here the slots look at each
other after a pass; then every item looks at the slots, which is how items of a set look at each other in linear time;
and then the slots ask again, each with a question of its own. Every pass is a sum over items given the slots of the
earlier ones, so that a set may be read in pieces of any partition, once for each pass. The code is not a function of
one sum, and this is no mergeable encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import ChunkedEncoder, require_itemwise, wide
from setgrad.encoders._passes import Passes
from setgrad.encoders._pooling import item_encoder, require_sizes
from setgrad.encoders._state import State
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.encoders.attention import FeedForward, SelfAttention, attend, join, split
from setgrad.encoders.umbc import gathered, joined
from setgrad.errors import OptionError, unknown_name
from setgrad.sets import Sets, unpad

# How much sharper questions begin than torch's usual weights make them. Where all slots weigh all items alike, they
# gather the same mean, and training takes long to tell them apart.
_SHARP = 2.0


@final
class DeepUMBC(ChunkedEncoder):
    """Reads sets of any size, whole or in pieces, into `slots` vectors of `dim` numbers each, then applies the head.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Width inside.
        slots: How many there are.
        passes: How often the slots ask; a stream is read as often, and once more for each in the backward pass.
        layers: Blocks of self-attention among the slots after each pass.
        heads: Attention heads.
        activation: "softmax", "sigmoid", "slot-sigmoid", "slot-softmax" or "slot-exp", divided by its sum over the set.
        phi: What is seen of an item before attention: an item-wise encoder or module; None for the item itself.
        head: Any module on `(b, slots, dim)`; None to return the slots.

    Example:
        >>> encoder = DeepUMBC(3, dim=8, slots=4, passes=2)
        >>> sets = Sets.from_list([torch.zeros(5, 3), torch.ones(2, 3)])
        >>> encoder(sets).shape
        torch.Size([2, 4, 8])
        >>> torch.allclose(encoder.stream(sets, chunk_size=2), encoder(sets), atol=1e-5)
        True
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        dim: int = 128,
        slots: int = 32,
        *,
        passes: int = 3,
        layers: int = 1,
        heads: int = 4,
        activation: str = "softmax",
        phi: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        require_sizes(dim, heads, slots)
        if passes < 1 or layers < 0:
            raise OptionError(f"passes must be at least 1 and layers at least 0, not {passes} and {layers}")
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        require_itemwise(self.phi, "DeepUMBC")
        self.embed = nn.Linear(self.phi.out_dim, dim)
        self.slots = nn.Parameter(torch.randn(slots, dim))
        self.gather = nn.ModuleList(Gather(dim, layers, heads, activation) for _ in range(passes))
        self.tell = nn.ModuleList(Tell(dim, heads) for _ in range(passes - 1))
        self.norm = nn.LayerNorm(dim)
        self.head = head

    def encode(self, passes: Passes) -> Tensor:
        """Gather; then as often as there is something to tell, tell the items and gather again."""
        passes, slots = passes.through(self._embedded), self.slots
        for number in range(len(self.gather)):
            if number:
                passes = passes.told(self.tell[number - 1], slots)
            slots = self.gather[number](passes, slots)
        out = self.norm(slots)
        return out if self.head is None else self.head(out)

    def _embedded(self, sets: Sets) -> Tensor:
        return self.embed(self.features(sets))


@final
class Gather(nn.Module):
    """The slots ask, the items answer, and the slots look at each other's answers."""

    def __init__(self, dim: int, layers: int, heads: int, activation: str) -> None:
        super().__init__()
        self.heads, self.activation = heads, ACTIVATIONS[activation]
        ask = nn.Linear(dim, dim)
        with torch.no_grad():
            ask.weight.mul_(_SHARP)
        self.ask = nn.Sequential(nn.LayerNorm(dim), ask)
        self.read_items = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim))
        self.out = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(SelfAttention(dim, heads) for _ in range(layers))

    def forward(self, passes: Passes, slots: Tensor) -> Tensor:
        """One pass: the slots `(b, slots, dim)` after what they gathered."""
        state = passes.sums(self.read, self.ask(slots))
        slots = slots + self.out(joined(*state.sums).to(slots.dtype))
        for block in self.blocks:
            slots = block(slots, None)
        return slots

    def read(self, items: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Weigh the items for every slot and sum them up. Queries are `(slots, dim)`, or `(b, slots, dim)`."""
        if queries is None:
            raise OptionError("items are asked by slots; give them")
        keys, values = (part.unflatten(-1, (self.heads, -1)) for part in self.read_items(items.values).chunk(2, -1))
        asked = queries.unflatten(-1, (self.heads, -1)) * keys.shape[-1] ** -0.5
        if asked.dim() == 3:
            logits = torch.einsum("thd,khd->thk", keys, asked)
        else:
            padded, _ = items.with_values(keys).padded()
            logits = unpad(torch.einsum("bnhd,bkhd->bnhk", padded, asked), items)
        kind = wide(values.dtype)
        return gathered(self.activation(logits).to(kind), values.to(kind), items, weights, level, queries)


@final
class Tell(nn.Module):
    """Every item looks at the slots of its set, then changes on its own."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim))
        self.read_slots = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim))
        self.out, self.feed = nn.Linear(dim, dim), FeedForward(dim)

    def forward(self, items: Sets, slots: Tensor) -> Tensor:
        """Items `(total, dim)` that know the slots `(b, slots, dim)`."""
        asked, _ = items.with_values(self.ask(items.values)).padded()
        keys, values = (split(part, self.heads) for part in self.read_slots(slots).chunk(2, -1))
        answers = unpad(join(attend(split(asked, self.heads), keys, values, None)), items)
        return self.feed(items.values + self.out(answers))
