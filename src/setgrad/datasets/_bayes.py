"""The best score that anyone can reach on the Gaussian task when told the size of the subset."""

from __future__ import annotations

import torch

from setgrad.datasets._synthetic import GAUSSIAN_MEAN, GAUSSIAN_VARIANCE
from setgrad.errors import DataError
from setgrad.sets import Choices, segment_sum, segment_top_k


def bayes_jaccard(choices: Choices) -> float:
    """Mean Jaccard, from 0 to 1, of the most likely subset of the true size on a split of the Gaussian task.

    Under each of the two possible labels the most likely subset holds the items with the largest likelihood
    ratio; the label whose subset explains the whole set better wins. Averages 0.903 over fresh draws.

    Example:
        >>> from setgrad.datasets import gaussian
        >>> 0.85 < bayes_jaccard(gaussian(n_train=0, n_validation=0, n_test=300).test) < 0.95
        True
    """
    sets, subsets = choices
    truth = subsets.values.double()
    sizes = segment_sum(truth, sets).long().cpu().numpy()
    if not len(sizes) or not sizes.all():
        raise DataError(
            "the limit is a mean over sets with something to find; give at least one set, and no empty subset"
        )
    # log N(x; +mean) - log N(x; -mean): its sign flips with the label.
    ratio = sets.values.double() @ torch.from_numpy(GAUSSIAN_MEAN) * (2.0 / GAUSSIAN_VARIANCE)
    fits, hits = [], []
    for sign in (1.0, -1.0):
        picked = torch.zeros_like(truth).index_fill(0, segment_top_k(sign * ratio, sets, sizes), 1.0)
        # Each picked item gains half its ratio and every other item loses half of its own.
        fits.append(segment_sum((2.0 * picked - 1.0) * sign * ratio, sets))
        hits.append(segment_sum(picked * truth, sets))
    best = torch.where(fits[0] >= fits[1], hits[0], hits[1])
    union = 2.0 * torch.from_numpy(sizes) - best
    return float((best / union).mean())
