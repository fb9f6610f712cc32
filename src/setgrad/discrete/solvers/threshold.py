"""Entries above a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.solvers._parameters import as_tensor, broadcast_parameter
from setgrad.errors import OptionError


@final
@dataclass(frozen=True, eq=False)
class Threshold(CombinatorialSolver):
    """Ones at all entries above the threshold (below it, for sense "min").

    z maximises `<theta - threshold, z>` among all vectors of 0 and 1. An entry equal to the threshold is 0.

    Args:
        threshold: A number, or a tensor that broadcasts to theta: (*batch, 1) is one number for each instance.

    Raises:
        OptionError: If the threshold contains NaN.

    Examples:
        >>> Threshold(0.5)(torch.tensor([0.2, 0.5, 0.9]))
        tensor([0., 0., 1.])
    """

    threshold: float | Tensor = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if as_tensor(self.threshold).isnan().any():
            raise OptionError("threshold contains NaN")

    def solve(self, theta: Tensor) -> Tensor:
        """Compare theta with the threshold, whose sign changes with theta's for sense "min"."""
        level = as_tensor(self.threshold).to(theta)
        entries = 1 if level.shape[-1:] == (1,) else theta.shape[-1]
        level = broadcast_parameter("threshold", level, theta.shape[:-1], entries)
        return torch.gt(theta, level if self.sense == "max" else -level).to(theta.dtype)
