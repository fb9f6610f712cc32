"""Matrix products that an adjoint system of mean field needs: five solvers, weak to strong couplings.

Claims checked: conjugate gradients on the symmetric form need at most a tenth of the products of normal-equation
conjugate gradients in one Krylov space for the whole batch, where the spectral radius is 1.09.

The problems: pairwise set functions with random couplings H and fields f, 64 sets of 100 items, solved for psi =
sigmoid(f + H (psi - 1/2)) by the damped iteration. The adjoint system is (I - H Sigma) u = g with Sigma = diag(psi (1 -
psi)). With w = Sigma u it reads (Sigma^-1 - H) w = g: symmetric, positive definite at a maximum of the ELBO, and with
the same residual. Its diagonal is Sigma^-1, which serves as preconditioner. The radius is the largest of Sigma H
over the batch.

A product of the whole batch with A or with its transpose counts as one; products for the right-hand side and the first
residual are included. Everything starts at 0 and is checked after each step. Tolerances are 1e-8 relative to g for
every sample; the two solvers of normal equations measure the residual of these, setgrad for every sample, the rival for
the whole batch as the libraries do. "GMRES, whole" is the smallest space that needs no restart. "One space" is the
rival, in `one_krylov.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.implicit.one_krylov import solve_normal
from benchmarks.lib.machine import announce
from benchmarks.lib.tables import table
from setgrad.implicit import CG, GMRES, LinearSolver, NormalCG, Picard, Status, fixed_point

TOL = 1e-8
LIMIT = 0.1
LIMIT_RADIUS = 1.09
MAX_STEPS = 2000
# (strength of the couplings, their mean): the strengths put the radius at 0.3, 0.6, 0.86, 1, 1.09 and 1.5.
FULL = [(0.676, 0.0), (1.39, 0.0), (2.13, 0.0), (2.597, 0.0), (2.885, 0.0), (1.36, -5.0)]
QUICK = [(0.7, 0.0), (1.5, -5.0)]


@final
@dataclass(frozen=True, eq=False)
class Adjoint:
    """Couplings H `(b, n, n)`, Sigma and right-hand side g `(b, n)` of one batch, and the radius of Sigma H."""

    couplings: Tensor
    sigma: Tensor
    g: Tensor
    radius: float


@final
class Counted:
    """Products with a batch of matrices, forward and (by autograd) backward, that are counted."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.count = matrix, 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return A x, differentiable in x."""
        product: Tensor = _Product.apply(x, self)
        return product

    def forwards(self, x: Tensor) -> Tensor:
        """Return A x."""
        self.count += 1
        return (self.matrix @ x[..., None])[..., 0]

    def backwards(self, x: Tensor) -> Tensor:
        """Return A^T x."""
        self.count += 1
        return (self.matrix.mT @ x[..., None])[..., 0]


