"""Choices with a minimum and a maximum size."""

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
    """Ones at all entries above 0, as far as the number of ones stays between `min_size` and `max_size`.

    The best entries are chosen first; equal entries go to the lower index. Entries of 0 or less are chosen only to
    reach `min_size`.

    Args:
        min_size: The minimum number of ones.
        max_size: The maximum number of ones; None for all entries.

    Raises:
        OptionError: If the sizes are not whole numbers with 0 <= min_size <= max_size.

    Examples:
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
                f"CardinalityRange needs 0 <= min_size <= max_size, got min_size={self.min_size}, "
                f"max_size={self.max_size}"
            )

    def check(self, theta: Tensor) -> None:
        """Raise an OptionError if instances have fewer than `min_size` entries."""
        super().check(theta)
        if self.min_size > theta.shape[-1]:
            raise OptionError(
                f"CardinalityRange cannot choose {self.min_size} of {theta.shape[-1]} items; lower min_size"
            )

    def solve(self, theta: Tensor) -> Tensor:
        """Return ones by the position of each entry in descending order."""
        n = theta.shape[-1]
        order = theta.argsort(dim=-1, descending=True, stable=True)
        position = torch.empty_like(order).scatter_(-1, order, torch.arange(n, device=theta.device).expand_as(order))
        max_size = n if self.max_size is None else self.max_size
        return ((position < self.min_size) | ((position < max_size) & (theta > 0))).to(theta.dtype)
