"""The slot set encoder (Bruno et al., 2021): every item is shared out among slots, and the shares are summed.

A share is a sigmoid divided by the sum over the slots, so that it depends on one item alone; the code is a plain sum,
with neither a normalisation over the set nor a residual. What paper 001's code calls SSE divides by the weight of the
set, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import MergeableEncoder, SetEncoder, counted, require_itemwise, sums_of, wide
from setgrad.encoders._pooling import item_encoder, require_sizes
from setgrad.encoders._state import State
from setgrad.encoders.activations import SlotSigmoid
from setgrad.errors import OptionError
from setgrad.sets import Layout, Sets, segment_matmul


@final
class SSE(MergeableEncoder):
    """Sums of items in `slots` vectors of `dim` numbers each, then the head.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Width of the slots.
        slots: How many there are.
        heads: Attention heads.
        random: Draw all slots from one learned normal distribution, anew for each batch while training. In evaluation
            they are drawn from noise that is fixed with the module: at their mean all slots would be the same.
        phi: What is seen of an item before attention: an item-wise encoder or module; None for the item itself.
        head: Any module on `(b, slots, dim)`; None to return the slots.

    Example:
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
        require_sizes(dim, heads, slots)
        self.shape, self.heads, self.share, self.random = item_shape(in_dim), heads, SlotSigmoid(), random
        self.phi, self.count = item_encoder(phi, in_dim), slots
        require_itemwise(self.phi, "SSE")
        self.slots = nn.Parameter(torch.randn(1 if random else slots, dim) * dim**-0.5)
        # Softplus of this is the deviation; it starts at the scale that slots without chance have.
        self.spread = nn.Parameter(torch.full((1, dim), math.log(math.expm1(dim**-0.5)))) if random else None
        self.noise: Tensor | None
        self.register_buffer("noise", torch.randn(slots, dim) if random else None)
        self.norm_slots, self.ask = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.read_items = nn.Linear(self.phi.out_dim, 2 * dim)
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> Tensor:
        """The projected slots, `(slots, dim)`."""
        slots: Tensor = self.slots
        if self.spread is not None and self.noise is not None:
            noise = self.noise
            if self.training:
                noise = torch.randn(noise.shape, generator=generator, device=noise.device, dtype=noise.dtype)
            slots = slots + nn.functional.softplus(self.spread) * noise
        return self.ask(self.norm_slots(slots))

    def read(self, chunk: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Share the items out among the slots and sum them up."""
        if queries is None:
            raise OptionError("SSE reads with slots; start from encoder.begin()")
        features = self.read_items(self.features(chunk))
        keys, values = (part.unflatten(-1, (self.heads, -1)) for part in features.chunk(2, -1))
        asked = queries.unflatten(-1, (self.heads, -1)) * keys.shape[-1] ** -0.5
        kind = wide(values.dtype)
        shares = self.share(torch.einsum("thd,khd->thk", keys, asked)).to(kind).exp() * weights.to(kind)[:, None, None]
        totals = [segment_matmul(shares[:, h].T, values[:, h].to(kind), chunk) for h in range(self.heads)]
        # Each (slots, b, width of a head); the state has (b, slots, dim).
        return State((torch.cat(totals, -1).transpose(0, 1),), None, counted(chunk, weights, kind), queries)

    def finish(self, state: State) -> Tensor:
        """The sums themselves, and the head."""
        (total,) = sums_of(state, (self.count, self.slots.shape[1]))
        out = total.to(self.ask.weight.dtype)
        return out if self.head is None else self.head(out)


@final
class OnSlots(nn.Module):
    """Any set encoder as a head: the slots are the items of its sets.

    Not one that draws its slots (`random=True`): a state holds those that items were compared with, and no others, so
    that every `finish` and every rank would draw its own.

    Example:
        >>> second = OnSlots(SSE(8, dim=6, slots=2))
        >>> SSE(3, dim=8, slots=4, head=second)(Sets.from_list([torch.zeros(5, 3)])).shape
        torch.Size([1, 2, 6])
    """

    def __init__(self, encoder: SetEncoder) -> None:
        super().__init__()
        if any(isinstance(part, MergeableEncoder) and part.random for part in encoder.modules()):
            raise OptionError(
                f"slots that {type(encoder).__name__} draws above the first level belong to no state, and would be "
                "others at every finish and on every rank; use random=False there"
            )
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """From `(b, slots, dim)` to the codes of the encoder."""
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
    """Slot set encoders one on top of the other: each level but the first reads the slots of the one below.

    A level is `(slots, dim)`. Sets may be read in pieces because the state is that of the first level, which is a sum
    over items. The levels above are no sums over items: codes of pieces cannot be put together, states can. In
    particular the whole is merged first, and then the levels above read the slots of the whole once. With `random` the
    slots of the first level are drawn, which travel with the state; those above are learned as they are.

    Example:
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
