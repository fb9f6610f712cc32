"""Diagnostics: the contraction rate of a map, gradients computed in three ways, residuals step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from setgrad.errors import MissingDependencyError, OptionError, ShapeError
from setgrad.implicit._function import TensorFunction, with_parameters
from setgrad.implicit._loop import EquationSolver, Residual
from setgrad.implicit._solution import Solution
from setgrad.implicit._solve import argmin, fixed_point, root
from setgrad.implicit.linear import LinearSolver
from setgrad.implicit.solvers import Newton, Picard

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# One of the functions fixed_point, root and argmin.
EntryPoint = Callable[..., Solution]

# Number of vectors iterated together. Two suffice for a complex pair or opposite signs; more converge faster.
_BLOCK_SIZE = 8
# A gradient below this fraction of the largest one is rounding, and is compared with that scale instead.
_NEGLIGIBLE = 1e-8


def contraction_estimate(
    fn: TensorFunction, y: Tensor, *args: Tensor, steps: int = 50, generator: torch.Generator | None = None
) -> Tensor:
    """Estimate the spectral radius of the Jacobian of a fixed-point map at `y`, for each sample.

    Below 1 the plain iteration converges near `y`, the faster the smaller the radius; from 1 on use damping,
    `Anderson()` or `Newton()`. The method is power iteration on a subspace of up to 8 vectors, so complex pairs and
    pairs of opposite signs are handled. Exact for up to 8 unknowns.

    Args:
        fn: The map, from `(*batch, n)` and the arguments to `(*batch, n)`; samples must not mix.
        y: The point, usually a solution.
        *args: The other arguments of `fn`.
        steps: Number of products with the Jacobian, for each vector.
        generator: Draws the first vectors; by default they are the same in every call.

    Returns:
        The radius of each sample, `(*batch,)`; NaN where the Jacobian is not finite.

    Raises:
        OptionError: If `steps` is below 1.
        ShapeError: If `fn` does not return the shape of y.

    Examples:
        >>> import torch
        >>> turn = torch.tensor([[0.0, -0.5], [0.5, 0.0]], dtype=torch.float64)  # eigenvalues 0.5i and -0.5i
        >>> y = torch.zeros(3, 2, dtype=torch.float64)
        >>> [round(value, 6) for value in contraction_estimate(lambda y: y @ turn.T, y).tolist()]
        [0.5, 0.5, 0.5]
    """
    if steps < 1:
        raise OptionError(f"steps must be at least 1, not {steps}")

    out, vjp = torch.func.vjp(lambda v: fn(v, *args), y.detach())[:2]
    if out.shape != y.shape:
        raise ShapeError(f"a fixed-point map must return the shape of y, {tuple(y.shape)}, not {tuple(out.shape)}")
    n = y.shape[-1]
    generator = generator or torch.Generator().manual_seed(0)
    block = torch.randn(n, min(n, _BLOCK_SIZE), generator=generator, device=generator.device, dtype=y.dtype)
    # Every sample starts from the same vectors, so that its result does not depend on the rest of the batch.
    basis = torch.linalg.qr(block.to(y.device))[0].expand(*y.shape[:-1], -1, -1)
    finite = torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
    for step in range(steps):
        # Transposed products need one reverse pass, and the eigenvalues are the same.
        # The mapped axis is moved after the call: for constant maps, vmap in torch 2.13 cannot return it last.
        product = torch.func.vmap(lambda v: vjp(v)[0], in_dims=-1)(basis).detach().movedim(0, -1)
        finite = finite & product.isfinite().flatten(-2).all(-1)
        product = torch.where(finite[..., None, None], product, 0.0)
        if step < steps - 1:
            basis = torch.linalg.qr(product)[0]
    radius = torch.linalg.eigvals(basis.mT @ product).abs().amax(-1)
    return torch.where(finite, radius, torch.nan)


@final
@dataclass(frozen=True)
class GradientComparison:
    """Relative differences between the gradients of a loss, one number for each argument.

    If the implicit gradient differs from both others, the adjoint is an approximation or the function mixes samples. If
    the unrolled gradient differs from both others, its iteration was too short: raise `unroll`. Print it for a table.

    Args:
        shapes: Shapes of the arguments.
        implicit_unrolled: Differences between the implicit and the unrolled gradient.
        implicit_finite: Differences between the implicit gradient and finite differences.
        unrolled_finite: Differences between the unrolled gradient and finite differences.
    """

    shapes: tuple[tuple[int, ...], ...]
    implicit_unrolled: tuple[float, ...]
    implicit_finite: tuple[float, ...]
    unrolled_finite: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest difference between the implicit gradient and another one."""
        return max(*self.implicit_unrolled, *self.implicit_finite)

    def __str__(self) -> str:
        names = [f"argument {i} {shape}" for i, shape in enumerate(self.shapes)]
        head = "relative difference"
        width = max(len(name) for name in [head, *names])
        lines = [f"{head:<{width}}  implicit-unrolled  implicit-finite  unrolled-finite"]
        columns = (self.implicit_unrolled, self.implicit_finite, self.unrolled_finite)
        for name, first, second, third in zip(names, *columns, strict=True):
            lines.append(f"{name:<{width}}  {first:>17.1e}  {second:>15.1e}  {third:>15.1e}")
        return "\n".join(lines)


