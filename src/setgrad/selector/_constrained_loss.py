"""The training loss for subsets that were chosen under a constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from setgrad.discrete import Antithetic, FenchelYoung, Logistic
from setgrad.inference import SubsetLoss
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.sets import Sets, segment_mean


@final
@dataclass(frozen=True, eq=False)
class ConstrainedLoss(SubsetLoss):
    """The Fenchel-Young loss of the best feasible subset under logistic noise; every set has the same weight.

    It is convex in the logits. Its gradient is the share of draws in which an item is in the best feasible subset,
    minus 1 if the item was chosen. If all subsets are feasible that share is sigmoid(logit), and the loss is the
    cross-entropy of `AllItems` in expectation.

    Args:
        constraint: The constraint on the sets of the batch.
        samples: Draws of the noise for each set.
        seed: Seed of the draws. Every call draws the same, so that all members learn from the same noise.
    """

    constraint: BatchConstraint
    samples: int
    seed: int

    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """Return None: the loss reads the logits of all items."""
        return None

    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Return the mean over the items of a set, then over the sets; a set has the mean weight of its items."""
        target = subsets.values.to(logits.dtype)
        set_weights = None if weights is None else segment_mean(weights, subsets)
        # Instances with NaN have no solution and no loss; this term passes NaN on, so that training stops.
        total = 0 * logits.sum()
        generator = torch.Generator(logits.device).manual_seed(self.seed)
        for call in self.constraint.calls(subsets):
            loss = FenchelYoung(call.solver, noise=Antithetic(Logistic()), samples=self.samples, generator=generator)
            chosen, _ = call.sets.with_values(target[call.items]).padded()
            value = loss(call.pad(logits[None])[0], chosen) / call.sets.lengths
            if set_weights is not None:
                value = value * set_weights[call.sets.layout.to_device(call.places)]
            total = total + value.sum()
        return total / max(1, int((subsets.layout.host_lengths > 0).sum()))
