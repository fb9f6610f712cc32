"""The implicit function theorem as one autograd Function, for derivatives of every order.

If f(y, args) = 0 defines y, then dy = -(df/dy)^-1 (df/dargs) dargs. The backward pass needs the solution u of the
adjoint system (df/dy)^T u = g, which is an equation again: r(u; y, g, args) = (df/dy)^T u - g = 0. It is solved by the
same Function, so u is differentiable too, to any order. Forward mode does the same with df/dy itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from setgrad._autograd import is_transformed
from setgrad._status import Status, is_status
from setgrad.errors import ConvergenceError
from setgrad.implicit._function import TensorFunction
from setgrad.implicit._jacobian import make_jvp, make_vjp
from setgrad.implicit._solution import AdjointRecord, Outcome, check_outcome
from setgrad.implicit.linear._base import LinearSolver

# From (y, *args) to a function of y alone.
Linearisation = Callable[..., TensorFunction]

_REMEDY = (
    "use adjoint=Direct(), or raise tol or max_steps of the adjoint; where the Jacobian is singular, the solution is "
    "not isolated and has no derivative"
)


@final
@dataclass(frozen=True, eq=False)
class ImplicitProblem:
    """An equation, how to solve it, and how to solve its adjoint system.

    Args:
        residual: The function f(y, *args) whose zero is differentiated.
        solve: From (residual, start, args) to the solution, without a graph.
        adjoint: Solves the linear systems.
        policy: "raise", "warn" or "mask".
        inverse_diagonal: From (y, *args) to an approximate inverse of the diagonal of df/dy, to precondition with.
        record: Where to store the results of the linear solves.
        linearisation: From (y, *args) to a function of y alone that is cheaper than f and has its value and its first
            derivatives at that point.
    """

    residual: TensorFunction
    solve: Callable[[TensorFunction, Tensor, tuple[Tensor, ...]], Outcome]
    adjoint: LinearSolver
    policy: str
    inverse_diagonal: Callable[..., Tensor] | None = None
    record: AdjointRecord | None = None
    linearisation: Linearisation | None = None

    def linear_problem(self, *, transposed: bool, linearised: TensorFunction | None = None) -> ImplicitProblem:
        """Return the adjoint system, or the tangent system, as a problem in u with arguments (y, g, *args).

        Args:
            transposed: True for the adjoint system, False for the tangent system of forward mode.
            linearised: The linearisation at (y, *args), if the caller has it.
        """
        make_product = make_vjp if transposed else make_jvp
        name = "the adjoint system of the backward pass" if transposed else "the tangent system of the forward mode"

        def linear_residual(u: Tensor, y: Tensor, g: Tensor, *args: Tensor) -> Tensor:
            return make_product(lambda v: self.residual(v, *args), y)(u) - g

        def solve(residual: TensorFunction, start: Tensor, values: tuple[Tensor, ...]) -> Outcome:
            y, g, *args = values
            scaling = None if self.inverse_diagonal is None else self.inverse_diagonal(y, *args)
            system: TensorFunction = lambda u: residual(u, *values)  # noqa: E731
            if residual is linear_residual:
                # Not mapped by vmap, so all products can share one evaluation of f or of its linearisation. This does
                # not affect the derivatives of u, which come from `linear_residual`.
                linearise = self.linearisation or (lambda y, *args: lambda v: self.residual(v, *args))
                product = make_product(linearised or linearise(y, *(a.detach() for a in args)), y)
                system = lambda u: product(u) - g  # noqa: E731
            outcome = self.adjoint.solve(system, start, scaling)
            if self.record is not None:
                self.record.last_outcome = outcome
            check_outcome(outcome, self.policy, name, _REMEDY)
            if self.policy != "mask":
                return outcome
            failed = ~is_status(outcome.status, Status.CONVERGED)[..., None]
            return replace(outcome, value=outcome.value.masked_fill(failed, 0.0))

        inverse = self.inverse_diagonal
        nested = None if inverse is None else lambda u, y, g, *args: inverse(y, *args)
        return ImplicitProblem(linear_residual, solve, self.adjoint, self.policy, nested)

    def vmapped(self, in_dims: tuple[int | None, ...]) -> ImplicitProblem:
        """Return the problem with one more batch axis in front, for `torch.func.vmap`."""
        inverse = self.inverse_diagonal
        return replace(
            self,
            residual=torch.func.vmap(self.residual, in_dims=in_dims),
            inverse_diagonal=None if inverse is None else torch.func.vmap(inverse, in_dims=in_dims),
            linearisation=None,
        )


@final
class ImplicitFunction(torch.autograd.Function):
    """The solution as a function of the arguments: (problem, start, *args) -> value, status, residual norm, steps."""

    @staticmethod
    def forward(problem: ImplicitProblem, start: Tensor, *args: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve without a graph."""
        outcome = problem.solve(problem.residual, start, args)
        return outcome.value, outcome.status, outcome.residual, outcome.steps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the solution and the arguments; no iterates."""
        problem, _, *args = inputs
        value, status, residual, steps = output
        ctx.problem = problem
        ctx.mark_non_differentiable(status, residual, steps)
        ctx.save_for_backward(value, status, *args)
        ctx.save_for_forward(value, status, *args)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Solve the adjoint system and multiply by the derivative with respect to the arguments."""
        problem, (y, status, *args) = ctx.problem, ctx.saved_tensors
        g = _zero_failed(cotangents[0], status, problem.policy)
        y = _replace_failed(y, status, problem.policy)
        needed = [i for i, is_needed in enumerate(ctx.needs_input_grad[2:]) if is_needed]
        is_first_order = not torch.is_grad_enabled() and not is_transformed(y, g, *args)
        linearisation = problem.linearisation if is_first_order else None
        if linearisation is None:
            gradients = _vjp(problem, y, g, args, needed)
        else:
            gradients = _linearised_vjp(problem, linearisation, y, g, args, needed)
        gradients = [_zero_nan_of_failed(gradient, status, problem.policy) for gradient in gradients]
        all_converged = problem.record is not None and problem.record.all_converged
        # Not with a linearisation, which is for training: the check waits for a GPU.
        if problem.policy == "mask" and linearisation is None and not all_converged:
            _check_shared_gradients(gradients, g, status)
        by_argument = dict(zip(needed, gradients, strict=True))
        return (None, None, *(by_argument.get(i) for i in range(len(args))))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        """Solve the tangent system."""
        problem, (y, status, *args) = ctx.problem, ctx.saved_tensors
        change = torch.zeros_like(y)
        for i, tangent in enumerate(tangents[2:]):
            if tangent is not None:

                def of_one(value: Tensor, i: int = i) -> Tensor:
                    return problem.residual(y, *args[:i], value, *args[i + 1 :])

                change = change - make_jvp(of_one, args[i])(tangent)
        change = _zero_failed(change, status, problem.policy)
        linear_problem = problem.linear_problem(transposed=False)
        dy = ImplicitFunction.apply(linear_problem, torch.zeros_like(y), y, change, *args)[0]
        return dy, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], problem: ImplicitProblem, start: Tensor, *args: Tensor
    ) -> tuple[Any, Any]:
        """Move the mapped axis to the front, where it is one more batch axis."""
        _, start_dim, *dims = in_dims
        start = start.movedim(start_dim, 0) if start_dim is not None else start.expand(info.batch_size, *start.shape)
        moved = [a if d is None else a.movedim(d, 0) for a, d in zip(args, dims, strict=True)]
        vmapped = problem.vmapped((0, *(None if d is None else 0 for d in dims)))
        return ImplicitFunction.apply(vmapped, start, *moved), (0, 0, 0, 0)


