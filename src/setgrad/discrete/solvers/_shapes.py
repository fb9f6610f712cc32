"""Shapes that several solvers ask for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from setgrad.errors import ShapeError


def check_square(name: str, theta: Tensor, least: int = 1) -> None:
    """Refuse instances that are not n x n, or too small."""
    rows, columns = theta.shape[-2:]
    if rows != columns:
        raise ShapeError(f"{name} takes square matrices, got {rows} x {columns}")
    if rows < least:
        raise ShapeError(f"{name} needs {least} nodes or more, got {rows}")


def bounded(theta: Tensor, terms: int) -> Tensor:
    """Entries of which a sum of so many terms would be infinite, made as large as they may be."""
    most = torch.finfo(theta.dtype).max / terms
    return theta.clamp(-most, most)


def slices(count: int, each: int, room: int) -> Iterator[slice]:
    """Parts of a batch whose working memory, `each` numbers for one instance, stays within `room` numbers."""
    size = max(1, room // max(1, each))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
