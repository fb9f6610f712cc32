"""The multilinear extension by random subsets with the derivative of relaxed masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from setgrad.functions._estimator import RelaxedEstimator
from setgrad.functions._set_function import BoundSetFunction


@final
@dataclass(frozen=True)
class Pathwise(RelaxedEstimator):
    """Random subsets as in `Bernoulli`, differentiated as if each mask moved with psi.

    Values are those of `Bernoulli(m)`, and unbiased. The derivative by psi uses the slopes of the relaxed function. It
    is cheap, and biased to the extent that the function is not linear between subsets. All methods raise an OptionError
    if the set function does not take relaxed masks.

    Args:
        samples: Number of random subsets of each set.
        noise: Source of the random numbers; `FreshNoise()` by default.
    """

    def _draw(self, bound: BoundSetFunction) -> Callable[[Tensor], Tensor]:
        uniform = self.noise.uniform(bound.sets.layout, self.samples)

        def masks(psi: Tensor) -> Tensor:
            detached = psi.detach()
            return (uniform < detached).to(psi.dtype) + (psi - detached)

        return masks
