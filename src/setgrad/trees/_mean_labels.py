"""Mean labels of the values of categories: how often items with a value were chosen.

For the sets that trees are grown on, a mean counts the sets before it in a random order. A mean that held the label of
the item itself would give it away.
"""

from __future__ import annotations

import numpy as np

# A value that occurs so often counts as much as the mean of all.
_PRIOR = 10.0


def mean_labels(codes: np.ndarray, labels: np.ndarray, weights: np.ndarray, buckets: int) -> np.ndarray:
    """Return the mean label of every bucket, `(buckets,)`, pulled to the mean of all where there are few items.

    Args:
        codes: The buckets of each item, `(total, combinations)`.
        labels: Whether each item was chosen, `(total,)`.
        weights: Weight of each item, `(total,)`.
        buckets: Number of buckets.
    """
    prior = (weights @ labels) / weights.sum()
    sums, counts = np.zeros(buckets), np.zeros(buckets)
    for column in codes.T:
        sums += np.bincount(column, labels * weights, buckets)
        counts += np.bincount(column, weights, buckets)
    return (sums + _PRIOR * prior) / (counts + _PRIOR)


def mean_labels_before(
    codes: np.ndarray, labels: np.ndarray, weights: np.ndarray, ids: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the mean label of the bucket of each item over the sets before its own, `(total, combinations)`.

    Args:
        codes: The buckets of each item, `(total, combinations)`.
        labels: Whether each item was chosen, `(total,)`.
        weights: Weight of each item, `(total,)`.
        ids: The set of each item, `(total,)`.
        rng: Source of the order of the sets.
    """
    prior = (weights @ labels) / weights.sum()
    _, ids = np.unique(ids, return_inverse=True)
    count = int(ids.max()) + 1
    turns = rng.permutation(count)[ids]
    means = np.empty(codes.shape)
    for number, column in enumerate(codes.T):
        means[:, number] = _mean_before(column, labels, weights, turns, count, prior)
    return means


def _mean_before(
    codes: np.ndarray, labels: np.ndarray, weights: np.ndarray, turns: np.ndarray, count: int, prior: float
) -> np.ndarray:
    # One entry for each bucket and set, buckets first, sets in their order.
    entries, places = np.unique(codes * count + turns, return_inverse=True)
    sums, counts = np.bincount(places, labels * weights), np.bincount(places, weights)
    before_sums, before_counts = (np.cumsum(part) - part for part in (sums, counts))
    buckets = entries // count
    starts = np.flatnonzero(np.diff(buckets, prepend=-1))
    first = np.repeat(starts, np.diff(starts, append=len(entries)))
    sums, counts = before_sums - before_sums[first], before_counts - before_counts[first]
    return ((sums + _PRIOR * prior) / (counts + _PRIOR))[places]
