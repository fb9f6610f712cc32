"""Products with Jacobians, by reverse passes alone, so that they nest to any order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def pulling(fn: Callable[[Tensor], Tensor], y: Tensor) -> Callable[[Tensor], Tensor]:
    """`pull_back` at one point for many vectors: the function itself is evaluated once."""
    pull = torch.func.vjp(fn, y)[1]
    return lambda vector: pull(vector)[0]


def pushing(fn: Callable[[Tensor], Tensor], y: Tensor) -> Callable[[Tensor], Tensor]:
    """`push_forward` at one point for many vectors."""
    out, pull = torch.func.vjp(fn, y)[:2]
    return pulling(lambda w: pull(w)[0], torch.zeros_like(out))


def pull_back(fn: Callable[[Tensor], Tensor], y: Tensor, vector: Tensor) -> Tensor:
    """Transposed Jacobian of `fn` at `y` times a vector."""
    return pulling(fn, y)(vector)


def push_forward(fn: Callable[[Tensor], Tensor], y: Tensor, vector: Tensor) -> Tensor:
    """Jacobian of `fn` at `y` times a vector: the transpose of the transpose.

    Forward mode would do, but torch does not nest it.
    """
    return pushing(fn, y)(vector)


def jacobian(fn: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """Jacobian of each sample, `(*batch, n, n)`, for a map of `(*batch, n)` that keeps samples apart."""
    out, pull = torch.func.vjp(fn, y)[:2]
    n = y.shape[-1]
    basis = torch.eye(n, dtype=out.dtype, device=out.device)
    basis = basis.reshape(n, *[1] * (out.dim() - 1), n).expand(n, *out.shape)
    rows: Tensor = torch.func.vmap(lambda e: pull(e)[0])(basis)
    return rows.movedim(0, -2)
