"""How well a chosen subset matches the right one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError
from setgrad.sets import Sets, segment_rank, segment_sum


def jaccard(picked: Sets, right: Sets) -> Tensor:
    """Size of the intersection over size of the union, for each set, `(b,)`; 1 where both are empty.

    Example:
        >>> a = Sets.from_list([torch.tensor([True, True, False]), torch.tensor([False])])
        >>> b = Sets.from_list([torch.tensor([True, False, False]), torch.tensor([False])])
        >>> jaccard(a, b).tolist()
        [0.5, 1.0]
    """
    both = segment_sum((picked.values & right.values).double(), right)
    either = segment_sum((picked.values | right.values).double(), right)
    return torch.where(either > 0, both / either.clamp(min=1), 1.0)


def mean_jaccard(picked: Sets, right: Sets) -> float:
    """The mean over all sets, of which there must be some."""
    if not len(right):
        raise DataError("there are no sets to score on; give at least one")
    return float(jaccard(picked, right).mean())


def pick_top(scores: Tensor, sets: Sets, sizes: np.ndarray | Tensor) -> Sets:
    """The `sizes[b]` best items of each set by `scores` `(total,)`, as a `Sets` of booleans."""
    limit = torch.as_tensor(sizes, device=scores.device)
    return sets.with_values(segment_rank(scores, sets) < limit[sets.layout.ids])
