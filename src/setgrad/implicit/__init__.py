"""Solve equations f(y, args) = 0 for a batch, and differentiate the solutions to any order."""

from typing import TYPE_CHECKING, Any

from setgrad._deprecation import deprecated_name
from setgrad._status import Status as Status
from setgrad.implicit._loop import Step as Step
from setgrad.implicit._quadratic import quadratic as quadratic
from setgrad.implicit._solution import Solution as Solution
from setgrad.implicit._solve import argmin as argmin
from setgrad.implicit._solve import fixed_point as fixed_point
from setgrad.implicit._solve import root as root
from setgrad.implicit.diagnostics import GradientComparison as GradientComparison
from setgrad.implicit.diagnostics import compare_gradients as compare_gradients
from setgrad.implicit.diagnostics import contraction_estimate as contraction_estimate
from setgrad.implicit.diagnostics import plot_residuals as plot_residuals
from setgrad.implicit.diagnostics import residual_trace as residual_trace
from setgrad.implicit.linear import CG as CG
from setgrad.implicit.linear import GMRES as GMRES
from setgrad.implicit.linear import MINRES as MINRES
from setgrad.implicit.linear import BiCGSTAB as BiCGSTAB
from setgrad.implicit.linear import Direct as Direct
from setgrad.implicit.linear import LinearSolver as LinearSolver
from setgrad.implicit.linear import Neumann as Neumann
from setgrad.implicit.linear import NormalCG as NormalCG
from setgrad.implicit.linear import OneStepAdjoint as OneStepAdjoint
from setgrad.implicit.projections import entropic_budget as entropic_budget
from setgrad.implicit.projections import project_box as project_box
from setgrad.implicit.projections import project_budget as project_budget
from setgrad.implicit.projections import softmax as softmax
from setgrad.implicit.projections import sparsemax as sparsemax
from setgrad.implicit.solvers import LBFGS as LBFGS
from setgrad.implicit.solvers import AdaptivePicard as AdaptivePicard
from setgrad.implicit.solvers import Anderson as Anderson
from setgrad.implicit.solvers import Bisection as Bisection
from setgrad.implicit.solvers import Broyden as Broyden
from setgrad.implicit.solvers import EquationSolver as EquationSolver
from setgrad.implicit.solvers import GradientDescent as GradientDescent
from setgrad.implicit.solvers import Newton as Newton
from setgrad.implicit.solvers import Picard as Picard

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        old_names = {"OneStep": OneStepAdjoint, "Solver": EquationSolver}
        return deprecated_name(__name__, name, old_names, removed_in="0.3.0")
