"""What the numbers of an item are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive numbers of an item that the model reads in one way.

    Attributes:
        width: How many numbers there are.
        codes: 0 for quantities. Else the numbers are codes below this, and the model learns a vector for each; 0 is the
            code of nothing, whose vector is zero.
        dim: Length of the vectors.
        context: Whether the numbers are the same for all items of a set.
        compared: How many of the numbers, the first ones, are quantities that are compared with those of other items.
        scales: Length of the vector of each code before training; None for 1.
    """

    width: int
    codes: int = 0
    dim: int = 0
    context: bool = False
    compared: int = 0
    scales: np.ndarray | None = None

    @property
    def features(self) -> int:
        """Number of features that the model makes of the numbers."""
        return self.dim if self.codes else self.width


def count_features(parts: Sequence[Part]) -> int:
    """Return the number of features of an item."""
    return sum(part.features for part in parts)


def compared_scales(parts: Sequence[Part], scales: Tensor) -> Tensor:
    """Return a factor for each feature, for comparing items of a set: 0 for context, 1 for vectors of codes.

    Args:
        parts: What the numbers of an item are.
        scales: Factors of quantities, one for each number.
    """
    pieces = []
    for part, own in zip(parts, scales.split([part.width for part in parts]), strict=True):
        factor = own.new_ones(part.dim) if part.codes else own
        pieces.append(torch.zeros_like(factor) if part.context else factor)
    return torch.cat(pieces)
