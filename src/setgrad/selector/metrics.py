"""How well picked subsets match the true ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from setgrad.errors import DataError
from setgrad.sets import Sets, segment_rank, segment_sum


def jaccard(picks: Sets, truth: Sets) -> Tensor:
    """Return the Jaccard score of each set: size of the intersection over size of the union.

    Args:
        picks: The picked subsets, a `Sets` of booleans.
        truth: The true subsets, aligned with `picks`.

    Returns:
        One score for each set, `(b,)`, in float64; 1 where both subsets are empty.

    Examples:
        >>> a = Sets.from_list([torch.tensor([True, True, False]), torch.tensor([False])])
        >>> b = Sets.from_list([torch.tensor([True, False, False]), torch.tensor([False])])
        >>> jaccard(a, b).tolist()
        [0.5, 1.0]
    """
    counts = torch.stack([picks.values & truth.values, picks.values | truth.values], 1)
    both, either = segment_sum(counts.double(), truth).unbind(1)
    return torch.where(either > 0, both / either.clamp(min=1), 1.0)


def mean_jaccard(picks: Sets, truth: Sets) -> float:
    """Return the mean Jaccard score.

    Raises:
        DataError: If there are no sets.
    """
    if not len(truth):
        raise DataError("there are no sets to score on; give at least one")
    return float(jaccard(picks, truth).mean())


def pick_top(scores: Tensor, sets: Sets, sizes: np.ndarray | Tensor) -> Sets:
    """Return the items of each set with the largest scores.

    Args:
        scores: A score for each item, `(total,)`.
        sets: The sets.
        sizes: How many items to pick from each set, `(b,)`.

    Returns:
        The picked subsets, a `Sets` of booleans.

    Examples:
        >>> sets = Sets.from_list([torch.zeros(3, 1), torch.zeros(2, 1)])
        >>> picks = pick_top(torch.tensor([0.1, 0.9, 0.5, 2.0, 1.0]), sets, np.array([2, 1]))
        >>> [mask.tolist() for mask in picks]
        [[False, True, True], [True, False]]
    """
    limit = torch.as_tensor(sizes, device=scores.device)
    return sets.with_values(segment_rank(scores, sets) < limit[sets.layout.ids])


def is_clear(gains: Tensor, errors: float) -> bool:
    """Return whether gains of the scores of sets are positive by more than so many standard errors of their mean.

    Examples:
        >>> is_clear(torch.tensor([0.1, 0.2, 0.1, 0.2]), 3.0), is_clear(torch.tensor([-0.3, 0.4]), 1.0)
        (True, False)
    """
    gains = gains.double()
    error = float(gains.std()) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return float(gains.mean()) > errors * error
