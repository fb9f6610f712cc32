"""Normal-equation conjugate gradients in one Krylov space for the whole batch, as jaxopt and TorchOpt solve adjoints.

The batch is one long vector and the system one block-diagonal matrix: all samples share the two step lengths, and one
norm over all of them decides when to stop. The spectrum of the system is the union of the spectra of all samples.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


def solve_normal(
    apply: Product, apply_transposed: Product, b: Tensor, *, tol: float, max_steps: int
) -> tuple[Tensor, int]:
    """Solve A x = b through A^T A x = A^T b from x = 0.

    Stops when the norm of A^T (b - A x) is at most `tol` times that of A^T b, both over the whole batch. That is the
    rule of the libraries, and it is weaker than a tolerance for every sample.

    Returns:
        x, and the number of steps, each with two products.
    """
    x = torch.zeros_like(b)
    # At x = 0 the residual of the normal equations is their right-hand side.
    residual = apply_transposed(b)
    direction, rho = residual, _dot(residual, residual)
    bound = tol * tol * rho
    for step in range(max_steps):
        if bool(rho <= bound):
            return x, step
        product = apply_transposed(apply(direction))
        alpha = rho / _dot(direction, product)
        x, residual = x + alpha * direction, residual - alpha * product
        following = _dot(residual, residual)
        direction, rho = residual + following / rho * direction, following
    return x, max_steps


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()
