"""The base class of relaxed choices of k items."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from setgrad.discrete._estimator import GradientEstimator, NoisyLayer, replace_gradient
from setgrad.discrete.distributions._base import check_item_logits
from setgrad.discrete.noise import Noise
from setgrad.discrete.solvers._parameters import check_counts
from setgrad.discrete.solvers.top_k import TopK
from setgrad.errors import OptionError


class RelaxedSubset(NoisyLayer, GradientEstimator):
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
        super().__init__(noise=noise, samples=samples, generator=generator)
        check_counts(1, k=k)
        if not temperature > 0:
            raise OptionError(f"the temperature must be above 0, got {temperature}; for hard points use hard=True")
        self.k = k
        self.temperature = temperature
        self.hard = hard

    @abstractmethod
    def relax(self, theta: Tensor) -> Tensor:
        """Return soft weights for theta, which includes the noise."""

    def forward(self, theta: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return soft weights, or with `hard` the k largest entries as ones.

        Raises:
            OptionError: If an instance has fewer than k items that are not excluded.
            DataError: If theta contains NaN or plus infinity.
        """
        perturbed = self.perturb(check_item_logits(theta, self.k, type(self).__name__), generator)
        soft = self.relax(perturbed)
        if self.hard:
            soft = replace_gradient(TopK(self.k).solve(perturbed.detach()), soft)
        return soft.to(theta.dtype)
