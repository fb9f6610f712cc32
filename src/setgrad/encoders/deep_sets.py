"""DeepSets (Zaheer et al., 2017, arXiv:1703.06114): the sum or mean of the features of the items, then any head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import MergeableEncoder, check_itemwise, expect_sums, sum_dtype
from setgrad.encoders._pooling import item_encoder
from setgrad.encoders._slot_softmax import weighted_mean
from setgrad.encoders._state import State
from setgrad.errors import OptionError, unknown_name
from setgrad.sets import Sets, segment_sum

POOLING = ("sum", "mean")


@final
class DeepSets(MergeableEncoder):
    """A set encoder that sums or averages the features of the items; an empty set gives 0.

    Zaheer et al., 2017, arXiv:1703.06114. Counts of items are summed as they are: where their sum overflows, the mean
    is NaN.

    Args:
        in_dim: Number of features of an item, or its shape.
        phi: Item encoder or module that encodes each item.
        pooling: "sum" or "mean".
        head: Any module on `(b, phi.out_dim)`; None to return that.

    Raises:
        OptionError: If the pooling is unknown.

    Examples:
        >>> encoder = DeepSets(2, nn.Linear(2, 8), pooling="mean")
        >>> encoder(Sets.from_list([torch.zeros(5, 2), torch.zeros(0, 2)])).shape
        torch.Size([2, 8])
    """

    def __init__(
        self, in_dim: int | Sequence[int], phi: nn.Module, *, pooling: str = "sum", head: nn.Module | None = None
    ) -> None:
        super().__init__()
        if pooling == "max":
            raise OptionError("a maximum needs another kind of state than a sum; use MaxPool(in_dim, phi)")
        if pooling not in POOLING:
            raise unknown_name("pooling", pooling, POOLING)
        self.shape, self.mean = item_shape(in_dim), pooling == "mean"
        self.phi = item_encoder(phi, in_dim)
        check_itemwise(self.phi, "DeepSets")
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> None:
        """Return None: there are no slots."""

    def read(self, chunk: Sets, counts: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Return the sums of the features."""
        return feature_sums(self.features(chunk), chunk, counts)

    def finish(self, state: State) -> Tensor:
        """Return the sum or mean of a state, `(b, phi.out_dim)`, or the output of the head."""
        (total,) = expect_sums(state, (self.phi.out_dim,))
        if self.mean:
            # A mean is undefined if the sum of the counts overflowed.
            total = torch.where(state.count[:, None] == torch.inf, torch.nan, weighted_mean(state.count, total))
        pooled = total.to(next(self.parameters(), total).dtype)
        return pooled if self.head is None else self.head(pooled)


def feature_sums(features: Tensor, chunk: Sets, counts: Tensor) -> State:
    """Return the state of a chunk with one sum, over the features."""
    dtype = sum_dtype(features.dtype)
    counts = counts.to(dtype)
    return State((segment_sum(features.to(dtype) * counts[:, None], chunk),), None, segment_sum(counts, chunk), None)
