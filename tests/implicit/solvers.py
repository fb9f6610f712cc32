"""ONE table of solvers and ONE of adjoints, with what each may be asked."""

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
    """A forward solver and the problems that it is made for."""

    solver: EquationSolver
    fits: Callable[[Case], bool]

    def __str__(self) -> str:
        return repr(self.solver)


def _through(*doors: object) -> Callable[[Case], bool]:
    return lambda case: case.door in doors


SOLVERS = [
    Entry(Picard(), _through(fixed_point)),
    Entry(Picard(damping=0.7), _through(fixed_point)),
    Entry(AdaptivePicard(), _through(fixed_point)),
    Entry(Anderson(), _through(fixed_point)),
    Entry(Anderson(window=2, damping=0.8), _through(fixed_point)),
    Entry(Newton(), _through(fixed_point, root, argmin)),
    Entry(Broyden(), _through(fixed_point, root, argmin)),
    Entry(Bisection(-10.0, 10.0), lambda case: case.separable),
    Entry(GradientDescent(0.02), _through(argmin)),
    Entry(LBFGS(), _through(argmin)),
]
# Tight, because derivatives of derivatives inherit the errors.
GENERAL: list[LinearSolver] = [
    Direct(),
    GMRES(tol=1e-13),
    GMRES(tol=1e-13, restart=2),
    NormalCG(tol=1e-13),
    BiCGSTAB(tol=1e-13),
]
SYMMETRIC: list[LinearSolver] = [CG(tol=1e-13), MINRES(tol=1e-13)]

FORWARD = [(case, entry.solver) for case in CASES for entry in SOLVERS if entry.fits(case)]
BACKWARD = [(case, adjoint) for case in CASES for adjoint in [*GENERAL, *(SYMMETRIC if case.door is argmin else [])]]
