"""Mean, variance and largest magnitude of every feature, of items that may be on disk."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows that are read at once.
_ROWS = 2**20


def column_moments(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the variance and the largest magnitude of each column, in double precision.

    Args:
        values: One row for each item, at least one.
    """
    if len(values) <= _ROWS:
        wide = values.double()
        return wide.mean(0), wide.var(0, correction=0), wide.abs().amax(0)
    parts = values.split(_ROWS)
    mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(values)
    squares = torch.stack([(part.double() - mean).square_().sum(0) for part in parts]).sum(0)
    largest = torch.stack([part.double().abs().amax(0) for part in parts]).amax(0)
    return mean, squares / len(values), largest
