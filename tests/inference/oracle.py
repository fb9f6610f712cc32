"""What the tests of implicit gradients share: sets, a loss, and its gradient by dense algebra on enumerated subsets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from setgrad.functions import Exact, ExtensionEstimator
from setgrad.inference import mean_field
from setgrad.sets import Sets

SIZES = [8, 0, 1, 5, 3]


def draw(sizes: Sequence[int] = SIZES, seed: int = 0) -> Sets:
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64), sizes)


def weights(sets: Sets) -> Tensor:
    """The loss is the sum of all probabilities with these weights."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(sets.layout.total, generator=generator, dtype=torch.float64)


def amplify(rho: nn.Module, factor: float) -> None:
    """Make items interact the more, the larger the factor."""
    with torch.no_grad():
        for layer in rho.children():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(factor)


def gradient(function, sets: Sets, solver, estimator: ExtensionEstimator | None = None, **options) -> Tensor:
    """Gradient of the loss with respect to all parameters, in one row."""
    found = mean_field(function, sets, estimator=estimator or Exact(), solver=solver, **options)
    return by_parameters((found.value * weights(sets)).sum(), function)


def by_parameters(loss: Tensor, function) -> Tensor:
    # The last bias of rho cancels in every gain.
    pieces = torch.autograd.grad(loss, list(function.parameters()), materialize_grads=True)
    return torch.cat([piece.flatten() for piece in pieces])


def jacobian(function, sets: Sets, psi: Tensor) -> Tensor:
    bound = function.bind(sets)
    return torch.autograd.functional.jacobian(lambda p: torch.sigmoid(Exact().gradient(bound, p)), psi)


def radius(function, sets: Sets, psi: Tensor) -> float:
    return float(torch.linalg.eigvals(jacobian(function, sets, psi)).abs().max())


def by_the_theorem(function, sets: Sets, psi: Tensor) -> Tensor:
    """The implicit gradient by dense algebra on enumerated subsets: w (I - J)^-1 times the derivative of one step."""
    adjoint = torch.linalg.solve(torch.eye(len(psi), dtype=psi.dtype) - jacobian(function, sets, psi).T, weights(sets))
    step = torch.sigmoid(Exact().gradient(function.bind(sets), psi))
    return by_parameters((step * adjoint).sum(), function)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, 0))
