"""Linear solvers, for the linear systems of the backward pass and of forward mode."""

from setgrad.implicit.linear._base import LinearSolver as LinearSolver
from setgrad.implicit.linear.bicgstab import BiCGSTAB as BiCGSTAB
from setgrad.implicit.linear.cg import CG as CG
from setgrad.implicit.linear.cg import NormalCG as NormalCG
from setgrad.implicit.linear.direct import Direct as Direct
from setgrad.implicit.linear.gmres import GMRES as GMRES
from setgrad.implicit.linear.minres import MINRES as MINRES
from setgrad.implicit.linear.neumann import Neumann as Neumann
from setgrad.implicit.linear.neumann import OneStepAdjoint as OneStepAdjoint
