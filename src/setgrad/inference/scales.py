"""Scaling of the multilinear gradient before the sigmoid (paper 000, equation 27): psi = sigmoid(2 g / (|V| Q)).

It makes the iteration a contraction. It also bounds every logit by 2 / |V|, so the probabilities stay near 1/2: they
rank items, but no threshold or calibrated size can be read from them.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.sets import Layout, segment_sum


class Scale(abc.ABC):
    """A map from the gradient `(total,)` to the logits."""

    @abc.abstractmethod
    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Scale the gradient of each set."""


@final
@dataclass(frozen=True)
class ConstantScale(Scale):
    """Q = c, the same for all sets."""

    c: float

    def __post_init__(self) -> None:
        if not self.c > 0:
            raise OptionError(f"the scale c must be positive, not {self.c}")

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Divide by |V| c / 2."""
        return 2 * gradient / (layout.lengths[layout.ids] * self.c)


@final
@dataclass(frozen=True)
class L2Scale(Scale):
    """Q = the l2 norm of the set's own gradient, so that a set's result does not depend on its batch mates."""

    def __call__(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Divide by |V| times the norm, over 2; a zero gradient stays zero."""
        square = segment_sum(gradient.square(), layout)
        norm = torch.where(square > 0, square, torch.ones_like(square)).sqrt()
        return 2 * gradient / (layout.lengths * norm)[layout.ids]


# Scales by name, for those that need no number.
SCALES: dict[str, Scale] = {"l2": L2Scale()}
