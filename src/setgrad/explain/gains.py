"""Which items are explained: those that were chosen, and the nearest of those that were not."""

from __future__ import annotations

import torch
from torch import Tensor

from setgrad.explain._batches import parts_of
from setgrad.explain._subject import AbstractSubject
from setgrad.sets import Sets, segment_rank


def gains_at(subject: AbstractSubject, sets: Sets, subsets: Sets, *, exact: bool = True) -> Sets:
    """Return the gain of each item at one subset of each set, in float64.

    The gain of an item outside is F with it minus F of the subset, that of an item inside F of the subset minus F
    without it.

    Args:
        subject: What is explained.
        sets: The sets.
        subsets: The subsets.
        exact: Whether to compute in double precision.
    """
    gains = torch.zeros(sets.layout.total, dtype=torch.float64)
    offsets = sets.layout.host_offsets
    for rows in parts_of(sets.layout.host_lengths, subject.batch_items):
        bound = subject.bind(sets.take(rows), exact=exact)
        part = bound.gains(subsets.take(rows).values.to(bound.sets.device)[None])[0]
        gains[offsets[rows[0]] : offsets[rows[-1] + 1]] = part.double().cpu()
    return sets.with_values(gains.to(sets.device))


def find_explained(gains: Sets, subsets: Sets, closed: Tensor, near: int) -> Tensor:
    """Return whether each item is explained: it was chosen, or is one of the nearest misses of its set.

    Args:
        gains: The gain of each item at the subset.
        subsets: The chosen items.
        closed: Items that could not be chosen, `(total,)`.
        near: How many of the other items of a set, those with the largest gains.
    """
    others = ~subsets.values & ~closed
    rank = segment_rank(torch.where(others, gains.values, -torch.inf), gains)
    return subsets.values | (others & (rank < near))


def rank_within(mask: Tensor, sets: Sets) -> Tensor:
    """Return for each item `(total,)` how many items before it in its set are in the mask."""
    before = mask.long().cumsum(0) - mask.long()
    offsets = sets.layout.offsets[:-1].clamp(max=max(0, len(mask) - 1))
    return before - before[offsets][sets.layout.ids] if len(mask) else before


def one_row_each(mask: Tensor, sets: Sets) -> Tensor:
    """Return booleans `(most, total)`: row k is true for the k-th item of the mask in each set."""
    rank = rank_within(mask, sets)
    most = int(rank[mask].max()) + 1 if bool(mask.any()) else 0
    return (torch.arange(most, device=mask.device)[:, None] == rank) & mask
