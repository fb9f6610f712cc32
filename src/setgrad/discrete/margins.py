"""Margins: changes of theta, in training only, so that the right solution must win by a distance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError


@dataclass(frozen=True)
class Margin(ABC):
    """A change of theta before the solver. Estimators pass theta of a maximisation, whatever the solver's sense.

    Sahoo et al., 2023, arXiv:2205.15213.

    Args:
        width: The size of the change, finite and 0 or more.

    Raises:
        OptionError: If the width is negative or not finite.
    """

    width: float

    def __post_init__(self) -> None:
        if not 0 <= self.width < math.inf:
            raise OptionError(f"the width of a margin must be finite and 0 or more, got {self.width}")

    @abstractmethod
    def __call__(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the changed theta; the gradient passes unchanged."""


@final
@dataclass(frozen=True)
class NoiseMargin(Margin):
    """Add +width/2 or -width/2 to every entry, at random. It needs no labels.

    Examples:
        >>> (NoiseMargin(0.2)(torch.zeros(3), generator=torch.Generator().manual_seed(0))).abs()
        tensor([0.1000, 0.1000, 0.1000])
    """

    def __call__(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return theta with a random sign times width/2 added to each entry."""
        coins = torch.empty_like(theta, memory_format=torch.contiguous_format).bernoulli_(0.5, generator=generator)
        return theta + self.width * (coins - 0.5)


@final
@dataclass(frozen=True)
class InformedMargin(Margin):
    """Subtract width/2 from the entries of the right solution and add it to all others. For solutions of 0 and 1.

    Examples:
        >>> InformedMargin(0.5)(torch.zeros(3), target=torch.tensor([1.0, 0.0, 0.0]))
        tensor([-0.2500,  0.2500,  0.2500])
    """

    def __call__(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return theta with a lower score for the target.

        Raises:
            OptionError: If there is no target.
            ShapeError: If the target does not have the shape of theta, apart from an axis of samples.
        """
        if target is None:
            raise OptionError(
                "an informed margin needs the right answer: call estimator(theta, target=z), or use NoiseMargin"
            )
        if target.shape != theta.shape[theta.ndim - target.ndim :]:
            raise ShapeError(
                f"the target has shape {tuple(target.shape)} and theta {tuple(theta.shape)}; both must be the same, "
                "apart from an axis of samples in front of theta"
            )
        return theta + self.width * (0.5 - target.to(theta))
