"""What a linear solver is, and the operator that it sees."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._derivatives import jacobian, pull_back
from setgrad.implicit._status import Outcome

Residual = Callable[[Tensor], Tensor]


class LinearSolver(abc.ABC):
    """Solves A x = b for each sample, each in a Krylov space of its own, given only r(x) = A x - b."""

    @abc.abstractmethod
    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Find x with r(x) = 0. `diagonal`, if there is one, is an approximate inverse of the diagonal of A."""


@final
class Operator:
    """A and b of r(x) = A x - b."""

    def __init__(self, residual: Residual, like: Tensor) -> None:
        self.residual, self.zero = residual, torch.zeros_like(like)
        self.b = -residual(self.zero)

    def apply(self, x: Tensor) -> Tensor:
        """A x."""
        return self.residual(x) + self.b

    def apply_transposed(self, x: Tensor) -> Tensor:
        """A^T x."""
        return pull_back(self.residual, self.zero, x)

    def dense(self) -> Tensor:
        """A of each sample, `(*batch, n, n)`."""
        return jacobian(self.residual, self.zero)


def size_of(b: Tensor) -> Callable[[Tensor], Tensor]:
    """The scale of a linear problem: the norm of its right-hand side, whatever the iterate."""
    norm = torch.linalg.vector_norm(b, dim=-1)
    return lambda _: norm