@final
class _Product(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, counted: Counted) -> Tensor:
        return counted.forwards(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.counted = inputs[1]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return ctx.counted.backwards(cotangents[0]), None


@final
@dataclass(frozen=True)
class Cost:
    """Number of products, steps of the slowest sample, and the worst final relative residual of a sample."""

    products: int
    steps: int
    worst: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no options beyond the common ones."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print one row for each strength of the couplings."""
    machine = announce(torch.device("cpu"))
    sets, items, strengths = (8, 20, QUICK) if options.quick else (64, 100, FULL)
    results: list[dict[str, Any]] = []
    for strength, mean in strengths:
        problem = make_adjoint(sets, items, strength, mean)
        costs = measure(problem)
        results.append({"radius": problem.radius, "mean": mean, **{name: vars(cost) for name, cost in costs.items()}})
    names = list(SOLVERS)
    print(f"\n## Products (steps) to a relative residual of {TOL:g}, B={sets}, n={items}\n")
    rows = []
    for row in results:
        cells = [f"{row[name]['products']} ({row[name]['steps']})" for name in names]
        rows.append([_label(row), *cells, f"{ratio_of(row):.3f}"])
    print(table(["spectral radius", *names, "CG / one space"], rows))
    print("\n## Worst relative residual of a sample\n")
    print(table(["spectral radius", *names], [[_label(r), *(f"{r[n]['worst']:.1e}" for n in names)] for r in results]))
    closest = min(results, key=lambda row: abs(row["radius"] - LIMIT_RADIUS))
    ratio = ratio_of(closest)
    print(f"\nCG over one space at radius {closest['radius']:.2f}: {ratio:.3f} (target: at most {LIMIT})", flush=True)
    return {"machine": machine, "sets": sets, "items": items, "rows": results, "ratio": ratio}


def make_adjoint(sets: int, items: int, strength: float, mean: float, seed: int = 0) -> Adjoint:
    """Draw couplings and fields, solve mean field, and set up the adjoint of a random loss."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    square = draw(sets, items, items)
    couplings = strength * ((square + square.mT) / (2 * items) ** 0.5 + mean / items)
    couplings.diagonal(dim1=-2, dim2=-1).zero_()
    fields, g = draw(sets, items), draw(sets, items)

    start = torch.full_like(fields, 0.5)
    damped = Picard(damping=0.5)
    psi = fixed_point(mean_field, start, fields, couplings, solver=damped, tol=1e-10, max_steps=10_000).value
    sigma = psi * (1 - psi)
    # Similar to Sigma H, and symmetric.
    eigenvalues = torch.linalg.eigvalsh(sigma.sqrt()[..., None] * couplings * sigma.sqrt()[..., None, :])
    return Adjoint(couplings, sigma, g, float(eigenvalues.abs().max()))


def mean_field(psi: Tensor, fields: Tensor, couplings: Tensor) -> Tensor:
    """Return all probabilities after one update."""
    return torch.sigmoid(fields + (couplings @ (psi - 0.5)[..., None])[..., 0])


def measure(problem: Adjoint) -> dict[str, Cost]:
    """Return the cost of every solver on one problem."""
    return {name: solver(problem) for name, solver in SOLVERS.items()}


def symmetric_form(problem: Adjoint) -> Tensor:
    """Return Sigma^-1 - H."""
    return torch.diag_embed(1 / problem.sigma) - problem.couplings


def plain_form(problem: Adjoint) -> Tensor:
    """Return I - H Sigma."""
    return torch.eye(problem.g.shape[-1], dtype=problem.g.dtype) - problem.couplings * problem.sigma[..., None, :]


def ratio_of(row: dict[str, Any]) -> float:
    """Return the products of CG over those of the rival."""
    return float(row["CG, symmetric"]["products"] / row["one space"]["products"])


def _with(solver: LinearSolver, form: Callable[[Adjoint], Tensor], problem: Adjoint, diagonal: Tensor | None) -> Cost:
    counted = Counted(form(problem))
    solution = solver.solve(lambda u: counted(u) - problem.g, torch.zeros_like(problem.g), diagonal)
    if bool((solution.status != Status.CONVERGED).any()):
        raise RuntimeError(f"{solver} did not converge at radius {problem.radius:.2f}")
    return Cost(counted.count, int(solution.steps.max()), _worst(counted.matrix, solution.value, problem.g))


def _cg(problem: Adjoint) -> Cost:
    return _with(CG(tol=TOL, max_steps=MAX_STEPS, check_every=1), symmetric_form, problem, problem.sigma)


def _gmres(problem: Adjoint) -> Cost:
    return _with(GMRES(tol=TOL), plain_form, problem, None)


def _whole_gmres(problem: Adjoint) -> Cost:
    start, counted = torch.zeros_like(problem.g), Counted(plain_form(problem))

    def suffices(size: int) -> bool:
        solution = GMRES(tol=TOL, restart=size, max_steps=1).solve(lambda u: counted(u) - problem.g, start, None)
        return bool((solution.status == Status.CONVERGED).all())

    return _with(GMRES(tol=TOL, restart=smallest(suffices, problem.g.shape[-1])), plain_form, problem, None)


def _normal_cg(problem: Adjoint) -> Cost:
    return _with(NormalCG(tol=TOL, max_steps=MAX_STEPS, check_every=1), plain_form, problem, None)


def _one_space(problem: Adjoint) -> Cost:
    counted = Counted(plain_form(problem))
    x, steps = solve_normal(counted.forwards, counted.backwards, problem.g, tol=TOL, max_steps=MAX_STEPS)
    if steps == MAX_STEPS:
        raise RuntimeError(f"one Krylov space did not converge at radius {problem.radius:.2f}")
    return Cost(counted.count, steps, _worst(counted.matrix, x, problem.g))


SOLVERS: dict[str, Callable[[Adjoint], Cost]] = {
    "CG, symmetric": _cg,
    "GMRES, whole": _whole_gmres,
    "GMRES(20)": _gmres,
    "normal CG": _normal_cg,
    "one space": _one_space,
}


def smallest(holds: Callable[[int], bool], high: int) -> int:
    """Return the smallest of 1, ..., high for which a monotone condition holds."""
    low = 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _worst(matrix: Tensor, x: Tensor, g: Tensor) -> float:
    residual = (matrix @ x[..., None])[..., 0] - g
    return float((torch.linalg.vector_norm(residual, dim=-1) / torch.linalg.vector_norm(g, dim=-1)).max())


def _label(row: dict[str, Any]) -> str:
    return f"{row['radius']:.2f}" + (" (negative couplings)" if row["mean"] < 0 else "")
