"""Small least squares problems, one for each sample, without waiting for the device.

Columns that depend on earlier ones get weight 0. `torch.linalg` has this by singular values only, and waits for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.implicit._vectors import over


def least_squares(matrix: Tensor, right: Tensor, *, least: float) -> Tensor:
    """Weights `(*batch, w)` of the columns of `(*batch, n, w)` that come nearest to `(*batch, n)`.

    A column that keeps no more than the part `least` of its length beside the earlier ones depends on them.
    """
    width = matrix.shape[-1]
    lengths = torch.linalg.vector_norm(matrix, dim=-2)
    # Columns that are still to come are 0, and take no share.
    basis = torch.zeros_like(matrix)
    triangle = matrix.new_zeros(*matrix.shape[:-2], width, width)
    for j in range(width):
        rest = matrix[..., j : j + 1]
        # Twice, because once loses orthogonality to rounding.
        for _ in range(2 if j else 0):
            shares = basis.mT @ rest
            triangle[..., j : j + 1] += shares
            rest = rest - basis @ shares
        length = torch.linalg.vector_norm(rest, dim=-2)
        dependent = length <= least * lengths[..., j : j + 1]
        basis[..., j] = over(rest[..., 0], torch.where(dependent, 0.0, length))
        triangle[..., j, j] = torch.where(dependent, 1.0, length)[..., 0]
    return torch.linalg.solve_triangular(triangle, basis.mT @ right[..., None], upper=True)[..., 0]
