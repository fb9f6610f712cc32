"""Products, norms and quotients of each sample's vector; results keep the last axis, so that they broadcast."""

from __future__ import annotations

import torch
from torch import Tensor


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product, `(*batch, 1)`."""
    return (a * b).sum(-1, keepdim=True)


def norm(x: Tensor) -> Tensor:
    """Length, `(*batch, 1)`."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def over(x: Tensor, positive: Tensor) -> Tensor:
    """X divided by a number that is not negative; 0 where that number is 0."""
    return torch.where(positive > 0, x / torch.where(positive > 0, positive, 1.0), 0.0)
