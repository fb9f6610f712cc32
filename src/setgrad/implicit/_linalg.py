"""Linear algebra for batches: products, norms, least squares and LU factors of each sample.

Torch (at least up to 2.13) factorises the matrices of a batch in parallel on the CPU with an MKL routine that is not
thread-safe: from about 150 unknowns on, the factors are wrong or the call never returns (pytorch issues 141358 and
142815). One matrix at a time is correct, with all threads, so `lu_factor` loops over large matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.errors import OptionError

# Up to this size, factorising a batch of matrices together is safe, and faster than one by one.
_SAFE_SIZE = 128


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products, `(*batch, 1)`."""
    return (a * b).sum(-1, keepdim=True)


def norm(x: Tensor) -> Tensor:
    """Return the Euclidean norms, `(*batch, 1)`."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def safe_divide(x: Tensor, divisor: Tensor) -> Tensor:
    """Return x / divisor for divisors of at least 0, and 0 where the divisor is 0."""
    return torch.where(divisor > 0, x / torch.where(divisor > 0, divisor, 1.0), 0.0)


def least_squares(matrix: Tensor, right: Tensor, *, rtol: float) -> Tensor:
    """Return the weights `(*batch, k)` of the columns of `(*batch, n, k)` that fit `(*batch, n)` best.

    A column whose part orthogonal to the earlier columns is at most `rtol` of its length counts as dependent and gets
    weight 0. `torch.linalg` does this only with singular values, and waits for the device.
    """
    n_columns = matrix.shape[-1]
    lengths = torch.linalg.vector_norm(matrix, dim=-2)
    # Later columns of the basis are still 0, so they do not contribute to the projection.
    basis = torch.zeros_like(matrix)
    triangle = matrix.new_zeros(*matrix.shape[:-2], n_columns, n_columns)
    for j in range(n_columns):
        column = matrix[..., j : j + 1]
        # Twice, because one pass loses orthogonality to rounding.
        for _ in range(2 if j else 0):
            coefficients = basis.mT @ column
            triangle[..., j : j + 1] += coefficients
            column = column - basis @ coefficients
        length = torch.linalg.vector_norm(column, dim=-2)
        is_dependent = length <= rtol * lengths[..., j : j + 1]
        basis[..., j] = safe_divide(column[..., 0], torch.where(is_dependent, 0.0, length))
        triangle[..., j, j] = torch.where(is_dependent, 1.0, length)[..., 0]
    return torch.linalg.solve_triangular(triangle, basis.mT @ right[..., None], upper=True)[..., 0]


@final
@dataclass(frozen=True, eq=False)
class LUFactors:
    """LU factors of matrices `(*batch, n, n)` and their pivots, in the format of `torch.linalg.lu_factor`."""

    lu: Tensor
    pivots: Tensor


def lu_factor(matrix: Tensor) -> tuple[LUFactors, Tensor]:
    """Factorise `(*batch, n, n)`.

    Returns:
        The factors, and a mask `(*batch,)` of the matrices that are singular up to rounding.

    Raises:
        OptionError: If the matrix has half precision.
    """
    check_precision(matrix.dtype)
    is_parallel = matrix.shape[:-2].numel() > 1 and torch.get_num_threads() > 1
    if is_parallel and matrix.device.type == "cpu" and matrix.shape[-1] > _SAFE_SIZE:
        results = [torch.linalg.lu_factor_ex(single) for single in matrix.flatten(0, -3)]
        # Column-major, because LAPACK copies everything else.
        lu = torch.stack([result.LU.mT for result in results]).mT.unflatten(0, matrix.shape[:-2])
        pivots = torch.stack([result.pivots for result in results]).unflatten(0, matrix.shape[:-2])
        info = torch.stack([result.info for result in results]).unflatten(0, matrix.shape[:-2])
    else:
        lu, pivots, info = torch.linalg.lu_factor_ex(matrix)
    smallest_pivot = lu.diagonal(dim1=-2, dim2=-1).abs().amin(-1)
    rounding = torch.finfo(matrix.dtype).eps * matrix.abs().sum(-1).amax(-1)
    return LUFactors(lu, pivots), (info != 0) | (smallest_pivot <= rounding)


def check_precision(dtype: torch.dtype) -> None:
    """Raise an OptionError for half precision, in which torch factorises no matrices."""
    if dtype in (torch.float16, torch.bfloat16):
        raise OptionError(
            f"linear systems cannot be solved in {dtype}: use float32 for y0 and the arguments (tensor.float()), and "
            "disable autocast around the call (torch.autocast(..., enabled=False))"
        )


def solve_checked(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor, LUFactors]:
    """Solve `(*batch, n, n)` systems; return the solution (0 where singular), the singular mask and the factors."""
    factors, is_singular = lu_factor(matrix)
    x = torch.linalg.lu_solve(factors.lu, factors.pivots, right[..., None])[..., 0]
    return torch.where(is_singular[..., None], 0.0, x), is_singular, factors


def solve_with_factors(factors: LUFactors, matrix: Tensor, right: Tensor) -> Tensor:
    """Return the solution of matrix @ x = right from constant factors; it has derivatives of every order."""
    x: Tensor = _SolveWithFactors.apply(matrix, right, factors.lu, factors.pivots, False)
    return x


@final
class _SolveWithFactors(torch.autograd.Function):
    """Solves the system or its transpose; each is differentiated by solving the other with the same factors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, right: Tensor, lu: Tensor, pivots: Tensor, transposed: bool) -> Tensor:
        return torch.linalg.lu_solve(lu, pivots, right[..., None], adjoint=transposed)[..., 0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        matrix, _, lu, pivots, ctx.transposed = inputs
        ctx.save_for_backward(matrix, output, lu, pivots)
        ctx.save_for_forward(matrix, output, lu, pivots)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        matrix, x, lu, pivots = ctx.saved_tensors
        u: Tensor = _SolveWithFactors.apply(matrix, cotangents[0], lu, pivots, not ctx.transposed)
        left, right = (x, u) if ctx.transposed else (u, x)
        return -left[..., None] * right[..., None, :], u, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        matrix, x, lu, pivots = ctx.saved_tensors
        matrix_tangent, right = tangents[:2]
        right = torch.zeros_like(x) if right is None else right
        if matrix_tangent is not None:
            right = right - ((matrix_tangent.mT if ctx.transposed else matrix_tangent) @ x[..., None])[..., 0]
        dx: Tensor = _SolveWithFactors.apply(matrix, right, lu, pivots, ctx.transposed)
        return dx
