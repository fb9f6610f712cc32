"""DeepSets with a maximum (PointNet): per feature, the largest value over the items of a set.

A maximum is no sum, so it has a state of its own: the values, and the items that gave them. That is all its gradient
needs. After a stream only those items are run again with a graph, at most one for each feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import SetEncoder, item_weights, require_itemwise
from setgrad.encoders._pooling import first_arg_max, item_encoder, item_features
from setgrad.encoders.streaming import chunks_of
from setgrad.errors import DataError, OptionError, ShapeError, unknown_name
from setgrad.sets import Sets

GRADIENTS = ("full", "exact")
# Values of the second run may differ from those of the first by rounding, not by more.
_CHANGED = 1e-3


@final
@dataclass(frozen=True, eq=False)
class MaxState:
    """The largest values so far, for each set of a batch.

    Attributes:
        value: Largest value of each feature, `(b, width)`; -inf where nothing was read.
        number: Which item gave it, in the order of reading, `(b, width)`; -1 for none. The first of equals.
        items: These items themselves, `(b, width, *item_shape)`.
        length: Items read, `(b,)`.
    """

    value: Tensor
    number: Tensor
    items: Tensor
    length: Tensor

    def __len__(self) -> int:
        return len(self.length)

    def merge(self, other: MaxState) -> MaxState:
        """The state of all items of both, those of `other` numbered after one's own. Associative."""
        if self.value.shape != other.value.shape or self.items.shape != other.items.shape:
            raise ShapeError(
                "states of different encoders or batches cannot be merged: values of shapes "
                f"{tuple(self.value.shape)} and {tuple(other.value.shape)}"
            )
        mine = self.value >= other.value
        own = mine.reshape(*mine.shape, *[1] * (self.items.dim() - 2))
        # A state that begins does not know yet that items are tokens, which are no floating-point numbers.
        kind = other.items.dtype if self.items.dtype.is_floating_point else self.items.dtype
        return MaxState(
            torch.where(mine, self.value, other.value),
            torch.where(mine, self.number, other.number + self.length[:, None]),
            torch.where(own, self.items.to(kind), other.items.to(kind)),
            self.length + other.length,
        )


@final
class MaxPool(SetEncoder):
    """The maximum of phi over the items of a set; of nothing it is 0. `head` is any module on `(b, width)`.

    Where several items share a maximum, the first gets the whole gradient.

    Example:
        >>> encoder = MaxPool(2, nn.Linear(2, 8))
        >>> sets = Sets.from_list([torch.ones(5, 2), torch.zeros(0, 2)])
        >>> encoder(sets).shape
        torch.Size([2, 8])
        >>> state = encoder.update(encoder.begin(2), sets)
        >>> torch.equal(encoder.finish(state), encoder(sets)), state.number[0].tolist()
        (True, [0, 0, 0, 0, 0, 0, 0, 0])
    """

    def __init__(self, in_dim: int | Sequence[int], phi: nn.Module, *, head: nn.Module | None = None) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        require_itemwise(self.phi, "MaxPool")
        self.head = head

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return self.shape

    def forward(self, sets: Sets, weights: Tensor | None = None) -> Tensor:
        """Codes of whole sets. Items of weight 0 are left out; other `weights` `(total,)` make no difference."""
        return self.finish(self.read(sets, item_weights(weights, sets)))

    def begin(self, batch: int = 1) -> MaxState:
        """The state of sets without items."""
        where = next(self.parameters(), torch.zeros(0))
        empty = Sets.from_lengths(where.new_zeros(0, *self.shape), [0] * batch).to(where.device)
        return self.read(empty, item_weights(None, empty))

    def update(self, state: MaxState, chunk: Sets, weights: Tensor | None = None) -> MaxState:
        """The state after more items: `chunk` holds a piece, which may be empty, of each set of the batch."""
        if len(chunk) != len(state):
            raise ShapeError(
                f"the state belongs to {len(state)} sets, the chunk has pieces of {len(chunk)}; give one piece for "
                "each set, empty where there is nothing new"
            )
        return state.merge(self.read(chunk, item_weights(weights, chunk)))

    def read(self, chunk: Sets, weights: Tensor) -> MaxState:
        """The state of these items alone."""
        features = torch.where((weights > 0)[:, None], item_features(self.phi, chunk, self.shape), -torch.inf)
        first = first_arg_max(features, chunk)
        # One row more, for sets without items to point at.
        rows = torch.where(first >= 0, first, len(features))
        value = torch.cat([features, features.new_full((1, features.shape[1]), -torch.inf)]).gather(0, rows)
        number = torch.where(first >= 0, first - chunk.layout.offsets[:-1, None], -1)
        items = chunk.values.detach()
        items = items[first.clamp(min=0)] if len(items) else items.new_zeros(*first.shape, *chunk.item_shape)
        return MaxState(value, number, items, chunk.lengths)

    def finish(self, state: MaxState) -> Tensor:
        """The code of what was read."""
        pooled = torch.where(state.number >= 0, state.value, 0.0)
        return pooled if self.head is None else self.head(pooled)

    def stream(self, source: Any, *, gradient: str = "exact", chunk_size: int = 4096) -> Tensor:
        """Codes of sets that are read in chunks; sources are those of `setgrad.encoders.stream`.

        "exact" reads the source once, without a graph, and differentiates only the items that gave a maximum, which
        it keeps: as many as phi has features, at most. "full" keeps the graph of every chunk.

        Example:
            >>> encoder, x = MaxPool(3, nn.Linear(3, 8)), torch.arange(30.0).reshape(10, 3)
            >>> torch.allclose(encoder.stream(x, chunk_size=4), encoder(Sets.from_list([x])))
            True
        """
        if gradient not in GRADIENTS:
            raise unknown_name("gradient", gradient, GRADIENTS)
        if chunk_size < 1:
            raise OptionError(f"chunk_size must be at least 1, not {chunk_size}")
        state = None
        with torch.set_grad_enabled(torch.is_grad_enabled() and gradient == "full"):
            for chunk in chunks_of(source, chunk_size, next(self.parameters(), torch.zeros(0)).device)():
                if chunk.dtype.is_floating_point and not bool(chunk.values.isfinite().all()):
                    raise DataError("a chunk holds NaN or infinity; remove or impute such items first")
                state = self.update(self.begin(len(chunk)) if state is None else state, chunk)
        if state is None:
            raise DataError("the source gave no chunk; for sets without items give one chunk of empty pieces")
        return self.finish(state if gradient == "full" else self._again(state))

    def _again(self, state: MaxState) -> MaxState:
        """The same state with a graph, from the items that it holds."""
        batch, width = state.number.shape
        offsets = torch.arange(batch, device=state.number.device)[:, None] * (state.length.max() + 1)
        # One item often gives many features their maximum; it is run once.
        distinct, place = torch.unique(offsets + state.number + 1, return_inverse=True)
        place = place.flatten()
        some = torch.zeros_like(distinct).scatter(0, place, torch.arange(len(place), device=place.device))
        items = state.items.flatten(0, 1)[some]
        features = self.phi(Sets.from_lengths(items, [len(items)]))
        value = features[place, torch.arange(width, device=place.device).repeat(batch)].reshape(batch, width)
        value = torch.where(state.number >= 0, value, -torch.inf)
        if not torch.allclose(value, state.value, rtol=_CHANGED, atol=_CHANGED):
            raise OptionError(
                "phi gave other values when it was run again, as dropout and batch normalisation do while training; "
                "put it into evaluation mode (encoder.phi.eval()) or use gradient='full'"
            )
        return MaxState(value, state.number, state.items, state.length)
