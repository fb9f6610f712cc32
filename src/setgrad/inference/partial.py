"""Learning F at partial subsets: the gain of an item at a part A of S* is the logit of "the item is in S*, given A".

A model that is trained this way can be asked at every step of a choice: at the empty subset for the probability of each
item, at a begun subset for what completes it, and at S* itself for when to stop. It is the set-function form of an
order-agnostic autoregressive model (Uria et al., 2014, arXiv:1310.1757; Hoogeboom et al., 2022, arXiv:2110.02037).
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from setgrad.encoders._checkpoint import checkpointed
from setgrad.functions.noise import FreshNoise, NoiseOfSome
from setgrad.inference.losses import SubsetLoss
from setgrad.sets import Sets, segment_max, segment_sum

# More gains than this are compared part by part.
_MANY_GAINS = 2**22
# How far the logit of an item that is known to be chosen is above the others.
_CERTAIN = 20.0


def draw_partial_subsets(subsets: Sets, samples: int, noise: FreshNoise | NoiseOfSome, *, half: bool = False) -> Tensor:
    """Draw subsets at which F is trained: parts of the chosen ones.

    The first is the empty subset. The others have a size that is uniform in 0..|S*|, and items that are equally likely.

    Args:
        subsets: The chosen subsets, a boolean for each item.
        samples: Number of subsets of each set, at least 1.
        noise: Source of the random numbers.
        half: Whether the last one is a random half of V instead, chosen or not. With few training sets it keeps F from
            learning the parts by heart.

    Returns:
        Booleans `(samples, total)`.

    Examples:
        >>> from setgrad.functions import FreshNoise
        >>> subsets = Sets.from_list([[True, False, True]])
        >>> parts = draw_partial_subsets(subsets, 3, FreshNoise(0))
        >>> parts[0].any().item(), bool((parts & ~subsets.values).any())
        (False, False)
    """
    layout = subsets.layout
    empty = torch.zeros(1, layout.total, dtype=torch.bool, device=layout.device)
    if samples == 1:
        return empty
    # Items that join with a probability which is itself uniform give a subset whose size is uniform.
    joins = noise.of_sets(layout, samples - 1)[:, layout.ids]
    draw = noise.uniform(layout, samples - 1)
    parts = (draw < joins) & subsets.values
    return torch.cat([empty, parts[:-1], draw[-1:] < 0.5]) if half else torch.cat([empty, parts])


class PartialSubsetLoss(abc.ABC):
    """A loss of the gains at partial subsets.

    Each set counts the same at the empty subset, whatever the size of S*, so that the gains there are the log-odds of
    single items. So a later part that happens to be empty does not count.
    """

    @abc.abstractmethod
    def each(self, gains: Tensor, given: Tensor, subsets: Sets, weights: Tensor | None) -> Tensor:
        """Return the loss of each part of each set, `(m, b)`; the arguments are those of the call."""

    @final
    def counted(self, given: Tensor, subsets: Sets) -> Tensor:
        """Return which parts of which sets the mean is over, `(m, b)`; the arguments are those of the call."""
        counts = segment_sum(given.T, subsets).T > 0
        counts[0] = subsets.lengths > 0
        return counts

    @final
    def __call__(self, gains: Tensor, given: Tensor, subsets: Sets, weights: Tensor | None) -> Tensor:
        """Return the mean loss over the parts and the sets.

        Args:
            gains: Gains of the items at each part, `(m, total)`.
            given: The parts, `(m, total)`, the first of them empty.
            subsets: The chosen subsets, a boolean for each item.
            weights: Weight of each item, `(total,)`; None for 1.
        """
        counts = self.counted(given, subsets)
        if gains.numel() <= _MANY_GAINS:
            each = self.each(gains, given, subsets, weights)
        else:
            # Part by part, each computed again in the backward pass: the intermediate results are as large as the set.
            rows = zip(gains.split(1), given.split(1), strict=True)
            each = torch.cat([checkpointed(self.each, *row, subsets, weights) for row in rows])
        losses = torch.where(counts, each, 0.0)
        return losses.sum() / counts.sum().clamp(min=1)


@final
@dataclass(frozen=True)
class PartialCrossEntropy(PartialSubsetLoss):
    """Cross-entropy of every item outside the part: is it in S*, given that the part is?"""

    def each(self, gains: Tensor, given: Tensor, subsets: Sets, weights: Tensor | None) -> Tensor:
        """Return the mean over the items outside the part."""
        target = subsets.values.to(gains.dtype).expand_as(gains)
        losses = binary_cross_entropy_with_logits(gains, target, reduction="none")
        losses = losses if weights is None else losses * weights
        outside = segment_sum((~given).T, subsets).T.clamp(min=1)
        return segment_sum(losses.masked_fill(given, 0.0).T, subsets).T / outside


@final
@dataclass(frozen=True)
class NextItem(PartialSubsetLoss):
    """List-wise loss: a softmax over the items outside the part, whose target is uniform over the rest of S*.

    It compares the items of a set with each other: adding a number to all gains does not change it, so beside the
    cross-entropy it leaves the probabilities of single items calibrated. A part that nothing is missing from has no
    loss.
    """

    def each(self, gains: Tensor, given: Tensor, subsets: Sets, weights: Tensor | None) -> Tensor:
        """Return minus the mean log-probability of the items of the rest."""
        rest = subsets.values & ~given
        weight = torch.ones_like(gains[0]) if weights is None else weights.to(gains.dtype)
        share = segment_sum((rest * weight).T, subsets).T
        chosen = segment_sum(torch.where(rest, gains * weight, 0.0).T, subsets).T
        count = segment_sum(rest.T, subsets).T
        # Without a rest there may be no open item either, and the logarithm of 0 has no gradient.
        normaliser = log_total(gains, given, subsets, where=count > 0)
        return (share * normaliser - chosen) / count.clamp(min=1)


def log_total(gains: Tensor, given: Tensor, sets: Sets, where: Tensor) -> Tensor:
    """Return the logarithm of the sum of exp(gain) over the items outside each part, `(m, b)`; 0 if not `where`."""
    logits = gains.masked_fill(given, -torch.inf).T
    # The shift cancels, so it needs no graph.
    top = segment_max(logits.detach(), sets).nan_to_num(neginf=0.0)
    total = segment_sum((logits - top[sets.layout.ids]).exp(), sets)
    return torch.where(where.T, top + torch.where(where.T, total, 1.0).log(), 0.0).T


@final
@dataclass(frozen=True)
class WeightedSum(PartialSubsetLoss):
    """The cross-entropy plus a multiple of the list-wise loss.

    The first makes probabilities of single items, the second compares the items of a set.

    Args:
        next_item: The multiple.
    """

    next_item: float = 0.3

    def each(self, gains: Tensor, given: Tensor, subsets: Sets, weights: Tensor | None) -> Tensor:
        """Return the sum of both losses."""
        arguments = (gains, given, subsets, weights)
        return PartialCrossEntropy().each(*arguments) + self.next_item * NextItem().each(*arguments)


@final
@dataclass(frozen=True, eq=False)
class AtEveryPart(PartialSubsetLoss):
    """A loss of whole subsets at every part, such as that of the best subset under a constraint.

    At a part its chosen items are certain: what is compared is the rest.

    Args:
        loss: The loss of the logits of all items.
    """

    loss: SubsetLoss

    def each(self, gains: Tensor, given: Tensor, subsets: Sets, weights: Tensor | None) -> Tensor:
        """Return the mean over the sets, for every set."""
        # Above all other logits and their noise, and of their size, because a gradient may divide by their spread.
        certain = 2 * gains.detach().abs().max() + _CERTAIN if gains.numel() else _CERTAIN
        logits = torch.where(given & subsets.values, certain, gains)
        losses = [self.loss(row, subsets, None, weights) for row in logits]
        return torch.stack(losses)[:, None].expand(-1, len(subsets))
