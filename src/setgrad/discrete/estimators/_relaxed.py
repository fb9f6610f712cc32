"""The base classes of relaxed choices: of any kind, and of k items."""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, NoisyLayer, replace_gradient
from setgrad.discrete.distributions._base import check_item_logits
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.top_k import TopK
from setgrad.errors import OptionError


class RelaxedChoice(NoisyLayer, GradientEstimator):
    """Soft points that approach hard ones as the temperature falls, or hard points with the gradient of soft ones."""

    def __init__(
        self, *, temperature: float, hard: bool, noise: Noise | None, samples: int, generator: torch.Generator | None
    ) -> None:
        super().__init__(noise=noise, samples=samples, generator=generator)
        if not temperature > 0:
            raise OptionError(f"the temperature must be above 0, got {temperature}; for hard points use hard=True")
        self.temperature = temperature
        self.hard = hard

    @abstractmethod
    def check(self, theta: Tensor) -> Tensor:
        """Return theta as the noise is added to it; raise an error if no choice is possible."""

    @abstractmethod
    def relax(self, theta: Tensor) -> Tensor:
        """Return soft points for theta, which includes the noise."""

    @abstractmethod
    def solve(self, theta: Tensor) -> Tensor:
        """Return hard points for theta, which includes the noise."""

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return soft points, or with `hard` the best hard ones.

        Raises:
            OptionError: If minus infinity excludes so much that no choice is left.
            DataError: If theta contains NaN or plus infinity.
        """
        perturbed = self.perturb(self.check(theta), generator)
        soft = self.relax(perturbed)
        if self.hard:
            soft = replace_gradient(self.solve(perturbed.detach()), soft)
        return soft.to(theta.dtype)


class RelaxedSubset(RelaxedChoice):
    """Soft weights of items that sum to k, or the k largest with the gradient of the soft weights.

    As in `KSubset`, minus infinity excludes an item.
    """

    def __init__(
        self,
        k: int,
        *,
        temperature: float = 1.0,
        hard: bool = False,
        noise: Noise | None = None,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(temperature=temperature, hard=hard, noise=noise, samples=samples, generator=generator)
        check_counts(1, k=k)
        self.k = k

    @final
    def check(self, theta: Tensor) -> Tensor:
        """Return theta; raise an error if it allows fewer than k items."""
        return check_item_logits(theta, self.k, type(self).__name__)

    @final
    def solve(self, theta: Tensor) -> Tensor:
        """Return the k largest entries as ones."""
        z: Tensor = TopK(self.k).solve(theta)
        return z
