"""UMBC in several passes: the slots gather a set, the items attend to the slots, and the slots gather again.

In a single pass, all sets are read with the same queries, and an item is encoded without knowing the others. Here the
slots attend to each other after a pass; then every item attends to the slots, which is how items of a set exchange
information in linear time; and then the slots gather again, with queries that depend on the set. Given the slots of the
earlier passes, every pass is a sum over items, so that a set may be read in chunks of any partition, once for each
pass. The code is not a function of a single sum, so this is not a mergeable encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad._deprecation import deprecated_string
from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import ChunkedEncoder, check_itemwise, sum_dtype
from setgrad.encoders._passes import Passes
from setgrad.encoders._pooling import check_attention_sizes, item_encoder
from setgrad.encoders._slot_softmax import join_heads
from setgrad.encoders._state import State
from setgrad.encoders.activations import ACTIVATIONS, Activation, Softmax, check_activation
from setgrad.encoders.attention import FeedForward, SelfAttention, attend, join, split
from setgrad.encoders.umbc import slot_sums
from setgrad.errors import OptionError
from setgrad.sets import Sets, unpad

# Factor on torch's usual initial weights of the queries. If all slots weigh all items alike, they gather the same mean,
# and training takes long to separate them.
_QUERY_SCALE = 2.0


@final
class DeepUMBC(ChunkedEncoder):
    """A set encoder that reads sets in several passes, whole or in chunks, into `slots` vectors of length `dim`.

    The slots gather a set, the items attend to the slots, and the slots gather again, with queries that depend on the
    set. The code is not a function of one sum, so states cannot be merged.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Length of the vectors of slots and items.
        slots: Number of slots.
        passes: How often the slots gather the items. A stream is read as often, and once more for each pass in the
            backward pass.
        layers: Blocks of self-attention among the slots after each pass.
        heads: Number of attention heads.
        activation: How logits become attention weights, which are divided by their sum over the set: `Softmax()`,
            `Sigmoid()`, `SlotSigmoid()`, `SlotSoftmax()` or `SlotExp()`.
        phi: Item encoder or module that encodes each item before attention; None for the raw features.
        head: Any module on `(b, slots, dim)`; None to return the slots.

    Raises:
        OptionError: If an option is unknown or out of range.

    Examples:
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
        activation: Activation | str = Softmax(),  # noqa: B008 -- a frozen value
        phi: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_attention_sizes(dim, heads, slots)
        if passes < 1 or layers < 0:
            raise OptionError(f"passes must be at least 1 and layers at least 0, not {passes} and {layers}")
        activation = deprecated_string("activation", activation, ACTIVATIONS, removed_in="0.3.0")
        check_activation(activation)
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        check_itemwise(self.phi, "DeepUMBC")
        self.embed = nn.Linear(self.phi.out_dim, dim)
        self.slots = nn.Parameter(torch.randn(slots, dim))
        self.gather = nn.ModuleList(GatherItems(dim, layers, heads, activation) for _ in range(passes))
        self.tell = nn.ModuleList(AttendToSlots(dim, heads) for _ in range(passes - 1))
        self.norm = nn.LayerNorm(dim)
        self.head = head

    def encode(self, passes: Passes) -> Tensor:
        """Return the slots `(b, slots, dim)` after all passes, or the output of the head."""
        passes, slots = passes.map(self._embed), self.slots
        for number in range(len(self.gather)):
            if number:
                passes = passes.condition(self.tell[number - 1], slots)
            slots = self.gather[number](passes, slots)
        out = self.norm(slots)
        return out if self.head is None else self.head(out)

    def _embed(self, sets: Sets) -> Tensor:
        return self.embed(self.features(sets))


@final
class GatherItems(nn.Module):
    """One pass: the slots attend to the items, then to each other."""

    def __init__(self, dim: int, layers: int, heads: int, activation: Activation) -> None:
        super().__init__()
        self.heads, self.activation = heads, activation
        ask = nn.Linear(dim, dim)
        with torch.no_grad():
            ask.weight.mul_(_QUERY_SCALE)
        self.ask = nn.Sequential(nn.LayerNorm(dim), ask)
        self.read_items = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim))
        self.out = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(SelfAttention(dim, heads) for _ in range(layers))

    def forward(self, passes: Passes, slots: Tensor) -> Tensor:
        """Return the slots `(b, slots, dim)` after the pass."""
        state = passes.sums(self.read, self.ask(slots))
        slots = slots + self.out(join_heads(*state.sums).to(slots.dtype))
        for block in self.blocks:
            slots = block(slots, None)
        return slots

    def read(self, items: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Return the weighted sums of the items. Queries are `(slots, dim)`, or `(b, slots, dim)`."""
        if queries is None:
            raise OptionError("the slots attend to items with queries; pass them")
        keys, values = (part.unflatten(-1, (self.heads, -1)) for part in self.read_items(items.values).chunk(2, -1))
        scaled = queries.unflatten(-1, (self.heads, -1)) * keys.shape[-1] ** -0.5
        if scaled.dim() == 3:
            logits = torch.einsum("thd,khd->thk", keys, scaled)
        else:
            padded, _ = items.with_values(keys).padded()
            logits = unpad(torch.einsum("bnhd,bkhd->bnhk", padded, scaled), items)
        dtype = sum_dtype(values.dtype)
        return slot_sums(self.activation(logits).to(dtype), values.to(dtype), items, counts, level, queries)


@final
class AttendToSlots(nn.Module):
    """Between two passes: every item attends to the slots of its set, followed by a feed-forward layer."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim))
        self.read_slots = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim))
        self.out, self.feed = nn.Linear(dim, dim), FeedForward(dim)

    def forward(self, items: Sets, slots: Tensor) -> Tensor:
        """Return the items `(total, dim)` after attention to the slots `(b, slots, dim)`."""
        queries, _ = items.with_values(self.ask(items.values)).padded()
        keys, values = (split(part, self.heads) for part in self.read_slots(slots).chunk(2, -1))
        answers = unpad(join(attend(split(queries, self.heads), keys, values, None)), items)
        return self.feed(items.values + self.out(answers))
