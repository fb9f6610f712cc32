"""The slot set encoder (Bruno et al., 2021, arXiv:2103.01615): each item is divided among slots, which are summed.

The share of a slot is a sigmoid divided by the sum over the slots, so that it depends on one item only. The code is a
plain sum, without a normalisation over the set or a residual. The SSE in the code of Willette et al., 2023
(arXiv:2208.12401) divides by the total weight of the set as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import MergeableEncoder, SetEncoder, check_itemwise, expect_sums, sum_dtype
from setgrad.encoders._pooling import check_attention_sizes, item_encoder
from setgrad.encoders._slot_softmax import slot_logits
from setgrad.encoders._state import State
from setgrad.encoders.activations import SlotSigmoid
from setgrad.errors import OptionError
from setgrad.sets import Layout, Sets, segment_matmul, segment_sum


@final
class SSE(MergeableEncoder):
    """A set encoder that sums items into `slots` vectors of length `dim` (Bruno et al., 2021, arXiv:2103.01615).

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Length of a slot vector.
        slots: Number of slots.
        heads: Number of attention heads.
        random: Whether to draw all slots from one learned normal distribution, again for each batch while training. In
            evaluation they use noise that is fixed with the module: at the mean all slots would be equal.
        phi: Item encoder or module that encodes each item before attention; None for the raw features.
        head: Any module on `(b, slots, dim)`; None to return the slots.

    Raises:
        OptionError: If an option is out of range.

    Examples:
        >>> encoder = SSE(3, dim=8, slots=4)
        >>> encoder(Sets.from_list([torch.zeros(5, 3), torch.ones(2, 3)])).shape
        torch.Size([2, 4, 8])
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        dim: int = 128,
        slots: int = 16,
        *,
        heads: int = 1,
        random: bool = False,
        phi: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_attention_sizes(dim, heads, slots)
        self.shape, self.heads, self.activation, self.random = item_shape(in_dim), heads, SlotSigmoid(), random
        self.phi, self.count = item_encoder(phi, in_dim), slots
        check_itemwise(self.phi, "SSE")
        self.slots = nn.Parameter(torch.randn(1 if random else slots, dim) * dim**-0.5)
        # Softplus of this is the standard deviation; it starts at the one of slots that are not random.
        self.spread = nn.Parameter(torch.full((1, dim), math.log(math.expm1(dim**-0.5)))) if random else None
        self.noise: Tensor | None
        self.register_buffer("noise", torch.randn(slots, dim) if random else None)
        self.norm_slots, self.ask = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.read_items = nn.Linear(self.phi.out_dim, 2 * dim)
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> Tensor:
        """Return the projected slots, `(slots, dim)`."""
        slots: Tensor = self.slots
        if self.spread is not None and self.noise is not None:
            noise = self.noise
            if self.training:
                noise = torch.randn(noise.shape, generator=generator, device=noise.device, dtype=noise.dtype)
            slots = slots + nn.functional.softplus(self.spread) * noise
        return self.ask(self.norm_slots(slots))

    def read(self, chunk: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Return the sums of the shares of the items for every slot."""
        if queries is None:
            raise OptionError("SSE reads with slots; start with encoder.begin()")
        logits, values = slot_logits(self.read_items(self.features(chunk)), queries, self.heads)
        dtype = sum_dtype(values.dtype)
        counts = counts.to(dtype)
        shares = self.activation(logits).to(dtype).exp() * counts[:, None, None]
        totals = [segment_matmul(shares[:, h].T, values[:, h].to(dtype), chunk) for h in range(self.heads)]
        # Each is (slots, b, dim / heads); the state has (b, slots, dim).
        return State((torch.cat(totals, -1).transpose(0, 1),), None, segment_sum(counts, chunk), queries)

    def finish(self, state: State) -> Tensor:
        """Return the sums of a state, `(b, slots, dim)`, or the output of the head."""
        (total,) = expect_sums(state, (self.count, self.slots.shape[1]))
        out = total.to(self.ask.weight.dtype)
        return out if self.head is None else self.head(out)


@final
class OnSlots(nn.Module):
    """A set encoder as a head: the slots are the items of its sets.

    Args:
        encoder: The set encoder. It must not draw random slots: the state keeps only the slots that items were compared
            with, so that every `finish` and every rank would draw others.

    Raises:
        OptionError: If the encoder draws random slots.

    Examples:
        >>> second = OnSlots(SSE(8, dim=6, slots=2))
        >>> SSE(3, dim=8, slots=4, head=second)(Sets.from_list([torch.zeros(5, 3)])).shape
        torch.Size([1, 2, 6])
    """

    def __init__(self, encoder: SetEncoder) -> None:
        super().__init__()
        if any(isinstance(part, MergeableEncoder) and part.random for part in encoder.modules()):
            raise OptionError(
                f"the random slots of {type(encoder).__name__} are not part of the state, so that every finish and "
                "every rank would draw others; use random=False above the first level"
            )
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """Return the codes of the encoder for slots `(b, slots, dim)`."""
        return self.encoder(Sets(x.flatten(0, 1), Layout.from_equal_lengths(len(x), x.shape[1], x.device)))


def hierarchical_sse(
    in_dim: int | Sequence[int],
    levels: Sequence[tuple[int, int]],
    *,
    heads: int = 1,
    random: bool = False,
    phi: nn.Module | None = None,
    head: nn.Module | None = None,
) -> SSE:
    """Return a stack of slot set encoders: each level but the first reads the slots of the level below.

    Sets may be read in chunks because the state belongs to the first level, which is a sum over items. The levels above
    are not sums over items: states of chunks can be merged, their codes cannot.

    Args:
        in_dim: Number of features of an item, or its shape.
        levels: `(slots, dim)` of each level, first level first.
        heads: Number of attention heads of every level.
        random: Whether the slots of the first level, which are part of the state, are drawn at random.
        phi: Item encoder or module that encodes each item before attention; None for the raw features.
        head: Any module on the slots of the last level; None to return them.

    Raises:
        OptionError: If there is no level.

    Examples:
        >>> encoder = hierarchical_sse(3, [(16, 8), (4, 8), (1, 8)])
        >>> encoder(Sets.from_list([torch.zeros(5, 3)])).shape
        torch.Size([1, 1, 8])
    """
    if not levels:
        raise OptionError("a hierarchy needs at least one level (slots, dim)")
    for number in range(len(levels) - 1, 0, -1):
        slots, dim = levels[number]
        head = OnSlots(SSE(levels[number - 1][1], dim, slots, heads=heads, head=head))
    slots, dim = levels[0]
    return SSE(in_dim, dim, slots, heads=heads, random=random, phi=phi, head=head)
