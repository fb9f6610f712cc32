"""The k largest entries, and the largest alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.errors import OptionError


@final
@dataclass(frozen=True, eq=False)
class TopK(CombinatorialSolver):
    """Exactly k ones, at the k best entries; equal entries go to the lower index.

    Example:
        >>> TopK(2)(torch.tensor([0.5, 2.0, 2.0, 2.0]))
        tensor([0., 1., 1., 0.])
    """

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(0, k=self.k)

    def check(self, theta: Tensor) -> None:
        """Refuse sets of fewer than k items."""
        super().check(theta)
        if self.k > theta.shape[-1]:
            raise OptionError(f"TopK cannot choose {self.k} of {theta.shape[-1]} items; lower k")

    def solve(self, theta: Tensor) -> Tensor:
        """Take everything above the k-th value, then fill up from the left with what equals it."""
        if self.k == 0:
            return torch.zeros_like(theta)
        found = theta.topk(self.k, dim=-1)
        last = found.values[..., -1:]
        if theta.device.type == "cpu" and int((theta >= last).sum()) == found.values.numel():
            # Nothing outside equals the k-th value, and to know that costs the host no waiting here.
            return torch.zeros_like(theta).scatter_(-1, found.indices, 1)
        # torch.topk breaks ties as it likes; the k-th value itself is safe.
        above, equal = theta > last, theta == last
        room = self.k - above.sum(-1, keepdim=True)
        return (above | (equal & (equal.cumsum(-1) <= room))).to(theta.dtype)


@final
@dataclass(frozen=True, eq=False)
class ArgMax(CombinatorialSolver):
    """A single one, at the best entry; equal entries go to the lower index.

    Example:
        >>> ArgMax(sense="min")(torch.tensor([3.0, 1.0, 1.0]))
        tensor([0., 1., 0.])
    """

    def solve(self, theta: Tensor) -> Tensor:
        """Mark the first of the largest."""
        return torch.zeros_like(theta).scatter_(-1, theta.argmax(-1, keepdim=True), 1)
