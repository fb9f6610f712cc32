"""Linear systems of a batch that are factorised once: for the proof, for the value, and for every derivative of it.

On the CPU with several threads, torch (at least up to 2.13) factorises the matrices of a batch at the same time by a
routine of MKL that is not safe there: from about 150 unknowns on, the factors are wrong, or it never returns (issues
141358 and 142815 of pytorch). One matrix alone is right, with all threads, so large ones are taken one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from setgrad.errors import OptionError

# Smaller matrices are safe, and quicker together.
_SAFE = 128


@final
@dataclass(frozen=True, eq=False)
class Factors:
    """LU factors of matrices `(*batch, n, n)` with pivots, as torch has them."""

    lu: Tensor
    pivots: Tensor


def factorise(matrix: Tensor) -> tuple[Factors, Tensor]:
    """Factors of `(b, n, n)`, and which samples are singular: exactly, or so nearly that no digit is left."""
    require_full_precision(matrix.dtype)
    several = len(matrix) > 1 and torch.get_num_threads() > 1
    if several and matrix.device.type == "cpu" and matrix.shape[-1] > _SAFE:
        found = [torch.linalg.lu_factor_ex(single) for single in matrix]
        # Column by column, as the routines want them: they copy what is not.
        lu = torch.stack([one.LU.mT for one in found]).mT
        pivots, info = torch.stack([one.pivots for one in found]), torch.stack([one.info for one in found])
    else:
        lu, pivots, info = torch.linalg.lu_factor_ex(matrix)
    least = lu.diagonal(dim1=-2, dim2=-1).abs().amin(-1)
    tiny = torch.finfo(matrix.dtype).eps * matrix.abs().sum(-1).amax(-1)
    return Factors(lu, pivots), (info != 0) | (least <= tiny)


def require_full_precision(kind: torch.dtype) -> None:
    """Refuse the half precisions, in which torch factorises nothing."""
    if kind in (torch.float16, torch.bfloat16):
        raise OptionError(
            f"linear systems cannot be solved in {kind}: use float32 for y0 and the arguments (tensor.float()), and "
            "leave torch.autocast outside (torch.autocast(..., enabled=False))"
        )


def solve_marked(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Factors]:
    """Solve `(b, n, n)` and say which samples are singular; their solution is 0."""
    factors, singular = factorise(matrix)
    x = torch.linalg.lu_solve(factors.lu, factors.pivots, right[..., None])[..., 0]
    return torch.where(singular[..., None], 0.0, x), singular, factors


def solve_by(factors: Factors, matrix: Tensor, right: Tensor) -> Tensor:
    """Solve by the factors of `matrix`, constants, and differentiate as the solution of the system: to any order."""
    x: Tensor = _Solve.apply(matrix, right, factors.lu, factors.pivots, False)
    return x


@final
class _Solve(torch.autograd.Function):
    """The system or its transpose; the derivative of either is the other with the same factors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, right: Tensor, lu: Tensor, pivots: Tensor, transposed: bool) -> Tensor:
        """Two triangular systems."""
        return torch.linalg.lu_solve(lu, pivots, right[..., None], adjoint=transposed)[..., 0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the solution too: the derivative for the matrix is made of it."""
        matrix, _, lu, pivots, ctx.transposed = inputs
        ctx.save_for_backward(matrix, output, lu, pivots)
        ctx.save_for_forward(matrix, output, lu, pivots)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """One system with the transpose."""
        matrix, x, lu, pivots = ctx.saved_tensors
        u: Tensor = _Solve.apply(matrix, cotangents[0], lu, pivots, not ctx.transposed)
        left, right = (x, u) if ctx.transposed else (u, x)
        return -left[..., None] * right[..., None, :], u, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        """One system with the same matrix."""
        matrix, x, lu, pivots = ctx.saved_tensors
        moved, right = tangents[:2]
        right = torch.zeros_like(x) if right is None else right
        if moved is not None:
            right = right - ((moved.mT if ctx.transposed else moved) @ x[..., None])[..., 0]
        change: Tensor = _Solve.apply(matrix, right, lu, pivots, ctx.transposed)
        return change
