"""The implicit function theorem, once, for every order of derivative.

If f(y, args) = 0 defines y, then dy = -(df/dy)^-1 (df/dargs) dargs. The backward pass needs the solution u of the
adjoint system (df/dy)^T u = g, which is again an equation: r(u; y, g, args) = (df/dy)^T u - g = 0. It is solved by the
same Function, so u is differentiable in turn, and so on without end. Forward mode does the same with df/dy itself.
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
from setgrad.implicit._derivatives import pull_back, pulling, push_forward, pushing
from setgrad.implicit._outcome import Outcome, check_outcome
from setgrad.implicit.linear._base import LinearSolver

_REMEDY = (
    "use adjoint=Direct(), or raise tol or max_steps of the adjoint; where the Jacobian is singular, the solution is "
    "not isolated and has no derivative"
)

# f(y, *args) -> a residual of the shape of y; samples (all axes but the last) must not mix.
Function = Callable[..., Tensor]


@final
class Record:
    """Holds how the last linear system was solved, for whoever wants to look after the backward pass.

    `clean` says that somebody looked and no sample had failed, so that nobody needs to wait for a GPU to look again.
    """

    def __init__(self) -> None:
        self.last: Outcome | None = None
        self.clean = False


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """An equation, how to solve it, and how to solve its adjoint."""

    function: Function
    solve: Callable[[Function, Tensor, tuple[Tensor, ...]], Outcome]
    adjoint: LinearSolver
    policy: str
    # An approximate inverse of the diagonal of df/dy, from (y, *args): a preconditioner for the adjoint.
    diagonal: Callable[..., Tensor] | None = None
    record: Record | None = None
    # From (y, *args) a cheaper function, of y alone, with the value and all first derivatives of f there.
    near: Callable[..., Function] | None = None

    def linear(self, *, transposed: bool, line: Function | None = None) -> Problem:
        """The adjoint system, or not transposed the tangent system: a problem in u with arguments (y, g, *args).

        `line` is what `near` gave at y, where the caller has it.
        """
        product, products = (pull_back, pulling) if transposed else (push_forward, pushing)
        name = "the adjoint system of the backward pass" if transposed else "the tangent system of the forward mode"

        def function(u: Tensor, y: Tensor, g: Tensor, *args: Tensor) -> Tensor:
            return product(lambda v: self.function(v, *args), y, u) - g

        def solve(residual: Function, start: Tensor, values: tuple[Tensor, ...]) -> Outcome:
            y, g, *args = values
            scaling = None if self.diagonal is None else self.diagonal(y, *args)
            system: Function = lambda u: residual(u, *values)  # noqa: E731
            if residual is function:
                # Not mapped by vmap: all products share one evaluation of f, or of what stands for it. The derivatives
                # of u do not suffer: the theorem takes them from `function` above.
                near = self.near or (lambda y, *args: lambda v: self.function(v, *args))
                times = products(line or near(y, *(a.detach() for a in args)), y)
                system = lambda u: times(u) - g  # noqa: E731
            found = self.adjoint.solve(system, start, scaling)
            if self.record is not None:
                self.record.last = found
            check_outcome(found, self.policy, name, _REMEDY)
            failed = ~is_status(found.status, Status.CONVERGED)[..., None]
            return replace(found, value=found.value.masked_fill(failed, 0.0)) if self.policy == "mask" else found

        inverse = self.diagonal
        nested = None if inverse is None else lambda u, y, g, *args: inverse(y, *args)
        return Problem(function, solve, self.adjoint, self.policy, nested)

    def mapped(self, dims: tuple[int | None, ...]) -> Problem:
        """The same problem with one more axis in front, for `torch.func.vmap`."""
        inverse = self.diagonal
        return replace(
            self,
            function=torch.func.vmap(self.function, in_dims=dims),
            diagonal=None if inverse is None else torch.func.vmap(inverse, in_dims=dims),
            near=None,
        )


@final
class ImplicitFunction(torch.autograd.Function):
    """y(args), from a problem, a start and the arguments: value, status, residual norm and steps."""

    @staticmethod
    def forward(problem: Problem, start: Tensor, *args: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve without a graph."""
        found = problem.solve(problem.function, start, args)
        return found.value, found.status, found.residual, found.steps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the solution and the arguments; the iterates are gone."""
        problem, _, *args = inputs
        value, status, residual, steps = output
        ctx.problem = problem
        ctx.mark_non_differentiable(status, residual, steps)
        ctx.save_for_backward(value, status, *args)
        ctx.save_for_forward(value, status, *args)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Solve the adjoint system and pull the result back to the arguments."""
        problem, (y, status, *args) = ctx.problem, ctx.saved_tensors
        g = _spare_failed(cotangents[0], status, problem.policy)
        y = _stand_in(y, status, problem.policy)
        needed = ctx.needs_input_grad[2:]
        if problem.near is not None and not torch.is_grad_enabled() and not is_transformed(y, g, *args):
            return (None, None, *_once(problem, y, g, args, needed, status))
        u = ImplicitFunction.apply(problem.linear(transposed=True), torch.zeros_like(g), y, g, *args)[0]
        wanted = [i for i, of_this in enumerate(needed) if of_this]

        def of_wanted(*values: Tensor) -> Tensor:
            every = list(args)
            for place, value in zip(wanted, values, strict=True):
                every[place] = value
            return problem.function(y, *every)

        gradients: list[Tensor | None] = [None] * len(args)
        pulled = torch.func.vjp(of_wanted, *(args[i] for i in wanted))[1](-u) if wanted else ()
        for place, gradient in zip(wanted, pulled, strict=True):
            gradients[place] = _without_spoilt(gradient, status, problem.policy)
        if problem.policy == "mask" and not (problem.record is not None and problem.record.clean):
            _refuse_spoilt([found for found in gradients if found is not None], g, status)
        return (None, None, *gradients)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        """Solve the tangent system."""
        problem, (y, status, *args) = ctx.problem, ctx.saved_tensors
        change = torch.zeros_like(y)
        for place, tangent in enumerate(tangents[2:]):
            if tangent is not None:

                def of_one(value: Tensor, place: int = place) -> Tensor:
                    return problem.function(y, *args[:place], value, *args[place + 1 :])

                change = change - push_forward(of_one, args[place], tangent)
        change = _spare_failed(change, status, problem.policy)
        dy = ImplicitFunction.apply(problem.linear(transposed=False), torch.zeros_like(y), y, change, *args)[0]
        return dy, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], problem: Problem, start: Tensor, *args: Tensor) -> tuple[Any, Any]:
        """Put the mapped axis in front: solvers are batched anyway."""
        _, start_dim, *dims = in_dims
        start = start.movedim(start_dim, 0) if start_dim is not None else start.expand(info.batch_size, *start.shape)
        moved = [a if d is None else a.movedim(d, 0) for a, d in zip(args, dims, strict=True)]
        mapped = problem.mapped((0, *(None if d is None else 0 for d in dims)))
        return ImplicitFunction.apply(mapped, start, *moved), (0, 0, 0, 0)


