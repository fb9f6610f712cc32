"""F at fractional masks in place of the multilinear extension: nothing is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.functions._estimator import ExtensionEstimator, check_relaxed
from setgrad.functions._set_function import BoundSetFunction
from setgrad.sets import Sets


@final
@dataclass(frozen=True)
class Relaxed(ExtensionEstimator):
    """Take F at the mask psi itself, and its derivatives there: one evaluation for all items, and no noise.

    This is a relaxation of F in its own right, which a learned F can adapt to. It equals the multilinear extension if F
    is multilinear in its masks, as classical functions except `LogDeterminant` are, and at psi in {0, 1}. The gradient
    is the slope of F, not the difference between an item fully in and fully out. If F is piecewise linear in its masks,
    as a perceptron with ReLU activations is, the second derivative is 0 almost everywhere.

    All methods raise an OptionError if the set function does not take relaxed masks.

    Examples:
        >>> from setgrad.functions import Coverage, multilinear_gradient
        >>> sets = Sets.from_list([[[0.5], [1.0]]])
        >>> multilinear_gradient(Coverage(), sets, torch.tensor([0.5, 0.25]), estimator=Relaxed()).tolist()
        [0.375, 0.75]
    """

    smooth = True

    def value(self, bound: BoundSetFunction, psi: Tensor) -> Tensor:
        """Return F of the mask psi for each set, `(b,)`."""
        check_relaxed(bound, "Relaxed()")
        return bound.value(psi[None])[0]

    def gradient(self, bound: BoundSetFunction, psi: Tensor, coordinates: Tensor | None = None) -> Tensor:
        """Return the slope of F by psi, `(total,)`, or its entries `coordinates`."""
        # What is cached inside a transform cannot be used outside.
        bound.sets.layout.precompute()
        gradient = torch.func.grad(lambda p: self.value(bound, p).sum())(psi)
        return gradient if coordinates is None else gradient[coordinates]

    def hessian_vector(self, bound: BoundSetFunction, psi: Tensor, vector: Tensor) -> Tensor:
        """Return the second derivative of F by psi times a vector, `(total,)`."""
        bound.sets.layout.precompute()
        # The Hessian is symmetric, so a reverse pass is enough.
        return torch.func.grad(lambda p: self.gradient(bound, p) @ vector)(psi)

    def restrict(self, items: Sets) -> Relaxed:
        """Return the estimator itself, because nothing is drawn."""
        return self
