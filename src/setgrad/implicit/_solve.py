"""The entry points `fixed_point`, `root` and `argmin`. Each of them builds an equation residual(y, args) = 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError
from setgrad.implicit._function import TensorFunction, Tensors, check_function, check_shape, with_parameters
from setgrad.implicit._implicit_function import ImplicitFunction, ImplicitProblem, Linearisation
from setgrad.implicit._loop import EquationSolver, Limits, iterate
from setgrad.implicit._solution import AdjointRecord, Outcome, Solution, check_outcome
from setgrad.implicit.linear import CG, GMRES, Direct, LinearSolver, Neumann, OneStepAdjoint
from setgrad.implicit.solvers import Newton, Picard

# Up to this many unknowns the default adjoint is dense.
_MAX_DENSE = 256


def fixed_point(
    fn: TensorFunction,
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
    min_norm: float = 1.0,
    linearisation: Linearisation | None = None,
    restrict: Callable[..., TensorFunction | None] | None = None,
) -> Solution:
    """Solve fn(y, *args) = y for each sample, and differentiate the solution with respect to the arguments.

    Args:
        fn: The map, from `(*batch, n)` and the arguments to `(*batch, n)`; samples must not mix. The parameters of a
            module count as arguments, its buffers as constants.
        y0: The first iterate, `(*batch, n)`. The last axis holds the unknowns, every other axis is a batch axis.
        *args: Tensors to differentiate with respect to. `fn` must not capture a tensor that requires a gradient.
        solver: `Picard()` by default; or `AdaptivePicard()`, `Anderson()`, `Newton()`, `Broyden()`.
        adjoint: Solves the linear system of the backward pass. `Direct()` by default, `GMRES()` for over 256 unknowns.
        tol: Norm of the residual fn(y) - y at which a sample has converged, relative to the norm of y.
        max_steps: Largest number of steps.
        check_every: Number of steps between two checks whether all samples are done, which wait for a GPU. By default
            1 on the CPU and 4 elsewhere.
        on_failure: "raise", "warn", or "mask" to continue with no derivative for the samples that failed.
        mask: Boolean, `(*batch, n)`: True for the unknowns to solve for. The others keep the value of `y0`.
        precondition: For the adjoints `CG()` and `GMRES()`: from (y, *args) to an approximate inverse of the diagonal
            of the Jacobian of fn(y) - y.
        weight: From y to positive factors of its shape, entry by entry, such that the Jacobian of weight * (y - fn(y))
            is symmetric at the solution, as it is at a stationary point of an objective. The adjoint may then be
            `CG()`; `CG()` and `GMRES()` are preconditioned by 1 / weight.
        min_norm: Where the norm of y is smaller than this, `tol` is relative to this norm.
        linearisation: From (y, *args) to a function of y alone that has the value and the first derivatives of `fn`
            there, with respect to y and to the arguments, and is cheaper to differentiate. Used by the adjoint.
        restrict: For y0 `(b, n)`: from (rows, *args) to the map of these samples alone, `(len(rows), n)`, or None.
            Samples that are done are then left out, which pays if a few samples take many more steps than the others.

    Returns:
        The solution, with the status, residual and number of steps of each sample.

    Raises:
        ConvergenceError: If a sample fails and `on_failure` is "raise".
        OptionError: If an option is out of range, or `fn` captures a tensor that requires a gradient.
        ShapeError: If `fn` does not return the shape of y, or `y0` or `mask` has a wrong shape or dtype.

    Examples:
        >>> import torch
        >>> a = torch.tensor([[0.5], [1.0]], dtype=torch.float64, requires_grad=True)
        >>> y = fixed_point(lambda y, a: (a * y).cos(), torch.zeros(2, 1, dtype=torch.float64), a).value
        >>> torch.allclose(y, (a * y).cos(), atol=1e-6)
        True
    """
    call, values, constants = with_parameters(fn, y0, args)
    adjoint = adjoint or _default_adjoint(y0)
    if isinstance(adjoint, Neumann | OneStepAdjoint):
        # These approximate the inverse of I - J, so they need the residual without a weight.
        weight = None
    if weight is not None and precondition is None and isinstance(adjoint, CG | GMRES):
        factors = weight
        precondition = lambda y, *_: 1 / factors(y)  # noqa: E731

    def residual_of(call: TensorFunction) -> TensorFunction:
        return lambda y, *a: check_shape(call(y, *a), y) - y

    def restricted_residual(rows: Tensor, *a: Tensor) -> TensorFunction | None:
        restricted = None if restrict is None else restrict(rows, *a)
        return None if restricted is None else residual_of(restricted)

    return EquationProblem(
        residual=residual_of(call),
        solver=solver or Picard(),
        adjoint=adjoint,
        limits=_limits(y0, tol, max_steps, check_every),
        on_failure=on_failure,
        mask=mask,
        precondition=precondition,
        weight=weight,
        min_norm=min_norm,
        linearisation=None if linearisation is None else lambda y, *a: residual_of(linearisation(y, *a)),
        restrict=None if restrict is None else restricted_residual,
    ).solve(y0, values, constants)


def root(
    fn: TensorFunction,
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
    """Solve fn(y, *args) = 0 for each sample, and differentiate the solution with respect to the arguments.

    The default solver is `Newton()`. The other options are the same as in `fixed_point`.

    Args:
        fn: The residual, from `(*batch, n)` and the arguments to `(*batch, n)`; samples must not mix.
        y0: The first iterate, `(*batch, n)`.
        *args: Tensors to differentiate with respect to.
        solver: As in `fixed_point`; also `Bisection(low, high)`.
        adjoint: As in `fixed_point`, but no Neumann series.
        tol: As in `fixed_point`, for the norm of fn(y).
        max_steps: As in `fixed_point`.
        check_every: As in `fixed_point`.
        on_failure: As in `fixed_point`.
        mask: As in `fixed_point`.
        precondition: As in `fixed_point`, for the Jacobian of `fn`.

    Returns:
        The solution, with the status, residual and number of steps of each sample.

    Raises:
        ConvergenceError: If a sample fails and `on_failure` is "raise".
        OptionError: If an option is out of range, or `fn` captures a tensor that requires a gradient.
        ShapeError: If `fn` does not return the shape of y, or `y0` or `mask` has a wrong shape or dtype.

    Examples:
        >>> import torch
        >>> c = torch.tensor([[2.0], [9.0]], dtype=torch.float64, requires_grad=True)
        >>> y = root(lambda y, c: y * y - c, torch.ones(2, 1, dtype=torch.float64), c).value
        >>> [round(g, 6) for g in torch.autograd.grad(y.sum(), c)[0].flatten().tolist()]
        [0.353553, 0.166667]
    """
    _reject_series(adjoint)
    call, values, constants = with_parameters(fn, y0, args)
    return EquationProblem(
        residual=lambda y, *a: check_shape(call(y, *a), y),
        solver=solver or Newton(),
        adjoint=adjoint or _default_adjoint(y0),
        limits=_limits(y0, tol, max_steps, check_every),
        on_failure=on_failure,
        mask=mask,
        precondition=precondition,
    ).solve(y0, values, constants)


def argmin(
    objective: TensorFunction,
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
    """Find a stationary point of objective(y, *args) for each sample, and differentiate it.

    The result is a stationary point, so a maximum or a saddle point counts as CONVERGED too: start near a minimum. The
    default solver is `Newton()`. The Jacobian of the gradient is symmetric, so the adjoint may be `CG()`, which is the
    default for over 256 unknowns. The other options are the same as in `fixed_point`.

    Args:
        objective: From `(*batch, n)` and the arguments to one number for each sample, `(*batch,)`.
        y0: The first iterate, `(*batch, n)`.
        *args: Tensors to differentiate with respect to.
        solver: As in `fixed_point`; also `LBFGS()` for many unknowns, and `GradientDescent(rate)`.
        adjoint: As in `fixed_point`, but no Neumann series; also `CG()` and `MINRES()`.
        tol: As in `fixed_point`, for the norm of the gradient.
        max_steps: As in `fixed_point`.
        check_every: As in `fixed_point`.
        on_failure: As in `fixed_point`.
        mask: As in `fixed_point`.
        precondition: As in `fixed_point`, for the Hessian.

    Returns:
        The solution, with the status, norm of the gradient and number of steps of each sample.

    Raises:
        ConvergenceError: If a sample fails and `on_failure` is "raise".
        OptionError: If an option is out of range, or `objective` captures a tensor that requires a gradient.
        ShapeError: If `y0` or `mask` has a wrong shape or dtype.

    Examples:
        >>> import torch
        >>> w = torch.tensor([[1.0, 3.0]], dtype=torch.float64, requires_grad=True)
        >>> y = argmin(lambda y, w: ((y - w) ** 2).sum(-1), torch.zeros(1, 2, dtype=torch.float64), w).value
        >>> y.tolist()
        [[1.0, 3.0]]
    """
    _reject_series(adjoint)
    call, values, constants = with_parameters(objective, y0, args)

    def gradient(y: Tensor, *a: Tensor) -> Tensor:
        result: Tensor = torch.func.grad(lambda v: call(v, *a).sum())(y)
        return result

    return EquationProblem(
        residual=gradient,
        solver=solver or Newton(),
        adjoint=adjoint or _default_adjoint(y0, symmetric=True),
        limits=_limits(y0, tol, max_steps, check_every),
        on_failure=on_failure,
        mask=mask,
        precondition=precondition,
    ).solve(y0, values, constants)


@final
@dataclass(frozen=True, eq=False)
class EquationProblem:
    """An equation residual(y, *args) = 0 for a batch, and how to solve and differentiate it.

    The fields have the meaning of the arguments of `fixed_point`; `linearisation` and `restrict` return residuals.
    """

    residual: TensorFunction
    solver: EquationSolver
    adjoint: LinearSolver
    limits: Limits
    on_failure: str
    mask: Tensor | None = None
    precondition: Callable[..., Tensor] | None = None
    weight: Callable[[Tensor], Tensor] | None = None
    min_norm: float = 1.0
    linearisation: Linearisation | None = None
    restrict: Callable[..., TensorFunction | None] | None = None

    def solve(self, y0: Tensor, args: Tensors, constants: Tensors) -> Solution:
        """Solve the equation from y0. `precondition`, `linearisation` and `restrict` get `args` without `constants`."""
        y0 = y0.detach()
        if y0.dim() == 0 or not y0.is_floating_point():
            raise ShapeError(
                f"y0 must be real, with the unknowns on the last axis; it has shape {tuple(y0.shape)}, {y0.dtype}"
            )
        if self.mask is not None and self.mask.dtype != torch.bool:
            raise ShapeError(
                f"the mask must be bool, True for the unknowns to solve for, not {self.mask.dtype}; use mask != 0"
            )
        n_args, values = len(args), (*args, *constants)
        residual = self._weighted(self.residual)
        first_residual = check_function(residual, y0, values)

        def solve(f: TensorFunction, start: Tensor, values: Tensors) -> Outcome:
            vmapped = None if f is residual else f
            return self._iterate(vmapped, start, values, n_args, first_residual)

        precondition, linearisation, record = self.precondition, self.linearisation, AdjointRecord()
        problem = ImplicitProblem(
            residual,
            solve,
            self.adjoint,
            self.on_failure,
            None if precondition is None else lambda y, *a: precondition(y, *a[:n_args]),
            record,
            None if linearisation is None else lambda y, *a: self._weighted(linearisation(y, *a[:n_args])),
        )
        value, status, norm, steps = ImplicitFunction.apply(problem, y0, *values)
        return Solution(value, status, norm, steps, record)

    def _iterate(
        self,
        vmapped: TensorFunction | None,
        start: Tensor,
        values: Tensors,
        n_args: int,
        first_residual: Tensor | None,
    ) -> Outcome:
        """Run the solver on the residual without its weight. Under vmap only the weighted residual is available."""
        plain = _masked(self.residual, self.mask)

        def fn(y: Tensor) -> Tensor:
            return plain(y, *values) if vmapped is None else self._unweighted(vmapped(y, *values), y)

        def restrict(rows: Tensor) -> TensorFunction | None:
            restricted = None if self.restrict is None else self.restrict(rows, *values[:n_args])
            mask = None if self.mask is None else self.mask[rows]
            return None if restricted is None else _masked(restricted, mask)

        # Under vmap samples have more axes than the user's function knows.
        can_restrict = self.restrict is not None and vmapped is None and start.dim() == 2
        outcome = iterate(
            self.solver,
            fn,
            start,
            self.limits,
            lambda y: torch.linalg.vector_norm(y, dim=-1).clamp(min=self.min_norm),
            None if first_residual is None else self._unweighted(first_residual, start),
            restrict if can_restrict else None,
        )
        check_outcome(outcome, self.on_failure, "the equation")
        return outcome

    def _weighted(self, residual: TensorFunction) -> TensorFunction:
        weight = self.weight
        return _masked(residual if weight is None else lambda y, *a: -weight(y) * residual(y, *a), self.mask)

    def _unweighted(self, residual: Tensor, y: Tensor) -> Tensor:
        return residual if self.weight is None else -residual / self.weight(y)


def _masked(residual: TensorFunction, mask: Tensor | None) -> TensorFunction:
    if mask is None:
        return residual

    def masked(y: Tensor, *args: Tensor) -> Tensor:
        # A masked unknown has residual 0 and derivative 1: it keeps its value and never makes a system singular.
        return torch.where(mask, residual(torch.where(mask, y, y.detach()), *args), y - y.detach())

    return masked


def _reject_series(adjoint: LinearSolver | None) -> None:
    if isinstance(adjoint, Neumann | OneStepAdjoint):
        raise OptionError(
            f"{type(adjoint).__name__} is an approximation for fixed_point only; use Direct(), GMRES(), or for argmin "
            "CG()"
        )


def _limits(y0: Tensor, tol: float, max_steps: int, check_every: int | None) -> Limits:
    default = 1 if y0.device.type == "cpu" else 4
    # Long enough for a transient increase of the residual.
    patience = max(100, max_steps // 4)
    return Limits(tol, max_steps, default if check_every is None else check_every, patience)


def _default_adjoint(y0: Tensor, *, symmetric: bool = False) -> LinearSolver:
    # The slice is empty for a y0 without axes, which `EquationProblem.solve` rejects.
    if sum(y0.shape[-1:]) <= _MAX_DENSE:
        return Direct()
    return CG() if symmetric else GMRES()
