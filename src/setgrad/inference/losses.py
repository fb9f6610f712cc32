"""Losses that compare inferred probabilities with the subsets that were chosen."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import final

import numpy as np
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from setgrad.functions.noise import FreshNoise, NoiseSource
from setgrad.sets import Sets, segment_top_k


class SubsetLoss(abc.ABC):
    """A loss that says which items it reads, so that inference need not compute the others."""

    @abc.abstractmethod
    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """Numbers of the items that the loss reads; None for all. `sizes` are those of the subsets, on the host."""

    @abc.abstractmethod
    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Mean loss over the sets. `weights` `(total,)` says how much each item counts."""


@final
@dataclass(frozen=True)
class AllItems(SubsetLoss):
    """Cross-entropy over all items of V; every set counts the same, whatever its size."""

    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """All items are read."""
        return None

    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Mean over the items of a set, then over the sets."""
        layout = subsets.layout
        each = binary_cross_entropy_with_logits(logits, subsets.values.to(logits.dtype), reduction="none")
        if weights is not None:
            each = each * weights
        count = max(1, int((layout.host_lengths > 0).sum()))
        return (each / layout.lengths[layout.ids]).sum() / count


@final
@dataclass(frozen=True)
class SampledNegatives(SubsetLoss):
    """The paper's loss: cross-entropy summed over S* and as many random items outside it."""

    noise: NoiseSource = field(default_factory=FreshNoise)

    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """The chosen items, and as many of the others, drawn anew at each call."""
        draw = self.noise.uniform(subsets.layout, 1)[0]
        others = subsets.layout.host_lengths - sizes
        # Chosen items first (above 1), then the others in random order.
        return segment_top_k(draw + 2 * subsets.values, subsets, sizes + np.minimum(sizes, others))

    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Sum over the items that were read, mean over the sets."""
        places = slice(None) if coordinates is None else coordinates
        target = subsets.values[places].to(logits.dtype)
        weight = None if weights is None else weights[places]
        total = binary_cross_entropy_with_logits(logits, target, weight=weight, reduction="sum")
        return total / max(1, len(subsets))
