"""Is the solution trustworthy? Contraction of a map, gradients computed in three ways, residuals step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from setgrad.errors import MissingDependencyError, OptionError, ShapeError
from setgrad.implicit._loop import EquationSolver, Residual
from setgrad.implicit._solve import Solution, argmin, fixed_point, root
from setgrad.implicit._theorem import Function
from setgrad.implicit.linear import LinearSolver
from setgrad.implicit.modules import with_parameters
from setgrad.implicit.solvers import Newton, Picard

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# One of the three doors: fixed_point, root or argmin.
Door = Callable[..., Solution]

# Vectors iterated together. Two would do for a complex pair or a pair of opposite signs; more converge faster.
_BLOCK = 8
# A gradient this many times smaller than the largest one is rounding, and is compared with that scale instead.
_NEGLIGIBLE = 1e-8


def contraction_estimate(
    fn: Function, y: Tensor, *args: Tensor, steps: int = 50, generator: torch.Generator | None = None
) -> Tensor:
    """Modulus of the largest eigenvalue of the Jacobian of a fixed-point map at `y`, for each sample.

    Below 1 the plain iteration converges near `y`, and the smaller the faster; at 1 or above use damping, `Anderson()`
    or `Newton()`. A few vectors are iterated together (power iteration on a subspace) and the eigenvalues are read off
    in their span, so complex pairs and opposite signs do no harm. Exact up to 8 unknowns.

    Args:
        fn: The map, from `(*batch, n)` and the arguments to `(*batch, n)`; samples must not mix.
        y: Where to look, usually a solution.
        *args: The other arguments of `fn`.
        steps: Products with the Jacobian, for each vector.
        generator: Draws the vectors to start from; the same ones in every call without it.

    Returns:
        One number for each sample, `(*batch,)`; NaN where the Jacobian is not finite.

    Example:
        >>> import torch
        >>> turn = torch.tensor([[0.0, -0.5], [0.5, 0.0]], dtype=torch.float64)  # eigenvalues 0.5i and -0.5i
        >>> y = torch.zeros(3, 2, dtype=torch.float64)
        >>> [round(value, 6) for value in contraction_estimate(lambda y: y @ turn.T, y).tolist()]
        [0.5, 0.5, 0.5]
    """
    if steps < 1:
        raise OptionError(f"steps must be at least 1, not {steps}")

    def of_y(v: Tensor) -> Tensor:
        return fn(v, *args)

    point = y.detach()
    out, pull = torch.func.vjp(of_y, point)[:2]
    if out.shape != y.shape:
        raise ShapeError(f"a fixed-point map must return the shape of y, {tuple(y.shape)}, not {tuple(out.shape)}")
    n = y.shape[-1]
    generator = generator or torch.Generator().manual_seed(0)
    start = torch.randn(n, min(n, _BLOCK), generator=generator, device=generator.device, dtype=y.dtype).to(y.device)
    # Every sample starts from the same vectors, so that its number does not depend on the rest of the batch.
    basis = torch.linalg.qr(start)[0].expand(*y.shape[:-1], -1, -1)
    finite = torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
    for step in range(steps):
        # Transposed products, because one reverse pass serves them all, and the eigenvalues are the same.
        # Mapped in front and moved: where the map is constant, vmap in torch 2.13 cannot put the axis last.
        product = torch.func.vmap(lambda v: pull(v)[0], in_dims=-1)(basis).detach().movedim(0, -1)
        finite = finite & product.isfinite().flatten(-2).all(-1)
        product = torch.where(finite[..., None, None], product, 0.0)
        if step < steps - 1:
            basis = torch.linalg.qr(product)[0]
    radius = torch.linalg.eigvals(basis.mT @ product).abs().amax(-1)
    return torch.where(finite, radius, torch.nan)


@final
@dataclass(frozen=True)
class GradientComparison:
    """Relative differences between gradients of one loss, one number for each argument.

    Where only the implicit gradient is off, the adjoint is not the true one, or the function mixes samples. Where only
    the unrolled one is off, its iteration was cut too early: raise `unroll`.
    """

    shapes: tuple[tuple[int, ...], ...]
    implicit_unrolled: tuple[float, ...]
    implicit_finite: tuple[float, ...]
    unrolled_finite: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest difference of the implicit gradient from one of the others."""
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
    fn: Function,
    y0: Tensor,
    *args: Tensor,
    problem: Door = fixed_point,
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
    """Compute the gradient of a loss of the solution in three ways, and say how far they are apart.

    The ways: through the implicit function theorem; through every step of an iteration, by autograd; and by central
    differences of the loss along random directions. Use float64: differences in float32 have three digits.

    Args:
        fn: The function of the problem; a module's parameters count as arguments, after the others.
        y0: Where to start.
        *args: The tensors to differentiate with respect to.
        problem: `fixed_point`, `root` or `argmin`.
        loss: From the solution to a number; by default a random weighted sum.
        solver: As in the problem itself.
        adjoint: As in the problem itself: this is what is on trial.
        tol: As in the problem itself, but tight, because differences magnify the error.
        max_steps: As in the problem itself.
        unroll: Steps of the unrolled iteration.
        unrolled_solver: Its solver: `Picard()` for fixed points, else `Newton()`.
        directions: Directions of the central differences, for each argument; two solves each.
        generator: Draws directions and weights; the same ones in every call without it.

    Example:
        >>> import torch
        >>> a = torch.tensor([[0.5], [0.9]], dtype=torch.float64)
        >>> found = compare_gradients(lambda y, a: (a * y).cos(), torch.zeros(2, 1, dtype=torch.float64), a)
        >>> found.worst < 1e-6
        True
    """
    call, values, constants = with_parameters(fn, y0, args)
    if not values:
        raise OptionError("there is nothing to differentiate: give the tensors that fn takes after y")
    generator = generator or torch.Generator().manual_seed(0)

    def draw(like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
        return drawn.to(like.device)

    if loss is None:
        weights = draw(y0)
        measure: Callable[[Tensor], Tensor] = lambda y: (weights * y).sum()  # noqa: E731
    else:
        measure = loss

    def solve(start: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        given = (*inputs, *constants)
        found = problem(call, start, *given, solver=solver, adjoint=adjoint, tol=tol, max_steps=max_steps)
        return found.value

    inputs = tuple(value.detach().clone().requires_grad_() for value in values)
    solution = solve(y0, inputs)
    implicit = torch.autograd.grad(measure(solution), inputs, materialize_grads=True)

    residual = _residual(problem, call)
    way = unrolled_solver or _usual_solver(problem)
    end = _walk(way, lambda y: residual(y, *inputs, *constants), y0.detach(), unroll)[-1][0]
    unrolled = torch.autograd.grad(measure(end), inputs, materialize_grads=True)

    def loss_at(place: int, value: Tensor) -> Tensor:
        moved = tuple(value if i == place else x.detach() for i, x in enumerate(inputs))
        # From the solution, so that a problem with several solutions stays on its branch.
        return measure(solve(solution.detach(), moved)).detach()

    along: list[tuple[Tensor, Tensor, Tensor]] = []
    for place, value in enumerate(inputs):
        step = torch.finfo(value.dtype).eps ** (1 / 3) * max(1.0, float(value.detach().abs().amax()))
        lines = [draw(value) for _ in range(directions)]
        finite = [
            (loss_at(place, value.detach() + step * v) - loss_at(place, value.detach() - step * v)) / (2 * step)
            for v in lines
        ]
        two = (torch.stack([(g * v).sum() for v in lines]) for g in (implicit[place], unrolled[place]))
        along.append((next(two), next(two), torch.stack(finite)))
    return GradientComparison(
        shapes=tuple(tuple(value.shape) for value in values),
        implicit_unrolled=_apart(list(zip(implicit, unrolled, strict=True))),
        implicit_finite=_apart([(one, three) for one, _, three in along]),
        unrolled_finite=_apart([(two, three) for _, two, three in along]),
    )


def residual_trace(
    fn: Function,
    y0: Tensor,
    *args: Tensor,
    problem: Door = fixed_point,
    solver: EquationSolver | None = None,
    max_steps: int = 50,
) -> Tensor:
    """Norm of the residual before the first step and after each one, `(max_steps + 1, *batch)`; see `plot_residuals`.

    Steps go on after convergence, so that one sees where rounding ends the fall.

    Example:
        >>> import torch
        >>> trace = residual_trace(lambda y: 0.5 * y, torch.ones(2, 1), max_steps=3)
        >>> trace[:, 0].tolist()
        [0.5, 0.25, 0.125, 0.0625]
    """
    if max_steps < 0:
        raise OptionError(f"max_steps must be at least 0, not {max_steps}")
    residual = _residual(problem, fn)
    with torch.no_grad():
        walk = _walk(solver or _usual_solver(problem), lambda y: residual(y, *args), y0.detach(), max_steps)
        return torch.stack([torch.linalg.vector_norm(r, dim=-1) for _, r in walk])


def plot_residuals(trace: Tensor, *, tol: float | None = None) -> Figure:
    """Draw a trace of `residual_trace`: one thin line for each sample, the median in bold, on a logarithmic scale.

    Args:
        trace: `(steps + 1, *batch)`.
        tol: Draw a line at this tolerance.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError('a plot needs Matplotlib to draw: pip install "setgrad[demo]"') from error
    if trace.dim() == 0:
        raise ShapeError("a trace has the steps on its first axis; residual_trace makes one")
    norms = trace.detach().cpu().double().reshape(len(trace), -1)
    # A logarithm has no room for an exact solution: the line ends there.
    shown = torch.where(norms > 0, norms, torch.nan)
    figure = Figure(figsize=(5.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.semilogy(shown.numpy(), color="tab:blue", linewidth=0.7, alpha=0.5)
    if norms.shape[1] > 1:
        axes.semilogy(shown.nanmedian(-1).values.numpy(), color="black", linewidth=2.0, label="median")
    if tol is not None:
        axes.axhline(tol, color="tab:red", linestyle="--", linewidth=1.0, label=f"tolerance {tol:g}")
    axes.set_xlabel("step")
    axes.set_ylabel("norm of the residual")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return figure


def _residual(problem: Door, fn: Function) -> Function:
    if problem is fixed_point:
        return lambda y, *args: fn(y, *args) - y
    if problem is root:
        return fn
    if problem is argmin:
        return lambda y, *args: torch.func.grad(lambda v: fn(v, *args).sum())(y)
    raise OptionError(f"problem must be one of the functions fixed_point, root and argmin, not {problem!r}")


def _usual_solver(problem: Door) -> EquationSolver:
    return Picard() if problem is fixed_point else Newton()


def _walk(solver: EquationSolver, fn: Residual, y: Tensor, steps: int) -> list[tuple[Tensor, Tensor]]:
    """All iterates with their residuals, without the loop's freezing, which would cut the graph."""
    residual = fn(y)
    seen = [(y, residual)]
    state = solver.begin(fn, y, residual) if steps else None
    for _ in range(steps):
        step = solver.step(fn, y, residual, state)
        y, residual, state = step.y, step.residual, step.state
        seen.append((y, residual))
    return seen


def _apart(pairs: list[tuple[Tensor, Tensor]]) -> tuple[float, ...]:
    """Norm of each difference over the larger norm of the pair; infinite where a gradient is not finite."""
    norms = [max(float(a.norm()), float(b.norm())) for a, b in pairs]
    floor = _NEGLIGIBLE * max(norms)
    ratios = [float((a - b).norm()) / (max(norm, floor) or 1.0) for (a, b), norm in zip(pairs, norms, strict=True)]
    return tuple(ratio if math.isfinite(ratio) else math.inf for ratio in ratios)
