"""Restarted GMRES, for any square system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.implicit._least_squares import least_squares
from setgrad.implicit._loop import EquationSolver, Step
from setgrad.implicit._loop import Residual as Fn
from setgrad.implicit._outcome import Outcome
from setgrad.implicit._vectors import norm, over
from setgrad.implicit.linear._base import LinearSolver, Operator, Residual, run_krylov


@final
@dataclass(frozen=True)
class GMRES(LinearSolver):
    """The best solution in a Krylov space of up to `restart` vectors, then again from there. One step is one cycle."""

    tol: float | None = None
    restart: int = 20
    max_steps: int = 50
    check_every: int = 1

    def __post_init__(self) -> None:
        if self.restart < 1:
            raise OptionError(f"restart must be at least 1, not {self.restart}")

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Solve; steps count products, not cycles."""
        operator = Operator(residual, start)
        size = min(self.restart, start.shape[-1])
        cycles = _Cycle(operator, size, diagonal)
        found = run_krylov(cycles, operator, start, self.tol, self.max_steps, self.check_every)
        return Outcome(found.value, found.status, found.residual, found.steps * size)


@final
@dataclass(frozen=True)
class _Cycle(EquationSolver):
    operator: Operator
    size: int
    inverse: Tensor | None

    def begin(self, fn: Fn, y: Tensor, residual: Tensor) -> None:
        return None

    def step(self, fn: Fn, y: Tensor, residual: Tensor, state: None) -> Step:
        left = self._precondition(-residual)
        first = norm(left)
        basis = [over(left, first)]
        # Column j of the Hessenberg matrix, (*batch, size + 1).
        columns: list[Tensor] = []
        for j in range(self.size):
            w = self._precondition(self.operator.apply(basis[j]))
            so_far = torch.stack(basis, -1)
            # Twice, because once loses orthogonality to rounding.
            h = (so_far.mT @ w[..., None])[..., 0]
            w = w - (so_far @ h[..., None])[..., 0]
            again = (so_far.mT @ w[..., None])[..., 0]
            w = w - (so_far @ again[..., None])[..., 0]
            length = norm(w)
            # The space is exhausted: what is left is rounding, and must not become a direction.
            length = torch.where(length <= 1e-14 * norm(h), 0.0, length)
            basis.append(over(w, length))
            padding = h.new_zeros(*h.shape[:-1], self.size - j - 1)
            columns.append(torch.cat([h + again, length, padding], -1))
        hessenberg = torch.stack(columns, -1)
        right = torch.cat([first, first.new_zeros(*first.shape[:-1], self.size)], -1)
        finite = hessenberg.isfinite().all(-1).all(-1)[..., None, None]
        # The columns beyond an exhausted space are zero, and get no weight.
        combination = least_squares(torch.where(finite, hessenberg, 0.0), right, least=100 * torch.finfo(y.dtype).eps)
        y = y + (torch.stack(basis[:-1], -1) @ combination[..., None])[..., 0]
        y = torch.where(finite[..., 0], y, torch.nan)
        return Step(y, fn(y), None)

    def _precondition(self, r: Tensor) -> Tensor:
        return r if self.inverse is None else self.inverse * r
