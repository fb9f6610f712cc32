"""The multilinear extension by Gaussian masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from setgrad.functions._estimator import RelaxedEstimator
from setgrad.functions._set_function import BoundSetFunction


@final
@dataclass(frozen=True)
class Gaussian(RelaxedEstimator):
    """Replace random subsets by Gaussian masks with the same mean and variance: smooth in psi, slightly biased.

    The Hessian-vector product is the exact derivative of the estimated gradient. All methods raise an OptionError if
    the set function does not take relaxed masks.

    Args:
        samples: Number of masks of each set.
        noise: Source of the random numbers; `FreshNoise()` by default.
    """

    def _draw(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        normal = self.noise.normal(bound.sets.layout, self.samples)

        def masks(psi: Tensor) -> Tensor:
            variance = psi * (1 - psi)
            # The root has no derivative at 0, so items that are certainly in or out get a mask without noise.
            uncertain = variance > 0
            deviation = torch.where(uncertain, torch.where(uncertain, variance, 1.0).sqrt(), 0.0)
            return psi + deviation * normal.to(psi.dtype)

        return masks
