"""The best score on the Gaussian task when the size of the subset is known."""

from __future__ import annotations

import torch

from setgrad.datasets._synthetic import GAUSSIAN_MEAN, GAUSSIAN_VARIANCE
from setgrad.errors import DataError
from setgrad.sets import Choices, segment_sum, segment_top_k, subset_sizes


def bayes_jaccard(choices: Choices) -> float:
    """Return the mean Jaccard, from 0 to 1, of the most likely subset of the true size.

    For each of the two possible labels the most likely subset has the items with the largest likelihood ratio; the
    label whose subset gives the whole set the higher likelihood wins. The expected value is 0.903 with the default
    sizes.

    Args:
        choices: A split of the task `gaussian`.

    Raises:
        DataError: If there are no sets, or a subset is empty.

    Examples:
        >>> from setgrad.datasets import gaussian
        >>> 0.85 < bayes_jaccard(gaussian(n_train=0, n_validation=0, n_test=300).test) < 0.95
        True
    """
    sets, subsets = choices
    target = subsets.values.double()
    sizes = subset_sizes(subsets)
    if not len(sizes) or not sizes.all():
        raise DataError("the mean needs at least one set, and no empty subset; draw a split with both")
    # log N(x; +mean) - log N(x; -mean): its sign flips with the label.
    ratio = sets.values.double() @ torch.from_numpy(GAUSSIAN_MEAN) * (2.0 / GAUSSIAN_VARIANCE)
    likelihoods, hits = [], []
    for sign in (1.0, -1.0):
        picked = torch.zeros_like(target).index_fill(0, segment_top_k(sign * ratio, sets, sizes), 1.0)
        # The log likelihood gains half the ratio of each picked item and loses half the ratio of each other item.
        likelihoods.append(segment_sum((2.0 * picked - 1.0) * sign * ratio, sets))
        hits.append(segment_sum(picked * target, sets))
    intersection = torch.where(likelihoods[0] >= likelihoods[1], hits[0], hits[1])
    union = 2.0 * torch.from_numpy(sizes) - intersection
    return float((intersection / union).mean())
