"""Shapes that several solvers ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from setgrad.errors import ShapeError


def check_square(name: str, theta: Tensor, least: int = 1) -> None:
    """Refuse instances that are not n x n, or too small."""
    rows, columns = theta.shape[-2:]
    if rows != columns:
        raise ShapeError(f"{name} takes square matrices, got {rows} x {columns}")
    if rows < least:
        raise ShapeError(f"{name} needs {least} nodes or more, got {rows}")


def unit(terms: int) -> float:
    """A factor so small that no sum of so many terms is infinite; a power of 2, so that no digit is lost."""
    return 2.0 ** -math.ceil(math.log2(terms))


def bounded(theta: Tensor, terms: int) -> Tensor:
    """Theta times the unit of so many terms."""
    return theta * unit(terms)


def slices(count: int, each: int, room: int) -> Iterator[slice]:
    """Parts of a batch whose working memory, `each` numbers for one instance, stays within `room` numbers."""
    size = max(1, room // max(1, each))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
