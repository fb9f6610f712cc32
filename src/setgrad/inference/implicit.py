"""Mean field as an equation that `setgrad.implicit` solves and differentiates.

The unknowns are the logits z = g(sigmoid(z)), g the scaled gradient of the multilinear extension. With
S = psi (1 - psi), the function S (z - g) is the gradient of minus the ELBO, so its Jacobian at the solution, S - S H S,
is symmetric, and positive definite at a strict maximum even where the iteration is no contraction: conjugate gradients,
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

# Logits under a scale are small, and those of a set without preferences are 0: only these count as equal to 0.
_SIZE = 1e-6
# A step costs more than most, and often one or two are enough: they are worth asking for sooner.
_CHECK_EVERY = 2


@final
@dataclass(frozen=True)
class ImplicitMeanField(MeanFieldSolver):
    """Iterate until the probabilities settle, and differentiate the solution by the implicit function theorem.

    The gradient is that of the solution itself, whatever the path to it; memory does not grow with the steps. The noise
    of the estimator is drawn once, so that there is one equation to solve.

    Args:
        solver: A solver of fixed points.
        adjoint: How the backward pass solves its linear system. None for `CG()` where the system is symmetric, which is
            with `Exact()` and no scale or a constant one, else `GMRES()`.
        tol: Norm of z - g(sigmoid(z)) at which a set has settled, relative to the norm of z.
        max_steps: Steps at most.
        on_failure: "raise", "warn", or "mask": sets that do not settle get no gradient, and their status says so.
    """

    solver: EquationSolver = field(default_factory=AdaptivePicard)
    adjoint: LinearSolver | None = None
    tol: float = 1e-4
    max_steps: int = 100
    on_failure: str = "raise"

    def solve(self, equation: Equation, psi: Tensor, coordinates: Tensor | None) -> MeanField:
        """Solve for all items; those asked for are taken from the solution."""
        learning = torch.is_grad_enabled() and any(is_tracked(t) for t in equation.bound.tensors())
        if learning and not equation.estimator.smooth:
            raise OptionError(
                "the implicit gradient needs the derivative of the equation with respect to psi, and that of Bernoulli "
                "samples is 0: use Gaussian(m), Pathwise(m), SecondDifference(m) or Exact()"
            )
        estimator, scale = equation.estimator.frozen(), equation.scale
        bound = estimator.prepare(equation.bound)
        joint = scale is not None and scale.joint
        # A start of 0 or 1 has an infinite logit, from which no iteration comes back.
        sets = equation.bound.sets.with_values(torch.logit(psi.detach(), eps=torch.finfo(psi.dtype).eps))
        # A scale that looks at the whole batch makes one sample of it.
        start, mask = (sets.values[None], None) if joint else sets.padded()

        def step(z: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
            found = gradient(_probabilities(z, sets, joint))
            found = found if scale is None else scale(found, sets.layout)
            return found[None] if joint else sets.with_values(found).padded()[0]

        def fn(z: Tensor, *tensors: Tensor) -> Tensor:
            made = bound.with_tensors(tensors)
            return step(z, lambda psi: estimator.gradient(made, psi))

        def tangent(z: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor]:
            made = bound.with_tensors(tensors)
            gradient = estimator.tangent(made, _probabilities(z.detach(), sets, joint))
            return lambda v: step(v, gradient)

        numbered = sets.with_values(torch.arange(sets.layout.total, device=sets.device))

        def part(rows: Tensor, *tensors: Tensor) -> Callable[[Tensor], Tensor] | None:
            items = numbered.take(rows)
            few, made = estimator.part(items), bound.with_tensors(tensors).part(rows, items)
            if few is None or made is None:
                return None
            longest = items.layout.longest

            def fn(z: Tensor) -> Tensor:
                found = few.gradient(made, torch.sigmoid(unpad(z[:, :longest], items)))
                found = found if scale is None else scale(found, items.layout)
                return pad(items.with_values(found).padded()[0], (0, z.shape[1] - longest))

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
                min_norm=_SIZE,
                linearisation=tangent,
                restrict=None if joint else part,
            )

        # `torch.compile` may break over the layout of the sets inside the derivatives that the equation takes.
        solution = outside_graph(solve)
        z = solution.value[0] if joint else unpad(solution.value, sets)
        spread = len(sets) if joint else 1
        return MeanField(
            z if coordinates is None else z[coordinates],
            coordinates,
            # A probability moves by a quarter of its logit at most.
            (solution.residual / 4).repeat(spread),
            solution.steps.repeat(spread),
            solution.status.repeat(spread),
            solution,
        )


def _probabilities(z: Tensor, sets: Sets, joint: bool) -> Tensor:
    """From the unknowns of the equation to one number for each item."""
    return torch.sigmoid(z[0] if joint else unpad(z, sets))


def _variance(z: Tensor) -> Tensor:
    """Variance psi (1 - psi) of each item's bit, kept above rounding: sure items would make the system singular."""
    psi = torch.sigmoid(z)
    return (psi * torch.sigmoid(-z)).clamp(min=torch.finfo(z.dtype).eps)
