"""Poolings for multiple-instance learning: attention and dual stream.

Ilse et al., 2018 (arXiv:1802.04712) and Li et al., 2021 (arXiv:2011.08939).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import (
    ChunkedEncoder,
    MergeableEncoder,
    check_itemwise,
    expect_sums,
    relative_weights,
    sum_dtype,
    unit_counts,
)
from setgrad.encoders._passes import InMemoryPasses, Passes
from setgrad.encoders._pooling import item_encoder
from setgrad.encoders._slot_softmax import weighted_mean
from setgrad.encoders._state import State
from setgrad.errors import OptionError
from setgrad.sets import Sets, segment_matmul, segment_softmax, segment_sum, unpad


@final
class ABMIL(MergeableEncoder):
    """A set encoder that averages items with weights from a small network that reads one item at a time.

    Attention-based multiple-instance learning (Ilse et al., 2018, arXiv:1802.04712).
    The weights are a softmax over the set, whose normaliser is part of the state, so that bags may be read in chunks.
    An empty set gives 0.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: Item encoder or module that encodes each item; None for the raw features.
        hidden: Hidden units of the network that weighs items.
        branches: Number of weightings; their means are concatenated.
        gated: Whether the network multiplies its tanh features by a sigmoid gate.
        head: Any module on `(b, branches * phi.out_dim)`; None to return that.

    Examples:
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
        check_itemwise(self.phi, "ABMIL")
        self.look = nn.Linear(self.phi.out_dim, hidden)
        self.gate = nn.Linear(self.phi.out_dim, hidden) if gated else None
        # A bias would shift all exponents alike and change nothing.
        self.weigh = nn.Linear(hidden, branches, bias=False)
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> None:
        """Return None: there are no slots."""

    def read(self, chunk: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Return the sums of the items times the exponentials of their scores."""
        features = self.features(chunk)
        return softmax_sums(self._scores(features).to(sum_dtype(features.dtype)), features, chunk, counts, level)

    def finish(self, state: State) -> Tensor:
        """Return the weighted means of a state, `(b, branches * phi.out_dim)`, or the output of the head."""
        branches = len(self.weigh.weight)
        weight, total = expect_sums(state, (branches, 1), (branches, 1, self.phi.out_dim))
        pooled = weighted_mean(weight, total).flatten(1).to(self.look.weight.dtype)
        return pooled if self.head is None else self.head(pooled)

    def attention(self, sets: Sets) -> Tensor:
        """Return the weights of the items, `(total, branches)`; they sum to 1 in every nonempty set."""
        return segment_softmax(self._scores(self.features(sets)), sets)

    def _scores(self, features: Tensor) -> Tensor:
        hidden = torch.tanh(self.look(features))
        return self.weigh(hidden if self.gate is None else hidden * torch.sigmoid(self.gate(features)))


@final
class DSMIL(ChunkedEncoder):
    """A set encoder with two streams: the score of the best item, and the score of a mean weighted by likeness to it.

    Dual-stream multiple-instance learning (Li et al., 2021, arXiv:2011.08939).
    The best item, one for each class, must be known before the others are compared with it. So a stream is read twice,
    and this is not a mergeable encoder. Of equal scores the first item is the best. An empty bag has a best score of 0
    and a mean of 0.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: Item encoder or module that encodes each item; None for the raw features.
        classes: Number of scores of a bag.
        hidden: Dimension in which items are compared.

    Examples:
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
        dim = self.phi.out_dim
        self.score, self.ask, self.value = nn.Linear(dim, classes), nn.Linear(dim, hidden), nn.Linear(dim, dim)
        self.score_bag = nn.Linear(classes * dim, classes)

    def encode(self, passes: Passes) -> Tensor:
        """Return the mean of both streams, `(b, classes)`."""
        best, bag = self._streams(passes)
        return (best + bag) / 2

    def streams(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Return the scores of the best items and of the weighted means, each `(b, classes)`, for a loss on both."""
        return self._streams(InMemoryPasses.of(sets, unit_counts(sets)))

    def _streams(self, passes: Passes) -> tuple[Tensor, Tensor]:
        passes = passes.map(self.features)
        top = passes.top_items(self.score)
        critical = top.selected
        # Each class scores its own best item.
        scores = torch.einsum("bcw,cw->bc", critical, self.score.weight) + self.score.bias
        state = passes.sums(self._read, torch.where(top.exists[..., None], self.ask(critical), 0.0))
        bag = self.score_bag(weighted_mean(*state.sums).flatten(1).to(self.score.weight.dtype))
        return torch.where(top.exists, scores, 0.0), bag

    def _read(self, features: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Return the sums of the items times the exponentials of their likeness to the best one."""
        if queries is None:
            raise OptionError("items are compared with the best one; pass it as queries")
        dtype, keys = sum_dtype(features.dtype), self.ask(features.values)
        likeness = unpad(features.with_values(keys).padded()[0] @ queries.transpose(1, 2), features)
        scores = (likeness * keys.shape[1] ** -0.5).to(dtype)
        return softmax_sums(scores, self.value(features.values), features, counts, level)


def softmax_sums(scores: Tensor, values: Tensor, chunk: Sets, counts: Tensor, level: Tensor | None) -> State:
    """Return the sums of the exponentials of scores `(total, branches)`, and of these times values `(total, dim)`."""
    dtype = scores.dtype
    weights, level = relative_weights(scores[..., None], chunk, counts, level)
    total = segment_matmul(weights[..., 0].T, values.to(dtype), chunk).transpose(0, 1)[:, :, None]
    return State((segment_sum(weights, chunk), total), level, segment_sum(counts.to(dtype), chunk), None)
