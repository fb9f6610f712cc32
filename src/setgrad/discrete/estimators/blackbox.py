"""Differentiation of black-box solvers by one more call on a perturbed theta."""

from __future__ import annotations

from typing import final

from torch import Tensor

from setgrad.discrete._estimator import ForwardPass, SolverEstimator
from setgrad.discrete._solver import CombinatorialSolver
from setgrad.discrete.estimators._difference import check_step, solution_difference


@final
class Blackbox(SolverEstimator):
    """The gradient (z(theta) - z(theta - lam * g)) / lam, where g is the incoming gradient.

    It is the gradient of a piecewise linear interpolation of the loss. Vlastelica et al., 2020, arXiv:1912.02175.
    The backward pass calls the solver once.

    Args:
        solver: The map from theta to z.
        lam: The step size. Small steps find no other solution (gradient 0), large ones blur. Its unit is theta per
            gradient, so a loss averaged over a batch of B needs a lam B times as large as its sum.

    Raises:
        OptionError: If lam is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from setgrad.discrete import TopK
        >>> theta = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        >>> Blackbox(TopK(2), lam=4.0)(theta)[2].backward()
        >>> theta.grad
        tensor([-0.2500,  0.0000,  0.2500])
    """

    def __init__(self, solver: CombinatorialSolver, *, lam: float) -> None:
        super().__init__(solver, noise=None, samples=1, generator=None)
        self.lam = check_step(lam)

    def pullback(self, saved: ForwardPass, grad: Tensor) -> Tensor:
        """Return the difference between the solution and the one after a step against the gradient."""
        return solution_difference(self, saved, self.lam * grad, central=False) / self.lam
