"""Scaling of the multilinear gradient before the sigmoid: psi = sigmoid(2 g / (|V| Q)).

This is equation 27 of Özcan et al. (2024, arXiv:2412.11239), which makes the iteration a contraction. It also bounds
every logit by 2 / |V|, so that probabilities stay near 1/2: they rank items, but no threshold or calibrated size can be
derived from them.

The paper's two norms are taken over the matrix of a whole batch, as in its published code, so the result of a set
depends on the other sets of the batch. They are available under names that say so, to reproduce the paper. Use
`L2Scale` for anything else.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.sets import Layout, Sets, segment_sum


class Scale(abc.ABC):
    """A map from the gradient `(total,)` to the logits.

    Attributes:
        linear: Whether it multiplies the gradient of each set by a constant.
        joint: Whether the result of a set depends on the other sets of the batch.
    """

    linear: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Return the logits, `(total,)`."""


@final
@dataclass(frozen=True)
class ConstantScale(Scale):
    """Q = c for all sets.

    Args:
        c: A positive number.

    Raises:
        OptionError: If c is not positive and finite.
    """

    c: float
    linear = True

    def __post_init__(self) -> None:
        if not 0 < self.c < math.inf:
            raise OptionError(f"the scale c must be positive and finite, not {self.c}")

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Return 2 g / (|V| c)."""
        # Not lengths * c, because the product of integers and a Python float is a float32.
        return 2 / self.c * gradient / layout.lengths[layout.ids]


@final
@dataclass(frozen=True)
class L2Scale(Scale):
    """Q = the l2 norm of the gradient of the set, so that a result does not depend on the other sets of the batch.

    For a batch of one set, the two batch norms are equal to this one.
    """

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Return 2 g / (|V| Q); a gradient of 0 stays 0."""
        square = segment_sum(gradient.square(), layout)
        norm = torch.where(square > 0, square, torch.ones_like(square)).sqrt()
        return 2 * gradient / (layout.lengths * norm)[layout.ids]


@final
@dataclass(frozen=True)
class BatchFrobeniusScale(Scale):
    """Q = the Frobenius norm of the gradients of the whole batch: the published iDiffMF with the norm "fro"."""

    joint = True

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Return 2 g / (|V| Q); a gradient of 0 stays 0."""
        square = gradient.square().sum()
        norm = torch.where(square > 0, square, torch.ones_like(square)).sqrt()
        return 2 * gradient / (layout.lengths[layout.ids] * norm)


@final
@dataclass(frozen=True)
class BatchNuclearScale(Scale):
    """Q = the nuclear norm of the matrix (sets, items) of the whole batch: the default of the published iDiffMF.

    Short sets are padded with zeros.
    """

    joint = True

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Return 2 g / (|V| Q); a gradient of 0 stays 0."""
        # The eigenvalues of the smaller Gram matrix are the squared singular values, which avoids the SVD of a wide
        # matrix. Squares need twice the digits, hence float64.
        matrix = Sets(gradient, layout).padded()[0].double()
        gram = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
        squares = torch.linalg.eigvalsh(gram)
        nonzero = squares > torch.finfo(squares.dtype).eps * squares[-1:].clamp(min=0)
        norm = torch.where(nonzero, torch.where(nonzero, squares, 1.0).sqrt(), 0.0).sum().to(gradient.dtype)
        return 2 * gradient / (layout.lengths[layout.ids] * torch.where(norm > 0, norm, 1.0))


# Scales without a number, by the names that the options of the selector use.
SCALES: dict[str, Scale] = {
    "l2": L2Scale(),
    "frobenius-batch": BatchFrobeniusScale(),
    "nuclear-batch": BatchNuclearScale(),
}
