"""DeepSets with a maximum (PointNet, Qi et al., 2017, arXiv:1612.00593): the largest value of each feature in a set.

A maximum is not a sum, so it has another kind of state: the values, and the items that they belong to. The gradient
needs no more than that. After a stream only those items are run again with a graph, at most one for each feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._fingerprint import Fingerprint, check_same_encoder
from setgrad.encoders._max_state import MaxState, check_max_state, max_state
from setgrad.encoders._mergeable import (
    ChunkedEncoder,
    check_chunk,
    check_itemwise,
    check_no_batch_norm,
    counted_items,
    unit_counts,
)
from setgrad.encoders._passes import Passes
from setgrad.encoders._pooling import item_encoder
from setgrad.sets import Sets


@final
class MaxPool(ChunkedEncoder):
    """A set encoder that takes the maximum of each feature over the items of a set; an empty set gives 0.

    Pooling as in PointNet (Qi et al., 2017, arXiv:1612.00593). If several items share a maximum, the first gets the
    whole gradient. Items of count 0 are left out; other counts make no difference.

    In a stream, "exact" reads the source once, without a graph, and differentiates only the items with a maximum, which
    it keeps: at most as many as there are features. Sampling could not be cheaper, so "sample" does the same. "full"
    keeps the graph of every chunk.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: Item encoder or module that encodes each item.
        head: Any module on `(b, phi.out_dim)`; None to return that.

    Examples:
        >>> encoder = MaxPool(2, nn.Linear(2, 8))
        >>> sets = Sets.from_list([torch.ones(5, 2), torch.zeros(0, 2)])
        >>> encoder(sets).shape
        torch.Size([2, 8])
        >>> state = encoder.update(encoder.begin(2), sets)
        >>> torch.equal(encoder.finish(state), encoder(sets)), state.number[0].tolist()
        (True, [0, 0, 0, 0, 0, 0, 0, 0])
        >>> torch.allclose(encoder.stream(sets, chunk_size=4), encoder(sets))
        True
    """

    def __init__(self, in_dim: int | Sequence[int], phi: nn.Module, *, head: nn.Module | None = None) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        check_itemwise(self.phi, "MaxPool")
        self.head = head

    def encode(self, passes: Passes) -> Tensor:
        """Return the maxima `(b, phi.out_dim)` after one pass, or the output of the head."""
        top = passes.map(self.features).top_items(lambda features: features)
        return self._apply_head(top.gather(top.features))

    def begin(self, batch: int = 1) -> MaxState:
        """Return the state of empty sets."""
        check_no_batch_norm(self)
        empty = self.empty_sets(batch)
        return replace(self._read(empty, unit_counts(empty)), encoder=Fingerprint.of(self))

    def update(self, state: MaxState, chunk: Sets, counts: Tensor | None = None) -> MaxState:
        """Return the state after more items.

        Args:
            state: The state so far.
            chunk: More items of each set of the batch, possibly none.
            counts: How often each item counts, `(total,)`; 1 if None.

        Raises:
            ShapeError: If the chunk does not fit the batch.
            DataError: If items are not finite.
            StateError: If the state belongs to another encoder.
        """
        check_max_state(state, self.phi.out_dim)
        chunk, counts = counted_items(chunk, counts, self.phi)
        check_chunk(chunk, len(state))
        check_no_batch_norm(self)
        check_same_encoder(state.encoder, Fingerprint.of(self))
        return state.merge(self._read(chunk, counts))

    def finish(self, state: MaxState) -> Tensor:
        """Return the maxima of a state, `(b, phi.out_dim)`, or the output of the head.

        Raises:
            StateError: If the state belongs to another encoder.
        """
        check_max_state(state, self.phi.out_dim)
        return self._apply_head(torch.where(state.number >= 0, state.value, 0.0))

    def _read(self, chunk: Sets, counts: Tensor) -> MaxState:
        return max_state(self.features(chunk), chunk.with_values(chunk.values.detach()), counts)

    def _apply_head(self, pooled: Tensor) -> Tensor:
        return pooled if self.head is None else self.head(pooled)
