"""The k largest entries, and the largest entry."""

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

    Args:
        k: The number of ones.

    Raises:
        OptionError: If k is not a whole number of 0 or more.

    Examples:
        >>> TopK(2)(torch.tensor([0.5, 2.0, 2.0, 2.0]))
        tensor([0., 1., 1., 0.])
    """

    k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(0, k=self.k)

    def check(self, theta: Tensor) -> None:
        """Raise an OptionError if instances have fewer than k entries."""
        super().check(theta)
        if self.k > theta.shape[-1]:
            raise OptionError(f"TopK cannot choose {self.k} of {theta.shape[-1]} items; lower k")

    def solve(self, theta: Tensor) -> Tensor:
        """Return ones at all entries above the k-th value, then from the left at entries equal to it."""
        if self.k == 0:
            return torch.zeros_like(theta)
        largest = theta.topk(self.k, dim=-1)
        last = largest.values[..., -1:]
        if theta.device.type == "cpu" and int((theta >= last).sum()) == largest.values.numel():
            # No other entry equals the k-th value; on the CPU this check does not wait for a device.
            return torch.zeros_like(theta).scatter_(-1, largest.indices, 1)
        # torch.topk breaks ties in any order, but the k-th value itself is reliable.
        above, equal = theta > last, theta == last
        remaining = self.k - above.sum(-1, keepdim=True)
        return (above | (equal & (equal.cumsum(-1) <= remaining))).to(theta.dtype)


@final
@dataclass(frozen=True, eq=False)
class ArgMax(CombinatorialSolver):
    """A single one, at the best entry; equal entries go to the lower index.

    Examples:
        >>> ArgMax(sense="min")(torch.tensor([3.0, 1.0, 1.0]))
        tensor([0., 1., 0.])
    """

    def solve(self, theta: Tensor) -> Tensor:
        """Return a one at the first of the largest entries."""
        return torch.zeros_like(theta).scatter_(-1, theta.argmax(-1, keepdim=True), 1)
