"""BiCGSTAB, for any square system, with short recurrences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.implicit._loop import EquationSolver, Step
from setgrad.implicit._loop import Residual as Fn
from setgrad.implicit._outcome import Outcome
from setgrad.implicit._vectors import dot
from setgrad.implicit.linear._base import LinearSolver, Operator, Residual, refuse_diagonal, run_krylov


@final
@dataclass(frozen=True)
class BiCGSTAB(LinearSolver):
    """Stabilised biconjugate gradients: two products a step and no basis to store; convergence may be rough."""

    tol: float | None = None
    max_steps: int = 500
    check_every: int = 4

    def solve(self, residual: Residual, start: Tensor, diagonal: Tensor | None) -> Outcome:
        """Solve; a sample whose recurrence breaks down starts it anew."""
        refuse_diagonal(self, diagonal)
        operator = Operator(residual, start)
        return run_krylov(_Steps(operator), operator, start, self.tol, self.max_steps, self.check_every)


@final
@dataclass(frozen=True)
class _State:
    shadow: Tensor
    direction: Tensor
    rho: Tensor


@final
@dataclass(frozen=True)
class _Steps(EquationSolver):
    operator: Operator

    def begin(self, fn: Fn, y: Tensor, residual: Tensor) -> _State:
        return _State(-residual, -residual, dot(residual, residual))

    def step(self, fn: Fn, y: Tensor, residual: Tensor, state: _State) -> Step:
        r, p = -residual, state.direction
        image = self.operator.apply(p)
        alpha, broken = _ratio(state.rho, dot(state.shadow, image))
        s = r - alpha * image
        pushed = self.operator.apply(s)
        omega, _ = _ratio(dot(pushed, s), dot(pushed, pushed))
        y = y + alpha * p + omega * s
        r = s - omega * pushed
        rho = dot(state.shadow, r)
        # (rho' / rho) (alpha / omega), where any of them may have vanished.
        first, lost = _ratio(rho, state.rho)
        second, stuck = _ratio(alpha, omega)
        anew = broken | lost | stuck
        direction = torch.where(anew, r, r + first * second * (p - omega * image))
        shadow = torch.where(anew, r, state.shadow)
        return Step(y, -r, _State(shadow, direction, torch.where(anew, dot(r, r), rho)))


def _ratio(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A / b, and where b is too small for that."""
    small = ~(b.abs() > torch.finfo(b.dtype).tiny)
    return torch.where(small, 0.0, a / torch.where(small, 1.0, b)), small