def _once(
    problem: Problem, y: Tensor, g: Tensor, args: list[Tensor], needed: tuple[bool, ...], status: Tensor
) -> tuple[Tensor | None, ...]:
    """The backward pass that nobody differentiates: one evaluation near y serves the system and the last product."""
    assert problem.near is not None
    y = y.detach()
    with torch.enable_grad():
        leaves = [a.detach().requires_grad_(of_this) for a, of_this in zip(args, needed, strict=True)]
        line = problem.near(y, *leaves)
        out = line(y)
    u = ImplicitFunction.apply(problem.linear(transposed=True, line=line), torch.zeros_like(g), y, g, *args)[0]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    pulled = (
        torch.autograd.grad(out, wanted, -u, materialize_grads=True)
        if out.requires_grad
        else [torch.zeros_like(leaf) for leaf in wanted]
    )
    # Nobody looks whether a shared gradient is spoilt: this is where training passes, and looking waits for a GPU.
    of_wanted = iter([_without_spoilt(gradient, status, problem.policy) for gradient in pulled])
    return tuple(next(of_wanted) if of_this else None for of_this in needed)


def _spare_failed(vector: Tensor, status: Tensor, policy: str) -> Tensor:
    """With the policy "mask", samples that failed get no derivative rather than a wrong one."""
    return torch.where(is_status(status, Status.CONVERGED)[..., None], vector, 0.0) if policy == "mask" else vector


def _stand_in(y: Tensor, status: Tensor, policy: str) -> Tensor:
    """With the policy "mask", samples that failed are seen at the solution of another one.

    They count 0 times, but 0 times a derivative that is not finite is NaN, and where they ended it may be so.
    """
    if policy != "mask" or not status.dim() or not status.numel():
        return y
    solved = is_status(status, Status.CONVERGED)
    some = y.flatten(0, -2).index_select(0, solved.flatten().long().argmax()[None])
    return torch.where(solved[..., None], y, some[0])


def _without_spoilt(gradient: Tensor, status: Tensor, policy: str) -> Tensor:
    """With the policy "mask", 0 for NaN in the gradient of what belongs to failed samples alone."""
    if policy != "mask":
        return gradient
    failed = ~is_status(status, Status.CONVERGED)
    own = gradient.shape[: status.dim()] == status.shape
    rows = failed.reshape(*failed.shape, *[1] * (gradient.dim() - failed.dim())) if own else failed.all()
    return torch.where(rows & gradient.isnan(), 0.0, gradient)


def _refuse_spoilt(gradients: list[Tensor], g: Tensor, status: Tensor) -> None:
    """An error where failed samples made NaN of what they share with the others."""
    if not gradients or is_transformed(g, status, *gradients):
        return
    spoilt = torch.stack([gradient.isnan().any() for gradient in gradients]).any()
    failed = ~is_status(status, Status.CONVERGED).all()
    if bool(spoilt & failed & ~g.isnan().any()):
        raise ConvergenceError(
            "samples failed, and what they share with the others has no gradient: that of the function is not finite "
            "for them, and 0 times NaN is NaN. Leave out the samples whose solution.converged is False and solve "
            "again, or keep NaN and infinity out of the function (a.clamp(min=0).sqrt())"
        )
