"""The doors of the room: fixed_point, root and argmin, all one equation f(y, args) = 0 underneath."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from setgrad._autograd import has_tangent, is_tracked, levels
from setgrad._status import Status, is_status
from setgrad.errors import ConvergenceError, OptionError, ShapeError
from setgrad.implicit._loop import EquationSolver, Limits, iterate
from setgrad.implicit._outcome import Outcome, check_outcome, describe_failure
from setgrad.implicit._theorem import Function, ImplicitFunction, Problem, Record
from setgrad.implicit.linear import CG, GMRES, Direct, LinearSolver, Neumann, OneStepAdjoint
from setgrad.implicit.modules import with_parameters
from setgrad.implicit.solvers import Newton, Picard

# The adjoints that a weight serves as preconditioner.
_PRECONDITIONED = (CG, GMRES)
# Up to this many unknowns a dense factorisation beats an iteration.
_DENSE = 256


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """A solution and how it was found, for each sample: `status`, norm of the `residual`, number of `steps`."""

    value: Tensor
    status: Tensor
    residual: Tensor
    steps: Tensor
    record: Record = field(default_factory=Record, repr=False)

    @property
    def adjoint(self) -> Outcome | None:
        """How the last backward pass (or forward mode) solved its linear system; None before there was one."""
        return self.record.last

    @property
    def converged(self) -> Tensor:
        """Which samples were solved, `(*batch,)`."""
        return is_status(self.status, Status.CONVERGED)

    def unwrap(self) -> Tensor:
        """The value, or a ConvergenceError if any sample failed."""
        if not bool(self.converged.all()):
            raise ConvergenceError(
                describe_failure(Outcome(self.value, self.status, self.residual, self.steps), "solve")
            )
        self.record.clean = True
        return self.value


def fixed_point(
    fn: Function,
    y0: Tensor,
    *args: Tensor,
    solver: EquationSolver | None = None,
    adjoint: LinearSolver | None = None,
    tol: float = 1e-6,
    max_steps: int = 100,
    check_every: int | None = None,
    on_failure: str = "raise",
    mask: Tensor | None = None,
    precondition: Callable[..., Tensor] | None = None,
    weight: Callable[[Tensor], Tensor] | None = None,
    size: float = 1.0,
    tangent: Callable[..., Function] | None = None,
    part: Callable[..., Function | None] | None = None,
) -> Solution:
    """Find y with fn(y, *args) = y, for each sample, and differentiate it with respect to the arguments.

    Args:
        fn: The map, from `(*batch, n)` and the arguments to `(*batch, n)`; samples must not mix. A module's parameters
            count as arguments, its buffers as constants.
        y0: Where to start; the last axis is the unknown, every other axis a sample.
        *args: Tensors to differentiate with respect to. Anything captured by `fn` that requires a gradient is refused.
        solver: `Picard()` by default; `Anderson()`, `Newton()`, `Broyden()`.
        adjoint: How the backward pass solves its linear system: `Direct()` by default, `GMRES()` for many unknowns.
        tol: Norm of the residual at which a sample is solved, relative to the norm of y where that exceeds `size`.
        max_steps: Steps at most.
        check_every: How often, in steps, the host asks whether all samples are done, which waits for a GPU. None for
            every step on the CPU and every fourth elsewhere.
        on_failure: "raise", "warn", or "mask": go on, with no derivative for the failed samples.
        mask: Which unknowns are real, `(*batch, n)`; the others stay as they are.
        precondition: For the adjoints `CG()` and `GMRES()`: from (y, *args) an approximate inverse of the diagonal of
            the Jacobian of the residual fn(y) - y.
        weight: From y positive numbers of its shape, entry by entry, that make the Jacobian of weight * (y - fn(y))
            symmetric at the solution, as where y is stationary for some objective. The adjoint may then be `CG()`, and
            is preconditioned by 1 / weight.
        size: Norm of a small solution, below which `tol` is no longer relative.
        tangent: From (y, *args) a map of y alone that has the value and the first derivatives of fn there, with respect
            to y and to the arguments, and is cheaper to differentiate: the adjoint's products go through it.
        part: For y0 `(b, n)`: from (rows, *args) the map of the samples with these numbers alone, `(len(rows), n)`, or
            None. Samples that are done are then left out of the iteration: it pays where a few take many more steps.

    Example:
        >>> import torch
        >>> a = torch.tensor([[0.5], [1.0]], dtype=torch.float64, requires_grad=True)
        >>> y = fixed_point(lambda y, a: (a * y).cos(), torch.zeros(2, 1, dtype=torch.float64), a).value
        >>> torch.allclose(y, (a * y).cos(), atol=1e-6)
        True
    """
    call, values, constants = with_parameters(fn, y0, args)
    # A series for the inverse of I - J knows the residual in the form fn(y) - y only.
    weight = None if isinstance(adjoint, (Neumann, OneStepAdjoint)) else weight

    def residual_of(call: Function) -> Function:
        return lambda y, *a: _same_shape(call(y, *a), y) - y

    def residual_of_some(rows: Tensor, *a: Tensor) -> Function | None:
        made = None if part is None else part(rows, *a)
        return None if made is None else residual_of(made)

    return _solve(
        residual_of(call),
        y0,
        values,
        constants,
        solver or Picard(),
        adjoint or _default_adjoint(y0),
        _limits(y0, tol, max_steps, check_every),
        on_failure,
        mask,
        precondition,
        weight,
        size,
        None if tangent is None else lambda y, *a: residual_of(tangent(y, *a)),
        None if part is None else residual_of_some,
    )


def root(
    fn: Function,
    y0: Tensor,
    *args: Tensor,
    solver: EquationSolver | None = None,
    adjoint: LinearSolver | None = None,
    tol: float = 1e-6,
    max_steps: int = 100,
    check_every: int | None = None,
    on_failure: str = "raise",
    mask: Tensor | None = None,
    precondition: Callable[..., Tensor] | None = None,
) -> Solution:
    """Find y with fn(y, *args) = 0, for each sample; `Newton()` by default. Options as in `fixed_point`.

    Example:
        >>> import torch
        >>> c = torch.tensor([[2.0], [9.0]], dtype=torch.float64, requires_grad=True)
        >>> y = root(lambda y, c: y * y - c, torch.ones(2, 1, dtype=torch.float64), c).value
        >>> [round(g, 6) for g in torch.autograd.grad(y.sum(), c)[0].flatten().tolist()]
        [0.353553, 0.166667]
    """
    _refuse_series(adjoint)
    call, values, constants = with_parameters(fn, y0, args)
    return _solve(
        lambda y, *a: _same_shape(call(y, *a), y),
        y0,
        values,
        constants,
        solver or Newton(),
        adjoint or _default_adjoint(y0),
        _limits(y0, tol, max_steps, check_every),
        on_failure,
        mask,
        precondition,
    )


def argmin(
    objective: Function,
    y0: Tensor,
    *args: Tensor,
    solver: EquationSolver | None = None,
    adjoint: LinearSolver | None = None,
    tol: float = 1e-6,
    max_steps: int = 100,
    check_every: int | None = None,
    on_failure: str = "raise",
    mask: Tensor | None = None,
    precondition: Callable[..., Tensor] | None = None,
) -> Solution:
    """Find a stationary y of objective(y, *args) `(*batch,)`, for each sample; `Newton()` by default.

    The Jacobian of the gradient is symmetric, so the adjoint may be `CG()`: the default for many unknowns. Options as
    in `fixed_point`.

    Example:
        >>> import torch
        >>> w = torch.tensor([[1.0, 3.0]], dtype=torch.float64, requires_grad=True)
        >>> y = argmin(lambda y, w: ((y - w) ** 2).sum(-1), torch.zeros(1, 2, dtype=torch.float64), w).value
        >>> y.tolist()
        [[1.0, 3.0]]
    """
    _refuse_series(adjoint)
    call, values, constants = with_parameters(objective, y0, args)

    def gradient(y: Tensor, *a: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(lambda v: call(v, *a).sum())(y)
        return slope

    usual = Direct() if sum(y0.shape[-1:]) <= _DENSE else CG()
    return _solve(
        gradient,
        y0,
        values,
        constants,
        solver or Newton(),
        adjoint or usual,
        _limits(y0, tol, max_steps, check_every),
        on_failure,
        mask,
        precondition,
    )


def _solve(
    residual: Function,
    y0: Tensor,
    args: tuple[Tensor, ...],
    constants: tuple[Tensor, ...],
    solver: EquationSolver,
    adjoint: LinearSolver,
    limits: Limits,
    policy: str,
    mask: Tensor | None,
    precondition: Callable[..., Tensor] | None,
    weight: Callable[[Tensor], Tensor] | None = None,
    size: float = 1.0,
    near: Callable[..., Function] | None = None,
    some: Callable[..., Function | None] | None = None,
) -> Solution:
    y0 = y0.detach()
    if y0.dim() == 0 or not y0.is_floating_point():
        raise ShapeError(
            f"y0 must be real, with the unknowns on the last axis; it has shape {tuple(y0.shape)}, {y0.dtype}"
        )
    if mask is not None and mask.dtype != torch.bool:
        raise ShapeError(f"the mask must be bool, True for the unknowns that are real, not {mask.dtype}; use mask != 0")
    plain = residual if mask is None else _masked(residual, mask)

    def whole(f: Function) -> Function:
        weighted = f if weight is None else lambda y, *a: -weight(y) * f(y, *a)
        return weighted if mask is None else _masked(weighted, mask)

    function, shown, args = whole(residual), len(args), (*args, *constants)
    begun = _check(function, y0, args)

    def solve(f: Function, start: Tensor, values: tuple[Tensor, ...]) -> Outcome:
        # Solvers step along the residual without the weight. Mapped by vmap, there is only the one with it.
        unweighted = lambda r, y: r if weight is None else -r / weight(y)  # noqa: E731
        step = (lambda y: plain(y, *values)) if f is function else (lambda y: unweighted(f(y, *values), y))
        first = None if begun is None else unweighted(begun, start)

        def part(rows: Tensor) -> Function | None:
            made = None if some is None else some(rows, *values[:shown])
            return made if made is None or mask is None else _masked(made, mask[rows])

        # Mapped by vmap, samples have more axes than the caller knows of.
        divisible = some is not None and f is function and start.dim() == 2
        found = iterate(solver, step, start, limits, _norm_above(size), first, part if divisible else None)
        check_outcome(found, policy, "the equation")
        return found

    record = Record()
    if weight is not None and precondition is None and isinstance(adjoint, _PRECONDITIONED):
        precondition = lambda y, *_: 1 / weight(y)  # noqa: E731
    inverse = precondition
    # What the caller gave knows of no constants.
    diagonal = None if inverse is None else lambda y, *a: inverse(y, *a[:shown])
    straight = None if near is None else lambda y, *a: whole(near(y, *a[:shown]))
    problem = Problem(function, solve, adjoint, policy, diagonal, record, straight)
    value, status, norm, steps = ImplicitFunction.apply(problem, y0, *args)
    return Solution(value, status, norm, steps, record)


def _refuse_series(adjoint: LinearSolver | None) -> None:
    """A series in the derivative of a map means nothing where there is no map."""
    if isinstance(adjoint, Neumann | OneStepAdjoint):
        raise OptionError(
            f"{type(adjoint).__name__} is an approximation for fixed points, and this is none; use Direct(), GMRES(), "
            "or for an arg min CG()"
        )


def _masked(residual: Function, mask: Tensor) -> Function:
    def function(y: Tensor, *args: Tensor) -> Tensor:
        # Zero in value and one in derivative: such an unknown stays where it is and never makes a system singular.
        return torch.where(mask, residual(torch.where(mask, y, y.detach()), *args), y - y.detach())

    return function


def _check(function: Function, y0: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    """Refuse what would lose a derivative. Where nothing is transformed, returns the residual at the start."""
    for number, arg in enumerate(args):
        if not isinstance(arg, Tensor):
            raise OptionError(
                f"argument {number} is {type(arg).__name__}, not a tensor; let the function capture what is constant"
            )
    # Once for all arguments together: what is followed although they are not, comes from somewhere else.
    with torch.enable_grad():
        out = _same_shape(function(y0, *(a.detach() for a in args)), y0)
    if is_tracked(out) or has_tangent(out):
        raise OptionError(
            "the function captures a tensor that requires a gradient, which would be lost: pass it as an argument "
            "(fn(y, weight) with weight in *args), pass a module itself as fn, or detach it"
        )
    transforms = {level for given in (y0, *args) for level in levels(given)}
    if not transforms.issuperset(levels(out)):
        raise OptionError(
            "the function captures a tensor that torch.func maps or differentiates, and none of its arguments: pass it "
            "as an argument (fn(y, weight) with weight in *args)"
        )
    return None if transforms else out


def _same_shape(out: Tensor, y: Tensor) -> Tensor:
    if not isinstance(out, Tensor):
        raise ShapeError(
            f"the function must return one tensor of the shape of y, {tuple(y.shape)}, but returned "
            f"{type(out).__name__}; stack several unknowns on the last axis"
        )
    if out.shape != y.shape:
        raise ShapeError(f"the function must return the shape of y, {tuple(y.shape)}, but returned {tuple(out.shape)}")
    return out


def _limits(y0: Tensor, tol: float, max_steps: int, check_every: int | None) -> Limits:
    usual = 1 if y0.device.type == "cpu" else 4
    # Long enough for a transient, short enough to be worth having.
    patience = max(100, max_steps // 4)
    return Limits(tol, max_steps, usual if check_every is None else check_every, patience)


def _norm_above(size: float) -> Callable[[Tensor], Tensor]:
    return lambda y: torch.linalg.vector_norm(y, dim=-1).clamp(min=size)


def _default_adjoint(y0: Tensor) -> LinearSolver:
    return Direct() if sum(y0.shape[-1:]) <= _DENSE else GMRES()
