"""A score of each item that depends on facts of its set: what is good under which circumstances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import flat_quantities, item_shape
from setgrad.sets import Sets, segment_mean

# The step of a weight is this many times larger than with a gain of 1: a few hundred steps must do. With 8 the weights
# learn few sets by heart.
INTERACTION_GAIN = 3.0


@final
class Interaction(nn.Module):
    """A score <W x, tanh(U c)> of every item x, where c are facts of its set. A new interaction returns 0.

    Args:
        in_dim: Number of features of an item.
        own: The features of an item that count.
        facts: The features that are the same for all items of a set.
        hidden: Number of rows of W and U.

    Examples:
        >>> interaction = Interaction(2, own=[0], facts=[1], hidden=4)
        >>> interaction(Sets.from_list([[[0.0, 1.0], [1.0, 1.0]], []])).tolist()
        [0.0, 0.0]
    """

    def __init__(self, in_dim: int | Sequence[int], *, own: Sequence[int], facts: Sequence[int], hidden: int) -> None:
        super().__init__()
        self.shape, self.own, self.facts = item_shape(in_dim), list(own), list(facts)
        self.items = nn.Linear(len(self.own), hidden, bias=False)
        self.hidden = nn.Linear(len(self.facts), hidden)
        nn.init.zeros_(self.items.weight)

    def forward(self, sets: Sets) -> Tensor:
        """Return the score of every item, `(total,)`."""
        items = flat_quantities(sets, self.shape, self.items.weight)
        facts = torch.tanh(self.hidden(segment_mean(items[:, self.facts], sets)))
        return (self.items(items[:, self.own]) * facts.index_select(0, sets.layout.ids)).sum(1) * INTERACTION_GAIN
