"""What the numbers of an item are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

# Longer vectors have no axes that mean something by themselves.
_MOST_COMPARED = 32
# Numbers by which two texts are compared: their words and groups of letters, hashed.
HASHED = 256


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
        words: How many of the numbers, the first ones, are codes of words, which may occur in other items too.
        scales: Length of the vector of each code before training; None for 1.
    """

    width: int
    codes: int = 0
    dim: int = 0
    context: bool = False
    compared: int = 0
    words: int = 0
    scales: np.ndarray | None = None

    @staticmethod
    def vector(length: int, *, context: bool = False) -> Part:
        """Return a vector of quantities, which are compared with those of other items if there are few."""
        return Part(length, context=context, compared=length if length <= _MOST_COMPARED else 0)

    @property
    def features(self) -> int:
        """Number of features that the model makes of the numbers."""
        return self.dim if self.codes else self.width

    @property
    def compared_features(self) -> int:
        """Number of features by which a pair of items is compared."""
        return HASHED if self.words else self.features


def count_features(parts: Sequence[Part]) -> int:
    """Return the number of features of an item."""
    return sum(part.features for part in parts)


def compared_scales(parts: Sequence[Part], scales: Tensor) -> Tensor:
    """Return a factor for each feature by which items are compared: 0 for context, 1 for vectors of codes.

    Args:
        parts: What the numbers of an item are.
        scales: Factors of quantities, one for each number; those of the last parts may be missing.
    """
    pieces, start = [], 0
    for part in parts:
        own, start = scales[start : start + part.width], start + part.width
        factor = own if len(own) == part.width and not part.codes else scales.new_ones(part.compared_features)
        pieces.append(torch.zeros_like(factor) if part.context else factor)
    return torch.cat(pieces)
