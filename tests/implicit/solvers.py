"""The tables of solvers and adjoints, with the problems that each can solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from setgrad.implicit import (
    CG,
    GMRES,
    LBFGS,
    MINRES,
    AdaptivePicard,
    Anderson,
    BiCGSTAB,
    Bisection,
    Broyden,
    Direct,
    EquationSolver,
    GradientDescent,
    LinearSolver,
    Newton,
    NormalCG,
    Picard,
    argmin,
    fixed_point,
    root,
)
from tests.implicit.problems import CASES, Case


@dataclass(frozen=True)
class Entry:
    """A solver and the problems that it applies to."""

    solver: EquationSolver
    applies: Callable[[Case], bool]

    def __str__(self) -> str:
        return repr(self.solver)


def _for(*entry_points: object) -> Callable[[Case], bool]:
    return lambda case: case.entry_point in entry_points


SOLVERS = [
    Entry(Picard(), _for(fixed_point)),
    Entry(Picard(damping=0.7), _for(fixed_point)),
    Entry(AdaptivePicard(), _for(fixed_point)),
    Entry(Anderson(), _for(fixed_point)),
    Entry(Anderson(window=2, damping=0.8), _for(fixed_point)),
    Entry(Newton(), _for(fixed_point, root, argmin)),
    Entry(Broyden(), _for(fixed_point, root, argmin)),
    Entry(Bisection(-10.0, 10.0), lambda case: case.separable),
    Entry(GradientDescent(0.02), _for(argmin)),
    Entry(LBFGS(), _for(argmin)),
]
# Tight tolerances, because second derivatives amplify the errors.
GENERAL: list[LinearSolver] = [
    Direct(),
    GMRES(tol=1e-13),
    GMRES(tol=1e-13, restart=2),
    NormalCG(tol=1e-13),
    BiCGSTAB(tol=1e-13),
]
SYMMETRIC: list[LinearSolver] = [CG(tol=1e-13), MINRES(tol=1e-13)]

FORWARD = [(case, entry.solver) for case in CASES for entry in SOLVERS if entry.applies(case)]
BACKWARD = [(case, adjoint) for case in CASES for adjoint in GENERAL]
BACKWARD += [(case, adjoint) for case in CASES for adjoint in SYMMETRIC if case.entry_point is argmin]
