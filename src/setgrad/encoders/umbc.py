"""UMBC, universally mini-batch consistent set encoding (Willette et al., 2023, arXiv:2208.12401).

Slots attend to the items of a set, which may arrive in chunks of any partition. The published code bounds exponents at
10, which changes the function. Here sums of weights are kept relative to the largest of them, so that the result is the
exact quotient for any logits. With `activation=SlotSigmoid()` and `normalize=False` it is the slot set encoder (SSE).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad._deprecation import deprecated_string
from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import (
    MergeableEncoder,
    check_itemwise,
    expect_sums,
    relative_weights,
    sum_dtype,
)
from setgrad.encoders._pooling import check_attention_sizes, item_encoder
from setgrad.encoders._slot_softmax import RowsOf, join_heads, slot_logits, slot_totals
from setgrad.encoders._state import State
from setgrad.encoders.activations import ACTIVATIONS, Activation, Softmax, check_activation
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_sum

# Sums of squares of smaller numbers do not overflow in float32.
_LARGE = 1e16


@final
class UMBC(MergeableEncoder):
    """A set encoder that reads sets of any size, whole or in chunks, into `slots` vectors of length `dim`.

    Learned slots attend to the items (Willette et al., 2023, arXiv:2208.12401). The published code bounds exponents at
    10; here the result is exact for any logits.

    Args:
        in_dim: Number of features of an item, or its shape.
        dim: Length of a slot vector.
        slots: Number of slots.
        heads: Number of attention heads.
        activation: How logits become attention weights: `Softmax()`, `Sigmoid()`, `SlotSigmoid()`, `SlotSoftmax()` or
            `SlotExp()`.
        normalize: Whether to divide by the sum of the weights; False needs a bounded activation.
        random: Whether to draw the slots from a learned normal distribution while training; evaluation uses its mean.
        residual: Whether to add the projected slots to the result of attention.
        phi: Item encoder or module that encodes each item before attention; None for the raw features.
        head: Any module on `(b, slots, dim)`; None to return the slots.

    Raises:
        OptionError: If an option is unknown or out of range.

    Examples:
        >>> import setgrad as sg
        >>> encoder = UMBC(3, dim=8, slots=4)
        >>> sets = sg.Sets.from_list([torch.zeros(5, 3), torch.ones(2, 3)])
        >>> encoder(sets).shape
        torch.Size([2, 4, 8])
        >>> state = encoder.begin(batch=2)
        >>> state = encoder.update(state, sg.Sets.from_list([torch.zeros(2, 3), torch.ones(2, 3)]))
        >>> state = encoder.update(state, sg.Sets.from_list([torch.zeros(3, 3), torch.zeros(0, 3)]))
        >>> torch.allclose(encoder.finish(state), encoder(sets), atol=1e-6)
        True
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        dim: int = 128,
        slots: int = 16,
        *,
        heads: int = 4,
        activation: Activation | str = Softmax(),  # noqa: B008 -- a frozen value
        normalize: bool | str = True,
        random: bool = False,
        residual: bool = True,
        phi: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_attention_sizes(dim, heads, slots)
        self.activation = deprecated_string("activation", activation, ACTIVATIONS, removed_in="0.3.0")
        self.normalize = deprecated_string("normalize", normalize, {"set": True, "none": False}, removed_in="0.3.0")
        check_activation(self.activation)
        if not (self.activation.bounded or self.normalize):
            raise OptionError("a sum of exponentials without normalisation has no bound; use normalize=True")
        self.shape, self.heads, self.residual, self.random = item_shape(in_dim), heads, residual, random
        self.phi = item_encoder(phi, in_dim)
        check_itemwise(self.phi, "UMBC")
        self.slots = nn.Parameter(torch.randn(slots, dim) * dim**-0.5)
        # Softplus of this is the standard deviation; it starts at about a tenth of the slots' own.
        self.spread = nn.Parameter(torch.full((slots, dim), math.log(math.expm1(0.1 * dim**-0.5)))) if random else None
        self.norm_slots, self.ask = nn.LayerNorm(dim), nn.Linear(dim, dim)
        self.read_items = nn.Linear(self.phi.out_dim, 2 * dim)
        self.norm = nn.LayerNorm(dim)
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> Tensor:
        """Return the projected slots, `(slots, dim)`."""
        slots: Tensor = self.slots
        if self.spread is not None and self.training:
            noise = torch.randn(slots.shape, generator=generator, device=slots.device, dtype=slots.dtype)
            slots = slots + torch.nn.functional.softplus(self.spread) * noise
        return self.ask(self.norm_slots(slots))

    def read(self, chunk: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Return the weighted sums of the items for every slot."""
        if queries is None:
            raise OptionError("UMBC reads with slots; start with encoder.begin()")
        logits, values = slot_logits(self.read_items(self.features(chunk)), queries, self.heads)
        dtype = sum_dtype(values.dtype)
        log_weights = self.activation(logits).to(dtype)
        return slot_sums(log_weights, values.to(dtype), chunk, counts, level, queries, normalize=self.normalize)

    def finish(self, state: State) -> Tensor:
        """Return the normalised slots of a state, `(b, slots, dim)`, or the output of the head."""
        slots, head_dim = len(self.slots), self.slots.shape[1] // self.heads
        weight, total = expect_sums(state, (self.heads, slots), (self.heads, slots, head_dim))
        gathered = join_heads(weight, total, normalize=self.normalize).to(self.norm.weight.dtype)
        if self.residual and state.slots is not None:
            gathered = gathered + state.slots
        out = self.norm(_within_squares(gathered))
        return out if self.head is None else self.head(out)


def _within_squares(x: Tensor) -> Tensor:
    """Return vectors scaled down where their squares would overflow in a normalisation, which scale does not change."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    return x / (largest / _LARGE).clamp(min=1)


def slot_sums(
    log_weights: Tensor,
    values: Tensor,
    chunk: Sets,
    counts: Tensor,
    level: Tensor | None,
    queries: Tensor,
    *,
    normalize: bool = True,
) -> State:
    """Return the state of a chunk: for each head, the sums of the attention weights and of the weighted values.

    Args:
        log_weights: Logarithms of the attention weights, `(total, heads, slots)`.
        values: Values of the items, `(total, heads, dim)`, of the same dtype.
        chunk: The items.
        counts: How often each item counts.
        level: What the logarithms are relative to, `(b, heads, slots)`; None for the largest of each set.
        queries: Kept in the state.
        normalize: Whether the sums will be divided by each other, so that the level cancels.
    """
    if normalize:
        weights, level = relative_weights(log_weights, chunk, counts, level)
    else:
        weights = log_weights.exp() * counts.to(log_weights.dtype)[:, None, None]
    count = segment_sum(counts.to(log_weights.dtype), chunk)
    return State(slot_totals(weights, values, RowsOf(chunk)), level, count, queries)
