"""Mean field as an equation that `setgrad.implicit` solves and differentiates.

The unknowns are the logits z = g(sigmoid(z)), where g is the scaled gradient of the multilinear extension. With
S = psi (1 - psi), the function S (z - g) is the gradient of minus the ELBO, so its Jacobian at the solution, S - S H S,
is symmetric, and positive definite at a strict maximum even if the iteration is not a contraction. Conjugate gradients,
preconditioned by 1/S, solve the adjoint system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from setgrad._autograd import is_tracked, outside_graph
from setgrad.errors import OptionError
from setgrad.functions import Exact
from setgrad.implicit import CG, GMRES, AdaptivePicard, EquationSolver, LinearSolver, Solution, fixed_point
from setgrad.inference.mean_field import Equation, MeanField, MeanFieldSolver
from setgrad.sets import Sets, unpad

# Logits below this size count as 0 in the tolerance. Logits under a scale are small and must still be solved for.
_MIN_NORM = 1e-6
# On a GPU, convergence is checked every so many steps. Few steps are often enough, so checks are frequent.
_CHECK_EVERY = 2


@final
@dataclass(frozen=True)
class ImplicitMeanField(MeanFieldSolver):
    """Iterate until the probabilities converge, and differentiate the solution by the implicit function theorem.

    The gradient does not depend on the path to the solution, and memory does not grow with the number of steps. The
    random numbers of the estimator are drawn once, so that there is one equation to solve.

    Args:
        solver: A solver of fixed points.
        adjoint: Solver of the linear system of the backward pass. By default `CG()` if the system is symmetric, which
            it is with `Exact()` and no scale or a constant one, else `GMRES()`.
        tol: Norm of z - g(sigmoid(z)), relative to the norm of z, at which a set has converged.
        max_steps: Largest number of steps.
        on_failure: "raise", "warn" or "mask". With "mask", sets that do not converge get no gradient, and their status
            says so.
    """

    solver: EquationSolver = field(default_factory=AdaptivePicard)
    adjoint: LinearSolver | None = None
    tol: float = 1e-4
    max_steps: int = 100
    on_failure: str = "raise"

    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Return the solution for all items, or its entries `coordinates`.

        Raises:
            OptionError: If a gradient through `Bernoulli` samples is needed.
            ConvergenceError: If a set does not converge and `on_failure` is "raise".
        """
        needs_gradient = torch.is_grad_enabled() and any(is_tracked(t) for t in equation.bound.tensors())
        if needs_gradient and not equation.estimator.smooth:
            raise OptionError(
                "the implicit gradient needs the derivative of the equation with respect to psi, which is 0 for "
                "Bernoulli samples: use Gaussian(m), Pathwise(m), SecondDifference(m) or Exact()"
            )
        estimator, scale = equation.estimator.frozen(), equation.scale
        bound = estimator.prepare(equation.bound)
        joint = scale is not None and scale.joint
        # A start of 0 or 1 has an infinite logit, from which no iteration returns.
        sets = equation.bound.sets.with_values(torch.logit(psi.detach(), eps=torch.finfo(psi.dtype).eps))
        # A scale that reads the whole batch turns it into one sample.
        start, mask = (sets.values[None], None) if joint else sets.padded()

        def step(z: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
            logits = gradient(_probabilities(z, sets, joint))
            logits = logits if scale is None else scale(logits, sets.layout)
            return logits[None] if joint else sets.with_values(logits).padded()[0]

        def fn(z: Tensor, *tensors: Tensor) -> Tensor:
            function = bound.with_tensors(tensors)
            return step(z, lambda psi: estimator.gradient(function, psi))

        def linearisation(z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
            function = bound.with_tensors(tensors)
            gradient = estimator.linearisation(function, _probabilities(z.detach(), sets, joint))
            return lambda v: step(v, gradient)

        item_indices = sets.with_values(torch.arange(sets.layout.total, device=sets.device))

        def restrict(rows: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor] | None:
            items = item_indices.take(rows)
            few, function = estimator.restrict(items), bound.with_tensors(tensors).restrict(rows, items)
            if few is None or function is None:
                return None
            longest = items.layout.longest

            def fn(z: Tensor) -> Tensor:
                logits = few.gradient(function, torch.sigmoid(unpad(z[:, :longest], items)))
                logits = logits if scale is None else scale(logits, items.layout)
                return pad(items.with_values(logits).padded()[0], (0, z.shape[1] - longest))

            return fn

        symmetric = isinstance(estimator, Exact) and (scale is None or scale.linear)

        def solve() -> Solution:
            return fixed_point(
                fn,
                start,
                *bound.tensors(),
                solver=self.solver,
                adjoint=self.adjoint or (CG() if symmetric else GMRES(restart=10)),
                tol=self.tol,
                max_steps=self.max_steps,
                on_failure=self.on_failure,
                mask=None if mask is None or sets.layout.uniform else mask,
                weight=_variance,
                check_every=1 if psi.device.type == "cpu" else _CHECK_EVERY,
                min_norm=_MIN_NORM,
                linearisation=linearisation,
                restrict=None if joint else restrict,
            )

        # `torch.compile` cannot trace the layout of the sets inside the derivatives of the equation.
        solution = outside_graph(solve)
        z = solution.value[0] if joint else unpad(solution.value, sets)
        repeats = len(sets) if joint else 1
        return MeanField(
            z if coordinates is None else z[coordinates],
            coordinates,
            # A probability moves by at most a quarter of the change of its logit.
            (solution.residual / 4).repeat(repeats),
            solution.steps.repeat(repeats),
            solution.status.repeat(repeats),
            solution,
        )


def _probabilities(z: Tensor, sets: Sets, joint: bool) -> Tensor:
    """Return the probability of each item from the unknowns of the equation."""
    return torch.sigmoid(z[0] if joint else unpad(z, sets))


def _variance(z: Tensor) -> Tensor:
    """Return the variance psi (1 - psi) of each item, above rounding: certain items would make the system singular."""
    psi = torch.sigmoid(z)
    return (psi * torch.sigmoid(-z)).clamp(min=torch.finfo(z.dtype).eps)
