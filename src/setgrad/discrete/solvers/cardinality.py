"""At least so many, at most so many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._solver import Solver
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.errors import OptionError


@final
@dataclass(frozen=True, eq=False)
class CardinalityRange(Solver):
    """Between `lo` and `hi` ones at the best entries: all that are worth more than 0, as far as the range allows.

    Equal entries go to the lower index. Entries worth exactly 0 are taken only to reach `lo`.

    Args:
        lo: The fewest ones.
        hi: The most ones; None is all entries.

    Example:
        >>> CardinalityRange(1, 2)(torch.tensor([[3.0, 1.0, 2.0], [-3.0, -1.0, -2.0]]))
        tensor([[1., 0., 1.],
                [0., 1., 0.]])
    """

    lo: int = 0
    hi: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(lo=self.lo, hi=0 if self.hi is None else self.hi)
        if self.lo < 0 or (self.hi is not None and self.hi < self.lo):
            raise OptionError(f"CardinalityRange needs 0 <= lo <= hi, got lo={self.lo}, hi={self.hi}")

    def check(self, theta: Tensor) -> None:
        """Refuse sets of fewer than `lo` items."""
        super().check(theta)
        if self.lo > theta.shape[-1]:
            raise OptionError(f"CardinalityRange cannot choose {self.lo} of {theta.shape[-1]} items; lower lo")

    def solve(self, theta: Tensor) -> Tensor:
        """Number the entries from the best one down."""
        n = theta.shape[-1]
        order = theta.argsort(dim=-1, descending=True, stable=True)
        place = torch.empty_like(order).scatter_(-1, order, torch.arange(n, device=theta.device).expand_as(order))
        most = n if self.hi is None else self.hi
        return ((place < self.lo) | ((place < most) & (theta > 0))).to(theta.dtype)