def _vjp(problem: ImplicitProblem, y: Tensor, g: Tensor, args: list[Tensor], needed: list[int]) -> list[Tensor]:
    """Return the gradients of the needed arguments, differentiable to any order."""
    linear_problem = problem.linear_problem(transposed=True)
    u = ImplicitFunction.apply(linear_problem, torch.zeros_like(g), y, g, *args)[0]

    def of_needed(*values: Tensor) -> Tensor:
        all_args = list(args)
        for i, value in zip(needed, values, strict=True):
            all_args[i] = value
        return problem.residual(y, *all_args)

    return list(torch.func.vjp(of_needed, *(args[i] for i in needed))[1](-u)) if needed else []


def _linearised_vjp(
    problem: ImplicitProblem,
    linearisation: Linearisation,
    y: Tensor,
    g: Tensor,
    args: list[Tensor],
    needed: list[int],
) -> list[Tensor]:
    """Return the gradients of the needed arguments, of first order only.

    One evaluation of the linearisation serves both the adjoint system and the product with df/dargs.
    """
    y = y.detach()
    with torch.enable_grad():
        leaves = [a.detach().requires_grad_(i in needed) for i, a in enumerate(args)]
        linearised = linearisation(y, *leaves)
        out = linearised(y)
    linear_problem = problem.linear_problem(transposed=True, linearised=linearised)
    u = ImplicitFunction.apply(linear_problem, torch.zeros_like(g), y, g, *args)[0]
    inputs = [leaves[i] for i in needed]
    if not out.requires_grad:
        return [torch.zeros_like(leaf) for leaf in inputs]
    return list(torch.autograd.grad(out, inputs, -u, materialize_grads=True))


