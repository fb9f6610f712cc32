"""Solvers of equations. All of them run in the loop of `setgrad.implicit._loop`."""

from setgrad.implicit._loop import EquationSolver as EquationSolver
from setgrad.implicit.solvers.anderson import Anderson as Anderson
from setgrad.implicit.solvers.bisection import Bisection as Bisection
from setgrad.implicit.solvers.lbfgs import LBFGS as LBFGS
from setgrad.implicit.solvers.newton import Broyden as Broyden
from setgrad.implicit.solvers.newton import Newton as Newton
from setgrad.implicit.solvers.picard import AdaptivePicard as AdaptivePicard
from setgrad.implicit.solvers.picard import GradientDescent as GradientDescent
from setgrad.implicit.solvers.picard import Picard as Picard
