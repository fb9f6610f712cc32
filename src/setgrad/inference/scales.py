"""Scaling of the multilinear gradient before the sigmoid (paper 000, equation 27): psi = sigmoid(2 g / (|V| Q)).

It makes the iteration a contraction. It also bounds every logit by 2 / |V|, so the probabilities stay near 1/2: they
rank items, but no threshold or calibrated size can be read from them.

The paper's two norms are taken over the matrix of a whole batch, as its published code does: the result of a set then
depends on its batch mates. They are here under names that say so, to reproduce the paper; `L2Scale` is the mode to use.
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

    `linear` says that it multiplies the gradient by a constant, `joint` that it looks at all sets of a batch at once.
    """

    linear: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Scale the gradient of each set."""


@final
@dataclass(frozen=True)
class ConstantScale(Scale):
    """Q = c, the same for all sets."""

    c: float
    linear = True

    def __post_init__(self) -> None:
        if not 0 < self.c < math.inf:
            raise OptionError(f"the scale c must be positive and finite, not {self.c}")

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Divide by |V| c / 2."""
        # Not lengths * c: a product of whole numbers and a plain one is a float32.
        return 2 / self.c * gradient / layout.lengths[layout.ids]


@final
@dataclass(frozen=True)
class L2Scale(Scale):
    """Q = the l2 norm of the set's own gradient, so that a set's result does not depend on its batch mates.

    For one set alone, the paper's two norms are both equal to this one.
    """

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Divide by |V| times the norm, over 2; a zero gradient stays zero."""
        square = segment_sum(gradient.square(), layout)
        norm = torch.where(square > 0, square, torch.ones_like(square)).sqrt()
        return 2 * gradient / (layout.lengths * norm)[layout.ids]


@final
@dataclass(frozen=True)
class BatchFrobeniusScale(Scale):
    """Q = the Frobenius norm of the gradients of the whole batch: the published iDiffMF with norm "fro"."""

    joint = True

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Divide by |V| times the norm over the batch, over 2; a zero gradient stays zero."""
        square = gradient.square().sum()
        norm = torch.where(square > 0, square, torch.ones_like(square)).sqrt()
        return 2 * gradient / (layout.lengths[layout.ids] * norm)


@final
@dataclass(frozen=True)
class BatchNuclearScale(Scale):
    """Q = the nuclear norm of the matrix (sets, items) of the whole batch: the published iDiffMF's default.

    Short sets are filled up with zeros.
    """

    joint = True

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Divide by |V| times the norm over the batch, over 2; a zero gradient stays zero."""
        # The smaller of the two products has the singular values, squared, as eigenvalues: no SVD of a wide matrix.
        # Squares take twice the digits.
        matrix = Sets(gradient, layout).padded()[0].double()
        small = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
        squares = torch.linalg.eigvalsh(small)
        seen = squares > torch.finfo(squares.dtype).eps * squares[-1:].clamp(min=0)
        norm = torch.where(seen, torch.where(seen, squares, 1.0).sqrt(), 0.0).sum().to(gradient.dtype)
        return 2 * gradient / (layout.lengths[layout.ids] * torch.where(norm > 0, norm, 1.0))


# Scales by name, for those that need no number.
SCALES: dict[str, Scale] = {
    "l2": L2Scale(),
    "frobenius-batch": BatchFrobeniusScale(),
    "nuclear-batch": BatchNuclearScale(),
}
