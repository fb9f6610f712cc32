"""Work in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from setgrad.functions import BoundSetFunction

# Subsets of all sets of a batch that are valued at once; a learned F holds about 2 KB for each.
_SUBSETS = 2**14
# Entries of the masks of subsets that exist at once.
_MASK_ENTRIES = 2**24


def parts_of(costs: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Yield runs of indices whose costs add up to the budget at most, or a single one that costs more.

    Examples:
        >>> [part.tolist() for part in parts_of(np.array([3, 1, 9, 2]), 4)]
        [[0, 1], [2], [3]]
    """
    ends, start = np.cumsum(costs), 0
    while start < len(costs):
        spent = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, spent + budget, side="right")))
        yield np.arange(start, stop)
        start = stop


def value_of_rows(bound: BoundSetFunction, masks: Tensor) -> Tensor:
    """Return F of many subsets `(m, total)` as `(m, b)` in float64, in parts of bounded size."""
    step = max(1, _SUBSETS // max(1, len(bound.sets)))
    return torch.cat([bound.value(part).double() for part in masks.split(step)])


def sets_at_once(subsets: int, longest: int) -> int:
    """Return how many sets can be valued at once, so many subsets of each."""
    return max(1, min(_SUBSETS // max(1, subsets), _MASK_ENTRIES // max(1, subsets * longest)))
