"""DeepSets with a maximum (PointNet): per feature, the largest value over the items of a set.

A maximum is no sum, so it has a state of its own: the values, and the items that gave them. That is all its gradient
needs. After a stream only those items are run again with a graph, at most one for each feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._max_state import MaxState, max_state, require_maxima
from setgrad.encoders._mergeable import (
    ChunkedEncoder,
    item_weights,
    refuse_batch_norm,
    require_itemwise,
    require_pieces,
    weighed_items,
)
from setgrad.encoders._passes import Passes
from setgrad.encoders._pooling import item_encoder
from setgrad.sets import Sets


@final
class MaxPool(ChunkedEncoder):
    """The maximum of phi over the items of a set; of nothing it is 0. `head` is any module on `(b, width)`.

    Where several items share a maximum, the first gets the whole gradient. Items of weight 0 are left out; other
    weights make no difference.

    In a stream "exact" reads the source once, without a graph, and differentiates only the items that gave a maximum,
    which it keeps: as many as phi has features, at most. Nothing drawn could be cheaper, so "sample" does the same.
    "full" keeps the graph of every chunk.

    Example:
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
        require_itemwise(self.phi, "MaxPool")
        self.head = head

    def encode(self, passes: Passes) -> Tensor:
        """One pass, and a look at the winners."""
        found = passes.through(self.features).best(lambda features: features)
        return self._finish(found.pick(found.rows))

    def begin(self, batch: int = 1) -> MaxState:
        """The state of sets without items."""
        nothing = self.nothing(batch)
        refuse_batch_norm(self)
        return self.read(nothing, item_weights(None, nothing))

    def update(self, state: MaxState, chunk: Sets, weights: Tensor | None = None) -> MaxState:
        """The state after more items: `chunk` holds a piece, which may be empty, of each set of the batch."""
        require_maxima(state, self.phi.out_dim)
        chunk, weights = weighed_items(chunk, weights, self.phi)
        require_pieces(chunk, len(state))
        refuse_batch_norm(self)
        return state.merge(self.read(chunk, weights))

    def read(self, chunk: Sets, weights: Tensor) -> MaxState:
        """The state of these items alone."""
        return max_state(self.features(chunk), chunk.with_values(chunk.values.detach()), weights)

    def finish(self, state: MaxState) -> Tensor:
        """The code of what was read."""
        require_maxima(state, self.phi.out_dim)
        return self._finish(torch.where(state.number >= 0, state.value, 0.0))

    def _finish(self, pooled: Tensor) -> Tensor:
        return pooled if self.head is None else self.head(pooled)
