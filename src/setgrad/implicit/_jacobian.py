"""Products with Jacobians. They use reverse mode only, so they nest to any order: torch does not nest forward mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

VectorMap = Callable[[Tensor], Tensor]


def make_vjp(fn: VectorMap, y: Tensor) -> VectorMap:
    """Return the map v -> J^T v, with J the Jacobian of `fn` at `y`; `fn` is evaluated once for all products."""
    vjp = torch.func.vjp(fn, y)[1]
    return lambda v: vjp(v)[0]


def make_jvp(fn: VectorMap, y: Tensor) -> VectorMap:
    """Return the map v -> J v, as the transpose of v -> J^T v."""
    out, vjp = torch.func.vjp(fn, y)[:2]
    return make_vjp(lambda v: vjp(v)[0], torch.zeros_like(out))


def jacobian(fn: VectorMap, y: Tensor) -> Tensor:
    """Return the Jacobian of each sample, `(*batch, n, n)`, for a map of `(*batch, n)` that does not mix samples."""
    out, vjp = torch.func.vjp(fn, y)[:2]
    n = y.shape[-1]
    basis = torch.eye(n, dtype=out.dtype, device=out.device)
    basis = basis.reshape(n, *[1] * (out.dim() - 1), n).expand(n, *out.shape)
    rows: Tensor = torch.func.vmap(lambda e: vjp(e)[0])(basis)
    return rows.movedim(0, -2)
