"""Differences of solutions, shared by Blackbox, IMLE, AIMLE and LPGD."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from setgrad.discrete._estimator import ForwardPass, SolverEstimator
from setgrad.discrete._solver import SolverResult, expand_flags
from setgrad.discrete.projections import NormProjection
from setgrad.errors import OptionError, SolverError


def check_step(lam: float) -> float:
    """Return a step size; raise an OptionError unless it is a finite number above 0."""
    if not 0 < lam < math.inf:
        raise OptionError(f"lam must be a finite number above 0, got {lam}")
    return lam


def solution_difference(estimator: SolverEstimator, saved: ForwardPass, step: Tensor, *, central: bool) -> Tensor:
    """Return z(theta + step) - z(theta - step), or z(theta) - z(theta - step), with one call of the solver.

    The difference is 0 where the solver has no answer.
    """
    if central:
        result = solve_in_backward(estimator, torch.stack([saved.theta + step, saved.theta - step]))
        change, known = result.value[0] - result.value[1], result.has_answer.all(0)
    else:
        result = solve_in_backward(estimator, saved.theta - step)
        change, known = saved.z - result.value, result.has_answer
    return torch.where(expand_flags(known & saved.has_answer, change), change, 0)


def difference_quotient(change: Tensor, inverse: Tensor | float, *, samples: int, central: bool) -> Tensor:
    """Return the gradient of the mean loss over samples, from solution differences of each loss and 1/lambda."""
    factor = inverse / (samples * (2 if central else 1))
    # Where nothing changed the gradient is 0, even if the factor is NaN because the incoming gradient was.
    return torch.where(change != 0, change * factor, 0)


def solve_in_backward(estimator: SolverEstimator, theta: Tensor) -> SolverResult:
    """Solve, and let a failure say that it happened in the backward pass."""
    try:
        return estimator.solve(theta)
    except SolverError as error:
        raise SolverError(f"in the backward pass, after a step along the gradient of the loss: {error}") from error


def instance_norms(values: Tensor, dims: int) -> Tensor:
    """Return the Euclidean norm of each instance, with its axes kept.

    It is the product with the unit vector: squares of very large or small numbers would overflow or underflow.
    """
    return (NormProjection()(values, dims) * values).sum(tuple(range(-dims, 0)), keepdim=True)


def relative_step(saved: ForwardPass, grad: Tensor, fraction: Tensor | float, dims: int) -> tuple[Tensor, Tensor]:
    """Return steps along the gradient whose length is a fraction of theta's, for each instance alone, and 1/lambda.

    The length of theta is the root mean square, over the samples, of the norm of theta with noise: with noise it is
    never 0, and all samples of an instance share it. A length of 0 counts as 1. Where the gradient is 0, the step and
    1/lambda are 0.
    """
    axes = tuple(range(-dims, 0))
    theta = torch.where(expand_flags(saved.has_answer, saved.theta), saved.theta, 0)
    has_samples = saved.theta.ndim > saved.clean.ndim
    # Squares of very large or small numbers overflow or underflow, so divide by the largest entry first.
    largest = theta.abs().amax((0, *axes) if has_samples else axes, keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    length = torch.linalg.vector_norm(theta / largest, dim=axes, keepdim=True)
    if has_samples:
        length, largest = length.square().mean(0).sqrt(), largest[0]
    length = torch.where(length > 0, length * largest, 1)
    unit = NormProjection()(grad, dims)
    norm = (unit * grad).sum(axes, keepdim=True)
    return fraction * length * unit, norm / (fraction * length)
