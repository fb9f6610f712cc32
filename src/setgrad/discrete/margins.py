"""Changes of theta, in training only, after which a choice must win by some distance to be found."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError


class Margin(ABC):
    """A change of theta before the solver. Estimators hand over theta of a maximisation, whatever the sense."""

    @abstractmethod
    def __call__(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Change theta; the gradient passes unchanged."""


@final
@dataclass(frozen=True)
class NoiseMargin(Margin):
    """Add +width/2 or -width/2 to every entry, at random. It asks for no labels.

    Example:
        >>> (NoiseMargin(0.2)(torch.zeros(3), generator=torch.Generator().manual_seed(0))).abs()
        tensor([0.1000, 0.1000, 0.1000])
    """

    width: float

    def __post_init__(self) -> None:
        _check(self.width)

    def __call__(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Toss a coin for each entry."""
        coins = torch.empty_like(theta, memory_format=torch.contiguous_format).bernoulli_(0.5, generator=generator)
        return theta + self.width * (coins - 0.5)


@final
@dataclass(frozen=True)
class InformedMargin(Margin):
    """Take width/2 from the entries of the right answer and add it to all others. For answers of zeros and ones.

    Example:
        >>> InformedMargin(0.5)(torch.zeros(3), target=torch.tensor([1.0, 0.0, 0.0]))
        tensor([-0.2500,  0.2500,  0.2500])
    """

    width: float

    def __post_init__(self) -> None:
        _check(self.width)

    def __call__(
        self, theta: Tensor, *, target: Tensor | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Make the right answer harder to find."""
        if target is None:
            raise OptionError(
                "an informed margin needs the right answer: call estimator(theta, target=z), or use NoiseMargin"
            )
        if target.shape != theta.shape[theta.ndim - target.ndim :]:
            raise ShapeError(
                f"the target has shape {tuple(target.shape)} and theta {tuple(theta.shape)}; both must be the same, "
                "but for an axis of samples in front of theta"
            )
        return theta + self.width * (0.5 - target.to(theta))


def _check(width: float) -> None:
    if not 0 <= width < math.inf:
        raise OptionError(f"the width of a margin is a finite number, 0 or more, got {width}")
