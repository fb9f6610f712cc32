"""Solvers of equations, one file each; all run in the one loop of this room."""

from setgrad.implicit._loop import EquationSolver as EquationSolver
from setgrad.implicit.solvers.adaptive import AdaptivePicard as AdaptivePicard
from setgrad.implicit.solvers.anderson import Anderson as Anderson
from setgrad.implicit.solvers.bisection import Bisection as Bisection
from setgrad.implicit.solvers.lbfgs import LBFGS as LBFGS
from setgrad.implicit.solvers.newton import Broyden as Broyden
from setgrad.implicit.solvers.newton import Newton as Newton
from setgrad.implicit.solvers.picard import GradientDescent as GradientDescent
from setgrad.implicit.solvers.picard import Picard as Picard
