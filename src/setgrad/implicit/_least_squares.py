"""Small least squares problems, one for each sample, without waiting for the device.

Columns that depend on earlier ones get weight 0. `torch.linalg` has this by singular values only, and waits for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.implicit._vectors import dot, over


def least_squares(matrix: Tensor, right: Tensor, *, least: float) -> Tensor:
    """Weights `(*batch, w)` of the columns of `(*batch, n, w)` that come nearest to `(*batch, n)`.

    A column that keeps no more than the part `least` of its length beside the earlier ones depends on them.
    """
    width = matrix.shape[-1]
    basis: list[Tensor] = []
    triangle = matrix.new_zeros(*matrix.shape[:-2], width, width)
    for j in range(width):
        column = matrix[..., j]
        rest = column
        # Twice, because once loses orthogonality to rounding.
        for _ in range(2):
            for i, direction in enumerate(basis):
                share = dot(direction, rest)
                triangle[..., i, j] += share[..., 0]
                rest = rest - share * direction
        length = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
        dependent = length <= least * torch.linalg.vector_norm(column, dim=-1, keepdim=True)
        basis.append(over(rest, torch.where(dependent, 0.0, length)))
        triangle[..., j, j] = torch.where(dependent, 1.0, length)[..., 0]
    shares = torch.stack([dot(direction, right) for direction in basis], -2)
    return torch.linalg.solve_triangular(triangle, shares, upper=True)[..., 0]
