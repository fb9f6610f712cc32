"""Named approximations of the adjoint of a fixed point: cheap, and wrong by a known amount."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.errors import OptionError
from setgrad.implicit._outcome import Outcome
from setgrad.implicit.linear._base import LinearSolver, Operator, Residual


@final
@dataclass(frozen=True)
class Neumann(LinearSolver):
    """The first `terms` terms of the series for the inverse of I - J. Right only as far as J is a contraction.

    Meant for `fixed_point`, where the residual is g(y) - y and its Jacobian J - I.
    """

    terms: int

    def __post_init__(self) -> None:
        if self.terms < 1:
            raise OptionError(f"Neumann needs at least 1 term, not {self.terms}")

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Sum the series; always reported as converged, with the residual that is left."""
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
    """Differentiate as if the last step had started from a constant: the first term of the series."""

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """One product."""
        return Neumann(1).solve(residual, start, diagonal)
