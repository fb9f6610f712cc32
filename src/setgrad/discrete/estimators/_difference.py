"""Differences of solutions: what Blackbox, IMLE, AIMLE and LPGD have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.discrete._estimator import Choice, SolverEstimator, spread, usable
from setgrad.discrete._solver import SolverResult
from setgrad.discrete.projections import NormProjection
from setgrad.errors import SolverError


def difference(estimator: SolverEstimator, choice: Choice, move: Tensor, *, central: bool) -> Tensor:
    """Solutions after a step up and a step down along `move`, subtracted, in one call of the solver.

    The forward difference takes the solution that is there for the step up, so that only one is to be found. Where the
    solver has no answer the difference is 0.
    """
    if central:
        solved = solve_again(estimator, torch.stack([choice.theta + move, choice.theta - move]))
        change, known = solved.value[0] - solved.value[1], usable(solved).all(0)
    else:
        solved = solve_again(estimator, choice.theta - move)
        change, known = choice.z - solved.value, usable(solved)
    return torch.where(spread(known & choice.usable, change), change, 0)


def scaled(change: Tensor, factor: Tensor | float) -> Tensor:
    """A difference times a factor; where nothing changed it is 0, whatever the factor (NaN, for a gradient of NaN)."""
    return torch.where(change != 0, change * factor, 0)


def solve_again(estimator: SolverEstimator, theta: Tensor) -> SolverResult:
    """Solve in the backward pass, where a failure has another cause than in the forward pass."""
    try:
        return estimator.solve(theta)
    except SolverError as error:
        raise SolverError(f"in the backward pass, after a step along the gradient of the loss: {error}") from error


def lengths(values: Tensor, dims: int) -> Tensor:
    """Euclidean norm of each instance, its axes kept, by its product with the unit vector.

    Squares of very large and very small numbers leave the range of floats; here, only a norm that does so is lost.
    """
    return (NormProjection()(values, dims) * values).sum(tuple(range(-dims, 0)), keepdim=True)


def relative_move(
    estimator: SolverEstimator, choice: Choice, grad: Tensor, share: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Steps as long as a share of theta, for each instance alone, and 1/lambda for them.

    Theta's length is the root of the mean square, over the samples, of what the solver saw: with noise it is never 0,
    and all samples of an instance share it. Where theta is 0 all the same, its length counts as 1. Where the gradient
    is 0 the step is too, and so is 1/lambda.
    """
    dims = estimator.solver.dims
    axes = tuple(range(-dims, 0))
    seen = torch.where(spread(choice.usable, choice.theta), choice.theta, 0)
    sampled = choice.theta.ndim > choice.clean.ndim
    # Squares of very large and very small numbers leave the range of floats, so the largest entry goes first.
    largest = seen.abs().amax((0, *axes) if sampled else axes, keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    length = torch.linalg.vector_norm(seen / largest, dim=axes, keepdim=True)
    if sampled:
        length, largest = length.square().mean(0).sqrt(), largest[0]
    length = torch.where(length > 0, length * largest, 1)
    unit = NormProjection()(grad, dims)
    size = (unit * grad).sum(axes, keepdim=True)
    return share * length * unit, size / (share * length)
