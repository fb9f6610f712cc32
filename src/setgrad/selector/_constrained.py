"""The loss of a selector that is trained through the constraint under which the subsets were chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import Antithetic, FenchelYoung, Logistic
from setgrad.inference import SubsetLoss
from setgrad.selector._allowed import Allowed
from setgrad.sets import Sets, segment_mean


@final
@dataclass(frozen=True, eq=False)
class ConstrainedLoss(SubsetLoss):
    """The Fenchel-Young loss of the best allowed subset under logistic noise; every set counts the same.

    It is convex in the logits, and its gradient is the share of draws in which an item is in the best allowed subset,
    minus whether it was chosen. Where all subsets are allowed that share is sigmoid(logit), and the loss the
    cross-entropy of `AllItems`, in expectation.

    Args:
        allowed: The constraint for the sets of the batch.
        samples: Draws of the noise for each set.
        seed: Of the draws: every call draws the same, so that members learn from the same noise.
    """

    allowed: Allowed
    samples: int
    seed: int

    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """All items are read."""
        return None

    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Mean over the items of a set, then over the sets. A set weighs what its items weigh on average."""
        target = subsets.values.to(logits.dtype)
        each = None if weights is None else segment_mean(weights, subsets)
        # Instances with NaN have no answer and no loss; this term lets NaN through, so that training stops.
        total = 0 * logits.sum()
        generator = torch.Generator(logits.device).manual_seed(self.seed)
        for call in self.allowed.calls(subsets):
            loss = FenchelYoung(call.solver, noise=Antithetic(Logistic()), samples=self.samples, generator=generator)
            chosen, _ = call.sets.with_values(target[call.items]).padded()
            value = loss(call.fill(logits[None])[0], chosen) / call.sets.lengths
            total = total + (value if each is None else value * each[call.sets.layout.to_device(call.places)]).sum()
        return total / max(1, int((subsets.layout.host_lengths > 0).sum()))