def compare_gradients(
    fn: TensorFunction,
    y0: Tensor,
    *args: Tensor,
    problem: EntryPoint = fixed_point,
    loss: Callable[[Tensor], Tensor] | None = None,
    solver: EquationSolver | None = None,
    adjoint: LinearSolver | None = None,
    tol: float = 1e-12,
    max_steps: int = 1000,
    unroll: int = 100,
    unrolled_solver: EquationSolver | None = None,
    directions: int = 8,
    generator: torch.Generator | None = None,
) -> GradientComparison:
    """Compute the gradient of a loss of the solution in three ways, and compare them.

    The three ways are the implicit function theorem, autograd through every step of an iteration, and central
    differences of the loss along random directions. Use float64: in float32 differences have about three digits.

    Args:
        fn: The function of the problem; the parameters of a module count as arguments, after `args`.
        y0: The first iterate.
        *args: The tensors to differentiate with respect to.
        problem: `fixed_point`, `root` or `argmin`.
        loss: From the solution to a number; by default a random weighted sum.
        solver: As in `problem`.
        adjoint: As in `problem`; its gradient is the implicit one.
        tol: As in `problem`, but tight, because differences amplify the error.
        max_steps: As in `problem`.
        unroll: Number of steps of the unrolled iteration.
        unrolled_solver: Its solver: by default `Picard()` for a fixed point, else `Newton()`.
        directions: Number of directions of the central differences, for each argument; each takes two solves.
        generator: Draws directions and weights; by default they are the same in every call.

    Returns:
        The relative differences between the three gradients, for each argument.

    Raises:
        OptionError: If there is nothing to differentiate, or `problem` is not one of the three functions.
        ConvergenceError: If a sample fails.

    Examples:
        >>> import torch
        >>> a = torch.tensor([[0.5], [0.9]], dtype=torch.float64)
        >>> result = compare_gradients(lambda y, a: (a * y).cos(), torch.zeros(2, 1, dtype=torch.float64), a)
        >>> result.worst < 1e-6
        True
    """
    call, values, constants = with_parameters(fn, y0, args)
    if not values:
        raise OptionError("there is nothing to differentiate: pass the tensors that fn takes after y")
    generator = generator or torch.Generator().manual_seed(0)

    def draw(like: Tensor) -> Tensor:
        sample = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
        return sample.to(like.device)

    if loss is None:
        weights = draw(y0)
        loss = lambda y: (weights * y).sum()  # noqa: E731

    def solve(start: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        options = {"solver": solver, "adjoint": adjoint, "tol": tol, "max_steps": max_steps}
        return problem(call, start, *inputs, *constants, **options).value

    inputs = tuple(value.detach().clone().requires_grad_() for value in values)
    solution = solve(y0, inputs)
    implicit = torch.autograd.grad(loss(solution), inputs, materialize_grads=True)

    residual = _residual(problem, call)
    unrolled_solver = unrolled_solver or _default_solver(problem)
    trajectory = _unroll(unrolled_solver, lambda y: residual(y, *inputs, *constants), y0.detach(), unroll)
    unrolled = torch.autograd.grad(loss(trajectory[-1][0]), inputs, materialize_grads=True)

    def loss_at(place: int, value: Tensor) -> Tensor:
        moved = tuple(value if i == place else x.detach() for i, x in enumerate(inputs))
        # From the solution, so that a problem with several solutions stays on the same one.
        return loss(solve(solution.detach(), moved)).detach()

    # Derivatives of the loss along the directions, for each argument.
    along: list[tuple[Tensor, Tensor, Tensor]] = []
    for place, value in enumerate(inputs):
        step = torch.finfo(value.dtype).eps ** (1 / 3) * max(1.0, float(value.detach().abs().amax()))
        vectors = [draw(value) for _ in range(directions)]
        finite = [
            (loss_at(place, value.detach() + step * v) - loss_at(place, value.detach() - step * v)) / (2 * step)
            for v in vectors
        ]
        projected = [torch.stack([(g[place] * v).sum() for v in vectors]) for g in (implicit, unrolled)]
        along.append((projected[0], projected[1], torch.stack(finite)))
    return GradientComparison(
        shapes=tuple(tuple(value.shape) for value in values),
        implicit_unrolled=_relative_differences(list(zip(implicit, unrolled, strict=True))),
        implicit_finite=_relative_differences([(one, three) for one, _, three in along]),
        unrolled_finite=_relative_differences([(two, three) for _, two, three in along]),
    )


def residual_trace(
    fn: TensorFunction,
    y0: Tensor,
    *args: Tensor,
    problem: EntryPoint = fixed_point,
    solver: EquationSolver | None = None,
    max_steps: int = 50,
) -> Tensor:
    """Return the norm of the residual before the first step and after each step; draw it with `plot_residuals`.

    The iteration continues after convergence, so the trace shows where rounding stops the decrease.

    Args:
        fn: The function of the problem.
        y0: The first iterate.
        *args: The other arguments of `fn`.
        problem: `fixed_point`, `root` or `argmin`.
        solver: By default `Picard()` for a fixed point, else `Newton()`.
        max_steps: Number of steps.

    Returns:
        The norms, `(max_steps + 1, *batch)`.

    Raises:
        OptionError: If `max_steps` is negative, or `problem` is not one of the three functions.

    Examples:
        >>> import torch
        >>> trace = residual_trace(lambda y: 0.5 * y, torch.ones(2, 1), max_steps=3)
        >>> trace[:, 0].tolist()
        [0.5, 0.25, 0.125, 0.0625]
    """
    if max_steps < 0:
        raise OptionError(f"max_steps must be at least 0, not {max_steps}")
    residual = _residual(problem, fn)
    with torch.no_grad():
        solver = solver or _default_solver(problem)
        trajectory = _unroll(solver, lambda y: residual(y, *args), y0.detach(), max_steps)
        return torch.stack([torch.linalg.vector_norm(r, dim=-1) for _, r in trajectory])


def plot_residuals(trace: Tensor, *, tol: float | None = None) -> Figure:
    """Plot the result of `residual_trace` on a logarithmic scale: a thin line for each sample, and a bold median.

    Args:
        trace: Norms of the residuals, `(steps + 1, *batch)`.
        tol: Also draw a horizontal line at this tolerance.

    Returns:
        A Matplotlib figure.

    Raises:
        MissingDependencyError: If Matplotlib is not installed.
        ShapeError: If the trace has no axis.

    Examples:
        >>> import torch
        >>> trace = residual_trace(lambda y: 0.5 * y, torch.ones(2, 1), max_steps=3)
        >>> figure = plot_residuals(trace, tol=1e-6)
        >>> figure.axes[0].get_ylabel()
        'norm of the residual'
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError('plot_residuals needs Matplotlib: pip install "setgrad[demo]"') from error
    if trace.dim() == 0:
        raise ShapeError("the trace needs the steps on its first axis; residual_trace returns one")
    norms = trace.detach().cpu().double().reshape(len(trace), -1)
    # An exact solution has no logarithm: the line ends there.
    plotted = torch.where(norms > 0, norms, torch.nan)
    figure = Figure(figsize=(5.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.semilogy(plotted.numpy(), color="tab:blue", linewidth=0.7, alpha=0.5)
    if norms.shape[1] > 1:
        axes.semilogy(plotted.nanmedian(-1).values.numpy(), color="black", linewidth=2.0, label="median")
    if tol is not None:
        axes.axhline(tol, color="tab:red", linestyle="--", linewidth=1.0, label=f"tolerance {tol:g}")
    axes.set_xlabel("step")
    axes.set_ylabel("norm of the residual")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return figure


def _residual(problem: EntryPoint, fn: TensorFunction) -> TensorFunction:
    if problem is fixed_point:
        return lambda y, *args: fn(y, *args) - y
    if problem is root:
        return fn
    if problem is argmin:
        return lambda y, *args: torch.func.grad(lambda v: fn(v, *args).sum())(y)
    raise OptionError(f"problem must be one of the functions fixed_point, root and argmin, not {problem!r}")


def _default_solver(problem: EntryPoint) -> EquationSolver:
    return Picard() if problem is fixed_point else Newton()


def _unroll(solver: EquationSolver, fn: Residual, y: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return all iterates with their residuals, without the loop, whose freezing would cut the graph."""
    residual = fn(y)
    trajectory = [(y, residual)]
    state = solver.init(fn, y, residual) if steps else None
    for _ in range(steps):
        step = solver.step(fn, y, residual, state)
        y, residual, state = step.y, step.residual, step.state
        trajectory.append((y, residual))
    return trajectory


def _relative_differences(pairs: list[tuple[Tensor, Tensor]]) -> tuple[float, ...]:
    """Return the norm of each difference over the larger norm of the pair; infinity where a gradient is not finite."""
    norms = [max(float(a.norm()), float(b.norm())) for a, b in pairs]
    floor = _NEGLIGIBLE * max(norms)
    ratios = [float((a - b).norm()) / (max(norm, floor) or 1.0) for (a, b), norm in zip(pairs, norms, strict=True)]
    return tuple(ratio if math.isfinite(ratio) else math.inf for ratio in ratios)
