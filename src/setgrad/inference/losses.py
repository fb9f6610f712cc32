"""Losses that compare inferred probabilities with the chosen subsets."""

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
    """A loss that declares which items it reads, so that inference can skip the others."""

    @abc.abstractmethod
    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """Return the flat indices of the items that the loss reads; None for all.

        Args:
            subsets: The chosen subsets, a boolean for each item.
            sizes: The sizes of the subsets.
        """

    @abc.abstractmethod
    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Return the mean loss over the sets.

        Args:
            logits: Logits of the items that the loss reads.
            subsets: The chosen subsets, a boolean for each item.
            coordinates: The result of `coordinates`.
            weights: Weight of each item, `(total,)`; None for 1.
        """


@final
@dataclass(frozen=True)
class AllItems(SubsetLoss):
    """Cross-entropy over all items of V. Every set counts the same, whatever its size."""

    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """Return None: the loss reads all items."""
        return None

    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Return the mean over the sets of the mean over their items."""
        layout = subsets.layout
        losses = binary_cross_entropy_with_logits(logits, subsets.values.to(logits.dtype), reduction="none")
        if weights is not None:
            losses = losses * weights
        count = max(1, int((layout.host_lengths > 0).sum()))
        return (losses / layout.lengths[layout.ids]).sum() / count


@final
@dataclass(frozen=True)
class SampledNegatives(SubsetLoss):
    """Cross-entropy summed over the chosen items and as many random others, as in EquiVSet and iDiffMF.

    Args:
        noise: Source of the random numbers; `FreshNoise()` by default.
    """

    noise: NoiseSource = field(default_factory=FreshNoise)

    def coordinates(self, subsets: Sets, sizes: np.ndarray) -> Tensor | None:
        """Return the chosen items and as many of the others, drawn again at each call."""
        draw = self.noise.uniform(subsets.layout, 1)[0]
        others = subsets.layout.host_lengths - sizes
        # Chosen items come first (above 1), then the others in random order.
        return segment_top_k(draw + 2 * subsets.values, subsets, sizes + np.minimum(sizes, others))

    def __call__(self, logits: Tensor, subsets: Sets, coordinates: Tensor | None, weights: Tensor | None) -> Tensor:
        """Return the sum over the items that are read, divided by the number of sets."""
        read = slice(None) if coordinates is None else coordinates
        target = subsets.values[read].to(logits.dtype)
        weight = None if weights is None else weights[read]
        total = binary_cross_entropy_with_logits(logits, target, weight=weight, reduction="sum")
        return total / max(1, len(subsets))