def _zero_failed(vector: Tensor, status: Tensor, policy: str) -> Tensor:
    """With the policy "mask", set the vectors of failed samples to 0, so that they get no derivative."""
    return torch.where(is_status(status, Status.CONVERGED)[..., None], vector, 0.0) if policy == "mask" else vector


def _replace_failed(y: Tensor, status: Tensor, policy: str) -> Tensor:
    """With the policy "mask", move failed samples to the solution of another sample.

    They count 0 times, but the derivative where they ended may not be finite, and 0 times infinity is NaN.
    """
    if policy != "mask" or not status.dim() or not status.numel():
        return y
    converged = is_status(status, Status.CONVERGED)
    solution = y.flatten(0, -2).index_select(0, converged.flatten().long().argmax()[None])
    return torch.where(converged[..., None], y, solution[0])


def _zero_nan_of_failed(gradient: Tensor, status: Tensor, policy: str) -> Tensor:
    """With the policy "mask", replace NaN by 0 in the gradients of arguments that belong to failed samples only."""
    if policy != "mask":
        return gradient
    failed = ~is_status(status, Status.CONVERGED)
    is_per_sample = gradient.shape[: status.dim()] == status.shape
    rows = failed.reshape(*failed.shape, *[1] * (gradient.dim() - failed.dim())) if is_per_sample else failed.all()
    return torch.where(rows & gradient.isnan(), 0.0, gradient)


def _check_shared_gradients(gradients: list[Tensor], g: Tensor, status: Tensor) -> None:
    """Raise if failed samples turned the gradient of a shared argument into NaN."""
    if not gradients or is_transformed(g, status, *gradients):
        return
    has_nan = torch.stack([gradient.isnan().any() for gradient in gradients]).any()
    has_failed = ~is_status(status, Status.CONVERGED).all()
    if bool(has_nan & has_failed & ~g.isnan().any()):
        raise ConvergenceError(
            "samples failed, and the arguments they share with the others have no gradient: the derivative of the "
            "function is not finite for the failed samples, and 0 times NaN is NaN. Leave out the samples whose "
            "solution.converged is False and solve again, or keep NaN and infinity out of the function "
            "(a.clamp(min=0).sqrt())"
        )
