"""UMBC: slots attend to the items of a set, which may come in pieces of any partition (paper 001).

The published code bounds exponents at 10, which changes the function; here sums of weights are kept relative to the
largest of them, so that the result is the plain quotient for any logits. With `activation="slot-sigmoid"` and
`normalize="none"` it is the slot set encoder (SSE).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import (
    MergeableEncoder,
    counted,
    log_weights,
    mean_of,
    require_itemwise,
    sums_of,
    wide,
)
from setgrad.encoders._pooling import item_encoder, require_sizes
from setgrad.encoders._state import State
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.errors import OptionError, unknown_name
from setgrad.sets import Sets, segment_matmul, segment_max, segment_sum

NORMALIZE = ("set", "none")


@final
class UMBC(MergeableEncoder):
    """Reads sets of any size, whole or in pieces, into `slots` vectors of `dim` numbers each, then applies the head.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Width of the slots.
        slots: How many there are.
        heads: Attention heads.
        activation: "softmax", "sigmoid", "slot-sigmoid", "slot-softmax" or "slot-exp".
        normalize: "set" divides by the sum of the weights, "none" leaves the sum (for bounded activations).
        random: Draw the slots from a learned normal distribution while training; its mean in evaluation.
        residual: Add the projected slots to what they gathered.
        phi: What is seen of an item before attention: an item-wise encoder or module; None for the item itself.
        head: Any module on `(b, slots, dim)`; None to return the slots.

    Example:
        >>> import setgrad as sg
        >>> encoder = UMBC(3, dim=8, slots=4)
        >>> sets = sg.Sets.from_list([torch.zeros(5, 3), torch.ones(2, 3)])
        >>> encoder(sets).shape
        torch.Size([2, 4, 8])
        >>> state = encoder.begin(batch=2)
        >>> for piece in (sets.take([0, 1]),):
        ...     state = encoder.update(state, piece)
        >>> torch.allclose(encoder.finish(state), encoder(sets))
        True
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        dim: int = 128,
        slots: int = 16,
        *,
        heads: int = 4,
        activation: str = "softmax",
        normalize: str = "set",
        random: bool = False,
        residual: bool = True,
        phi: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        require_sizes(dim, heads, slots)
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        if normalize not in NORMALIZE:
            raise unknown_name("normalize", normalize, NORMALIZE)
        self.activation, self.normalize = ACTIVATIONS[activation], normalize == "set"
        if not (self.activation.bounded or self.normalize):
            raise OptionError("a sum of exponentials without normalisation has no bound; use normalize='set'")
        self.shape, self.heads, self.residual, self.random = item_shape(in_dim), heads, residual, random
        self.phi = item_encoder(phi, in_dim)
        require_itemwise(self.phi, "UMBC")
        self.slots = nn.Parameter(torch.randn(slots, dim) * dim**-0.5)
        # Softplus of this is the deviation; it starts near a tenth of the slots' own.
        self.spread = nn.Parameter(torch.full((slots, dim), math.log(math.expm1(0.1 * dim**-0.5)))) if random else None
        self.norm_slots, self.ask = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.read_items = nn.Linear(self.phi.out_dim, 2 * dim)
        self.norm = nn.LayerNorm(dim)
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> Tensor:
        """The projected slots, `(slots, dim)`."""
        slots: Tensor = self.slots
        if self.spread is not None and self.training:
            noise = torch.randn(slots.shape, generator=generator, device=slots.device, dtype=slots.dtype)
            slots = slots + torch.nn.functional.softplus(self.spread) * noise
        return self.ask(self.norm_slots(slots))

    def read(self, chunk: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Weigh the items for every slot and sum them up."""
        if queries is None:
            raise OptionError("UMBC reads with slots; start from encoder.begin()")
        features = self.features(chunk)
        keys, values = (part.unflatten(-1, (self.heads, -1)) for part in self.read_items(features).chunk(2, -1))
        asked = queries.unflatten(-1, (self.heads, -1)) * keys.shape[-1] ** -0.5
        kind = wide(values.dtype)
        weighed = self.activation(torch.einsum("thd,khd->thk", keys, asked)).to(kind)
        return gathered(weighed, values.to(kind), chunk, weights, level, queries, normalize=self.normalize)

    def finish(self, state: State) -> Tensor:
        """Divide by the weights, add the slots, normalise, and apply the head."""
        slots, width = len(self.slots), self.slots.shape[1] // self.heads
        weight, total = sums_of(state, (self.heads, slots), (self.heads, slots, width))
        found = joined(weight, total, normalize=self.normalize).to(self.norm.weight.dtype)
        if self.residual and state.slots is not None:
            found = found + state.slots
        out = self.norm(found)
        return out if self.head is None else self.head(out)


def gathered(
    logs: Tensor,
    values: Tensor,
    chunk: Sets,
    weights: Tensor,
    level: Tensor | None,
    queries: Tensor,
    *,
    normalize: bool = True,
) -> State:
    """What slots gather of a chunk: the sums of the weights and of the values times these, for each head.

    Args:
        logs: Logarithms of the weights that slots give to items, `(total, heads, slots)`.
        values: What items give, `(total, heads, width)`, of the same type.
        chunk: The items.
        weights: How often each item counts.
        level: What the logarithms are relative to, `(b, heads, slots)`; None for the largest of each set.
        queries: Kept in the state.
        normalize: Whether the quotient of the sums is asked for, in which the level cancels.
    """
    kind = logs.dtype
    if normalize:
        # An item of weight 0 is no item, and does not set the level.
        logs = logs + log_weights(weights, kind)[:, None, None]
        # The level cancels in value and in derivative, so it needs no graph.
        level = segment_max(logs.detach(), chunk) if level is None else level
        top = torch.where(level == -torch.inf, 0.0, level)
        weighed = (logs - top.index_select(0, chunk.layout.ids)).exp()
    else:
        weighed = logs.exp() * weights.to(kind)[:, None, None]
    heads = range(values.shape[1])
    totals = [segment_matmul(weighed[:, h].T, values[:, h], chunk).transpose(0, 1) for h in heads]
    return State((segment_sum(weighed, chunk), torch.stack(totals, 1)), level, counted(chunk, weights, kind), queries)


def joined(weight: Tensor, total: Tensor, *, normalize: bool = True) -> Tensor:
    """Sums of all heads as slots `(b, slots, dim)`, divided by their weights if they are to be."""
    mean = mean_of(weight, total) if normalize else total
    return mean.transpose(1, 2).flatten(2)
