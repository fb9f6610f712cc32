"""The base class of linear solvers, the operator they work on, and the driver of Krylov methods."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import cached_property
from typing import Protocol, final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._jacobian import jacobian, make_vjp
from setgrad.implicit._loop import EquationSolver, Limits, Residual, iterate
from setgrad.implicit._solution import Outcome


class LinearSolver(abc.ABC):
    """A method that solves A x = b for each sample separately, from r(x) = A x - b alone."""

    @abc.abstractmethod
    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Return x with r(x) = 0.

        Args:
            residual: The map r, from `(*batch, n)` to `(*batch, n)`.
            start: The first iterate.
            inverse_diagonal: An approximate inverse of the diagonal of A, to precondition with, or None.
        """


@final
class Operator:
    """The matrix A and the right-hand side b of r(x) = A x - b."""

    def __init__(self, residual: Residual, like: Tensor) -> None:
        self.residual, self._zero = residual, torch.zeros_like(like)
        self.b = -residual(self._zero)

    @cached_property
    def apply_transposed(self) -> Callable[[Tensor], Tensor]:
        """The map x -> A^T x."""
        return make_vjp(self.residual, self._zero)

    def apply(self, x: Tensor) -> Tensor:
        """Return A x."""
        return self.residual(x) + self.b

    def dense(self) -> Tensor:
        """Return the matrix of each sample, `(*batch, n, n)`."""
        return jacobian(self.residual, self._zero)


def reject_preconditioner(solver: LinearSolver, inverse_diagonal: Tensor | None) -> None:
    """Raise an OptionError if a solver that cannot precondition gets a preconditioner."""
    if inverse_diagonal is not None:
        raise OptionError(f"{type(solver).__name__} takes no preconditioner; omit precondition, or use CG or GMRES")


def relative_tolerance(tol: float | None, dtype: torch.dtype) -> float:
    """Return the tolerance relative to the norm of b; by default a little above rounding."""
    return max(1e-10, 100 * torch.finfo(dtype).eps) if tol is None else tol


class KrylovOptions(Protocol):
    """The options that all Krylov methods share."""

    @property
    def tol(self) -> float | None: ...
    @property
    def max_steps(self) -> int: ...
    @property
    def check_every(self) -> int: ...


def run_krylov(options: KrylovOptions, steps: EquationSolver, operator: Operator, start: Tensor) -> Outcome:
    """Run the steps of a Krylov method in the common loop."""
    limits = Limits(relative_tolerance(options.tol, operator.b.dtype), options.max_steps, options.check_every)
    b_norm = torch.linalg.vector_norm(operator.b, dim=-1)
    return iterate(steps, operator.residual, start, limits, lambda _: b_norm)


def precondition(inverse_diagonal: Tensor | None, r: Tensor) -> Tensor:
    """Multiply by the approximate inverse diagonal, if there is one."""
    return r if inverse_diagonal is None else inverse_diagonal * r
