"""Poolings of multiple-instance learning: attention (Ilse et al., 2018) and dual stream (Li et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import (
    ChunkedEncoder,
    MergeableEncoder,
    counted,
    item_weights,
    log_weights,
    mean_of,
    require_itemwise,
    sums_of,
    wide,
)
from setgrad.encoders._passes import Kept, Passes
from setgrad.encoders._pooling import item_encoder
from setgrad.encoders._state import State
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_matmul, segment_max, segment_softmax, segment_sum, unpad


@final
class ABMIL(MergeableEncoder):
    """Means of the items, weighed by a small network that looks at one item at a time.

    The weights are a softmax over the set, whose sum and level are kept in the state: bags may be read in pieces. The
    mean of nothing is 0.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: What is seen of an item: an item-wise encoder or module; None for the item itself.
        hidden: Width of the network that weighs items.
        branches: Weightings; their means lie side by side.
        gated: Whether the network multiplies its tanh features by a sigmoid gate.
        head: Any module on `(b, branches * width)`.

    Example:
        >>> encoder = ABMIL(3, nn.Linear(3, 8), head=nn.Linear(8, 1))
        >>> bags = Sets.from_list([torch.zeros(5, 3), torch.ones(2, 3)])
        >>> encoder(bags).shape, encoder.attention(bags).shape
        (torch.Size([2, 1]), torch.Size([7, 1]))
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        phi: nn.Module | None = None,
        *,
        hidden: int = 128,
        branches: int = 1,
        gated: bool = True,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        require_itemwise(self.phi, "ABMIL")
        self.look = nn.Linear(self.phi.out_dim, hidden)
        self.gate = nn.Linear(self.phi.out_dim, hidden) if gated else None
        # A bias would move all exponents alike and change nothing.
        self.weigh = nn.Linear(hidden, branches, bias=False)
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> None:
        """There are no slots."""

    def read(self, chunk: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Sum the items times the exponentials of their scores."""
        features = self.features(chunk)
        return weighed_sum(self._scores(features).to(wide(features.dtype)), features, chunk, weights, level)

    def finish(self, state: State) -> Tensor:
        """Divide by the weights and apply the head."""
        branches = len(self.weigh.weight)
        weight, total = sums_of(state, (branches, 1), (branches, 1, self.phi.out_dim))
        pooled = mean_of(weight, total).flatten(1).to(self.look.weight.dtype)
        return pooled if self.head is None else self.head(pooled)

    def attention(self, sets: Sets) -> Tensor:
        """The weights of the items, `(total, branches)`: they sum to 1 in every set that has items."""
        return segment_softmax(self._scores(self.features(sets)), sets)

    def _scores(self, features: Tensor) -> Tensor:
        seen = torch.tanh(self.look(features))
        return self.weigh(seen if self.gate is None else seen * torch.sigmoid(self.gate(features)))


@final
class DSMIL(ChunkedEncoder):
    """Two streams: the score of the best item, and that of a mean weighed by likeness to the best item.

    The best item, one for each class, must be known before the others can be compared with it: a stream is read
    twice, and this is no mergeable encoder. Of equal scores the first item in order is the best. A bag without items
    has 0 as its best score and 0 as its mean.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: What is seen of an item; None for the item itself.
        classes: Scores of a bag.
        hidden: Width in which items are compared.

    Example:
        >>> encoder = DSMIL(3, nn.Linear(3, 8), classes=2)
        >>> bags = Sets.from_list([torch.zeros(5, 3), torch.zeros(0, 3)])
        >>> encoder(bags).shape
        torch.Size([2, 2])
        >>> best, bag = encoder.streams(bags)
        >>> best.shape, bag.shape
        (torch.Size([2, 2]), torch.Size([2, 2]))
    """

    def __init__(
        self,
        in_dim: int | Sequence[int],
        phi: nn.Module | None = None,
        *,
        classes: int = 1,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.shape = item_shape(in_dim)
        self.phi = item_encoder(phi, in_dim)
        width = self.phi.out_dim
        self.score, self.ask, self.value = nn.Linear(width, classes), nn.Linear(width, hidden), nn.Linear(width, width)
        self.score_bag = nn.Linear(classes * width, classes)

    def encode(self, passes: Passes) -> Tensor:
        """The mean of both streams, `(b, classes)`."""
        best, bag = self._streams(passes)
        return (best + bag) / 2

    def streams(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Scores of the best items and of the weighed means, each `(b, classes)`; training uses a loss on either."""
        return self._streams(Kept.of(sets, item_weights(None, sets)))

    def _streams(self, passes: Passes) -> tuple[Tensor, Tensor]:
        passes = passes.through(self.features)
        found = passes.best(self.score)
        critical = found.held
        # Each class looks at its own item.
        scores = torch.einsum("bcw,cw->bc", critical, self.score.weight) + self.score.bias
        state = passes.sums(self._read, torch.where(found.some[..., None], self.ask(critical), 0.0))
        weight, total = state.sums
        bag = self.score_bag(mean_of(weight, total).flatten(1).to(self.score.weight.dtype))
        return torch.where(found.some, scores, 0.0), bag

    def _read(self, features: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Sum the items times the exponentials of their likeness to the best one."""
        if queries is None:
            raise OptionError("items are compared with the best one; give it")
        kind, asked = wide(features.dtype), self.ask(features.values)
        likeness = unpad(features.with_values(asked).padded()[0] @ queries.transpose(1, 2), features)
        scores = (likeness * asked.shape[1] ** -0.5).to(kind)
        return weighed_sum(scores, self.value(features.values), features, weights, level)


def weighed_sum(scores: Tensor, values: Tensor, chunk: Sets, weights: Tensor, level: Tensor | None) -> State:
    """Sums of values `(total, width)` times the exponentials of scores `(total, branches)`, and of these."""
    kind = scores.dtype
    # An item of weight 0 is no item, and does not set the level.
    scores = (scores + log_weights(weights, kind)[:, None])[..., None]
    # The level cancels in value and in derivative, so it needs no graph.
    level = segment_max(scores.detach(), chunk) if level is None else level
    top = torch.where(level == -torch.inf, 0.0, level).index_select(0, chunk.layout.ids)
    shares = (scores - top).exp()
    total = segment_matmul(shares[..., 0].T, values.to(kind), chunk).transpose(0, 1)[:, :, None]
    return State((segment_sum(shares, chunk), total), level, counted(chunk, weights, kind), None)
