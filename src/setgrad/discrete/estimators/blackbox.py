"""Differentiation of black-box solvers by one more call on a perturbed theta."""

from __future__ import annotations

import math
from typing import final

from torch import Tensor

from setgrad.discrete._estimator import Choice, SolverEstimator
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators._difference import difference
from setgrad.errors import OptionError


@final
class Blackbox(SolverEstimator):
    """The gradient (z(theta) - z(theta - lam * g)) / lam, where g is the incoming gradient.

    It is the gradient of a piecewise linear interpolation of the loss. "Differentiation of blackbox combinatorial
    solvers" (Vlastelica et al., 2020). The way back calls the solver once.

    Args:
        solver: The map from theta to z.
        lam: How far to step. Small steps find no other solution (gradient 0), large ones blur. It is measured in
            theta per gradient, so a loss averaged over a batch of B needs a lam B times as large as its sum.

    Example:
        >>> import torch
        >>> from setgrad.discrete import TopK
        >>> theta = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> Blackbox(TopK(2), lam=4.0)(theta)[2].backward()
        >>> theta.grad
        tensor([-0.2500,  0.0000,  0.2500])
    """

    def __init__(self, solver: CombinatorialSolver, *, lam: float) -> None:
        super().__init__(solver, noise=None, samples=1, generator=None)
        if not 0 < lam < math.inf:
            raise OptionError(f"lam must be a finite number above 0, got {lam}")
        self.lam = lam

    def pull(self, choice: Choice, grad: Tensor) -> Tensor:
        """Step against the gradient and see where the solution goes."""
        return difference(self, choice, self.lam * grad, central=False) / self.lam
