"""Approximate adjoints of a fixed point: cheap, and not the exact gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.errors import OptionError
from setgrad.implicit._loop import Residual
from setgrad.implicit._solution import Outcome
from setgrad.implicit.linear._base import LinearSolver, Operator


@final
@dataclass(frozen=True)
class Neumann(LinearSolver):
    """The first terms of the Neumann series for the inverse of I - J; it converges if J is a contraction.

    For `fixed_point` only, where the residual is fn(y) - y and its Jacobian J - I.

    Args:
        terms: Number of terms, at least 1.

    Raises:
        OptionError: If `terms` is below 1.

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> a = torch.ones(1, requires_grad=True)
        >>> fixed_point(lambda y, a: 0.5 * y + a, torch.zeros(1), a, adjoint=Neumann(2)).value.backward()
        >>> round(a.grad.item(), 4)
        1.5
    """

    terms: int

    def __post_init__(self) -> None:
        if self.terms < 1:
            raise OptionError(f"Neumann needs at least 1 term, not {self.terms}")

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Sum the series; finite results always have the status CONVERGED, with the residual that is left."""
        operator = Operator(residual, start)
        term = -operator.b
        total = term
        for _ in range(self.terms - 1):
            # (J - I) t + t = J t
            term = operator.apply(term) + term
            total = total + term
        norm = torch.linalg.vector_norm(residual(total), dim=-1)
        status = torch.where(norm.isfinite(), int(Status.CONVERGED), int(Status.NONFINITE))
        return Outcome(total, status, norm, torch.full_like(status, self.terms))


@final
@dataclass(frozen=True)
class OneStepAdjoint(LinearSolver):
    """The gradient of one last step from a constant, the first term of the Neumann series ("Jacobian-free").

    Examples:
        >>> import torch
        >>> from setgrad.implicit import fixed_point
        >>> a = torch.ones(1, requires_grad=True)
        >>> fixed_point(lambda y, a: 0.5 * y + a, torch.zeros(1), a, adjoint=OneStepAdjoint()).value.backward()
        >>> round(a.grad.item(), 4)
        1.0
    """

    def solve(self, residual: Residual, start: Tensor, inverse_diagonal: Tensor | None) -> Outcome:
        """Return the first term of the series."""
        return Neumann(1).solve(residual, start, inverse_diagonal)
