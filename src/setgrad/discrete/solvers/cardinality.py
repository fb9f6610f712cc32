"""At least so many, at most so many."""

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
class CardinalityRange(CombinatorialSolver):
    """Between `min_size` and `max_size` ones at the best entries: all that are worth more than 0, as far as the range allows.

    Equal entries go to the lower index. Entries worth exactly 0 are taken only to reach `min_size`.

    Args:
        min_size: The fewest ones.
        max_size: The most ones; None is all entries.

    Example:
        >>> CardinalityRange(1, 2)(torch.tensor([[3.0, 1.0, 2.0], [-3.0, -1.0, -2.0]]))
        tensor([[1., 0., 1.],
                [0., 1., 0.]])
    """

    min_size: int = 0
    max_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(min_size=self.min_size, max_size=0 if self.max_size is None else self.max_size)
        if self.min_size < 0 or (self.max_size is not None and self.max_size < self.min_size):
            raise OptionError(
                f"CardinalityRange needs 0 <= min_size <= max_size, got min_size={self.min_size}, max_size={self.max_size}"
            )

    def check(self, theta: Tensor) -> None:
        """Refuse sets of fewer than `min_size` items."""
        super().check(theta)
        if self.min_size > theta.shape[-1]:
            raise OptionError(
                f"CardinalityRange cannot choose {self.min_size} of {theta.shape[-1]} items; lower min_size"
            )

    def solve(self, theta: Tensor) -> Tensor:
        """Number the entries from the best one down."""
        n = theta.shape[-1]
        order = theta.argsort(dim=-1, descending=True, stable=True)
        place = torch.empty_like(order).scatter_(-1, order, torch.arange(n, device=theta.device).expand_as(order))
        most = n if self.max_size is None else self.max_size
        return ((place < self.min_size) | ((place < most) & (theta > 0))).to(theta.dtype)
