"""What relaxations of k of n items have in common."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, Noisy, replace
from setgrad.discrete.distributions._base import check_choice
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.top_k import TopK
from setgrad.errors import OptionError


class RelaxedSubset(Noisy, GradientEstimator):
    """Soft weights of items that sum to k, or the k largest themselves with the gradient of the soft ones.

    As in `KSubset`, minus infinity excludes an item, and an instance without k others is refused.
    """

    def __init__(
        self,
        k: int,
        *,
        temperature: float,
        hard: bool,
        noise: Noise | None,
        samples: int,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(noise=noise, samples=samples, generator=generator)
        check_counts(k=k)
        if k < 1 or not temperature > 0:
            raise OptionError(f"k must be 1 or more and the temperature above 0, got {k} and {temperature}")
        self.k = k
        self.temperature = temperature
        self.hard = hard

    @abstractmethod
    def relax(self, theta: Tensor) -> Tensor:
        """Soft weights for theta, noise included."""

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Perturb, relax, and round if that is wanted."""
        seen = self.perturb(check_choice(theta, self.k, type(self).__name__), generator)
        soft = self.relax(seen)
        return (replace(TopK(self.k).solve(seen.detach()), soft) if self.hard else soft).to(theta.dtype)
