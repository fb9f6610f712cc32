"""Helpers of the tests of implicit gradients: sets, a loss, and its gradient by dense algebra on all subsets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from setgrad.functions import Exact, ExtensionEstimator
from setgrad.inference import (
    BatchFrobeniusScale,
    BatchNuclearScale,
    ConstantScale,
    ImplicitMeanField,
    L2Scale,
    Scale,
    mean_field,
)
from setgrad.sets import Sets

SIZES = [8, 0, 1, 5, 3]
TIGHT = ImplicitMeanField(tol=1e-12)
# Scales of single sets, then joint scales of a batch.
SCALES: list[Scale | None] = [None, ConstantScale(0.3), L2Scale(), BatchFrobeniusScale(), BatchNuclearScale()]


def draw(sizes: Sequence[int] = SIZES, seed: int = 0) -> Sets:
    """Return sets of these sizes with normally distributed items, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64), sizes)


def weights(sets: Sets) -> Tensor:
    """Return the weights of the probabilities in the loss."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(sets.layout.total, generator=generator, dtype=torch.float64)


def amplify(rho: nn.Module, factor: float) -> None:
    """Multiply the weights of rho, so that items interact more strongly."""
    with torch.no_grad():
        for layer in rho.children():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(factor)


class Solve(nn.Module):
    """The probabilities of mean field as a module, so that its parameters can be replaced."""

    def __init__(self, function, sets: Sets, estimator: ExtensionEstimator, solver) -> None:
        super().__init__()
        self.function, self.sets, self.estimator, self.solver = function, sets, estimator, solver

    def forward(self) -> Tensor:
        return mean_field(self.function, self.sets, estimator=self.estimator, solver=self.solver).value

    def at(self, names: Sequence[str], parameters: Sequence[Tensor]) -> Tensor:
        """Return the probabilities with other values of these parameters of the function."""
        replaced = {f"function.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(self, replaced, ())


def gradient(function, sets: Sets, solver, estimator: ExtensionEstimator | None = None, **options) -> Tensor:
    """Return the gradient of the loss with respect to all parameters, in one row."""
    result = mean_field(function, sets, estimator=estimator or Exact(), solver=solver, **options)
    return gradient_by_parameters((result.value * weights(sets)).sum(), function)


def gradient_by_parameters(loss: Tensor, function) -> Tensor:
    # The last bias of rho cancels in every gain, so its gradient is None.
    gradients = torch.autograd.grad(loss, list(function.parameters()), materialize_grads=True)
    return torch.cat([one.flatten() for one in gradients])


def jacobian(function, sets: Sets, psi: Tensor) -> Tensor:
    bound = function.bind(sets)
    return torch.autograd.functional.jacobian(lambda p: torch.sigmoid(Exact().gradient(bound, p)), psi)


def spectral_radius(function, sets: Sets, psi: Tensor) -> float:
    return float(torch.linalg.eigvals(jacobian(function, sets, psi)).abs().max())


def exact_gradient(function, sets: Sets, psi: Tensor) -> Tensor:
    """Return the implicit gradient by dense algebra on all subsets: w (I - J)^-1 times the derivative of one step."""
    adjoint = torch.linalg.solve(torch.eye(len(psi), dtype=psi.dtype) - jacobian(function, sets, psi).T, weights(sets))
    step = torch.sigmoid(Exact().gradient(function.bind(sets), psi))
    return gradient_by_parameters((step * adjoint).sum(), function)


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, 0))
