"""What a linear solver is, and the operator that it sees."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._derivatives import jacobian
from setgrad.implicit._loop import EquationSolver, Limits, iterate
from setgrad.implicit._outcome import Outcome

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

    @cached_property
    def _pull(self) -> Callable[[Tensor], tuple[Tensor]]:
        pull: Callable[[Tensor], tuple[Tensor]] = torch.func.vjp(self.residual, self.zero)[1]
        return pull

    def apply(self, x: Tensor) -> Tensor:
        """A x."""
        return self.residual(x) + self.b

    def apply_transposed(self, x: Tensor) -> Tensor:
        """A^T x."""
        return self._pull(x)[0]

    def dense(self) -> Tensor:
        """A of each sample, `(*batch, n, n)`."""
        return jacobian(self.residual, self.zero)


def linear_limits(tol: float | None, max_steps: int, check_every: int, b: Tensor) -> Limits:
    """When to stop, relative to the norm of b; by default as near as the type allows with some room."""
    return Limits(max(1e-10, 100 * torch.finfo(b.dtype).eps) if tol is None else tol, max_steps, check_every)


def refuse_diagonal(solver: LinearSolver, diagonal: Tensor | None) -> None:
    """Say that a solver has no use for a preconditioner, rather than ignore it."""
    if diagonal is not None:
        raise OptionError(
            f"{type(solver).__name__} takes no preconditioner; leave precondition out, or use CG or GMRES"
        )


def run_krylov(
    steps: EquationSolver, operator: Operator, start: Tensor, tol: float | None, max_steps: int, check_every: int
) -> Outcome:
    """Take a Krylov method's steps in the one loop, to a tolerance relative to b."""
    limits = linear_limits(tol, max_steps, check_every, operator.b)
    return iterate(steps, operator.residual, start, limits, size_of(operator.b))


def size_of(b: Tensor) -> Callable[[Tensor], Tensor]:
    """The scale of a linear problem: the norm of its right-hand side, whatever the iterate."""
    norm = torch.linalg.vector_norm(b, dim=-1)
    return lambda _: norm
