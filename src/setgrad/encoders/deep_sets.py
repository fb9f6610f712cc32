"""DeepSets: a sum or a mean over items, then anything (Zaheer et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from setgrad.encoders._base import item_shape
from setgrad.encoders._mergeable import MergeableEncoder, counted, mean_of, require_itemwise, sums_of, wide
from setgrad.encoders._pooling import item_encoder
from setgrad.encoders._state import State
from setgrad.errors import OptionError, unknown_name
from setgrad.sets import Sets, segment_sum

POOLING = ("sum", "mean")


@final
class DeepSets(MergeableEncoder):
    """The sum or mean of phi over the items of a set; of nothing it is 0. `head` is any module on `(b, width)`.

    Weights of items are summed as they are: where the sum is too large for float32, the mean is NaN.

    Example:
        >>> encoder = DeepSets(2, nn.Linear(2, 8), pooling="mean")
        >>> encoder(Sets.from_list([torch.zeros(5, 2), torch.zeros(0, 2)])).shape
        torch.Size([2, 8])
    """

    def __init__(
        self, in_dim: int | Sequence[int], phi: nn.Module, *, pooling: str = "sum", head: nn.Module | None = None
    ) -> None:
        super().__init__()
        if pooling == "max":
            raise OptionError("a maximum is no sum and has a state of its own; use MaxPool(in_dim, phi)")
        if pooling not in POOLING:
            raise unknown_name("pooling", pooling, POOLING)
        self.shape, self.mean = item_shape(in_dim), pooling == "mean"
        self.phi = item_encoder(phi, in_dim)
        require_itemwise(self.phi, "DeepSets")
        self.head = head

    def queries(self, generator: torch.Generator | None = None) -> None:
        """There are no slots."""

    def read(self, chunk: Sets, weights: Tensor, queries: Tensor | None, level: Tensor | None) -> State:
        """Sum the features."""
        features = self.features(chunk)
        kind = wide(features.dtype)
        total = segment_sum(features.to(kind) * weights.to(kind)[:, None], chunk)
        return State((total,), None, counted(chunk, weights, kind), None)

    def finish(self, state: State) -> Tensor:
        """Divide if it is a mean, and apply the head."""
        (total,) = sums_of(state, (self.phi.out_dim,))
        if self.mean:
            # Weights whose sum is too large for the type have no mean that it could hold.
            total = torch.where(state.count[:, None] == torch.inf, torch.nan, mean_of(state.count, total))
        pooled = total.to(next(self.parameters(), total).dtype)
        return pooled if self.head is None else self.head(pooled)
