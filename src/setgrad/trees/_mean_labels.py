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
        codes: The buckets of each item, `(total, c)`; -1 for none.
        labels: Whether each item was chosen, `(total,)`.
        weights: Weight of each item, `(total,)`.
        buckets: Number of buckets.
    """
    prior = (weights @ labels) / weights.sum()
    sums, counts = np.zeros(buckets), np.zeros(buckets)
    for column in codes.T:
        rows = column >= 0
        sums += np.bincount(column[rows], (labels * weights)[rows], buckets)
        counts += np.bincount(column[rows], weights[rows], buckets)
    return (sums + _PRIOR * prior) / (counts + _PRIOR)


def mean_labels_before(
    codes: np.ndarray, labels: np.ndarray, weights: np.ndarray, ids: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the mean label of the buckets of each item over the sets before its own, `(total, c)`.

    Args:
        codes: The buckets of each item, `(total, c)`; -1 for none.
        labels: Whether each item was chosen, `(total,)`.
        weights: Weight of each item, `(total,)`.
        ids: The set of each item, `(total,)`.
        rng: Source of the order of the sets.
    """
    prior = (weights @ labels) / weights.sum()
    _, ids = np.unique(ids, return_inverse=True)
    count = int(ids.max()) + 1
    turns = rng.permutation(count)[ids]
    # One entry for each bucket and set, buckets first, sets in their order.
    entries, places = np.unique(codes * count + turns[:, None], return_inverse=True)
    chosen, all_weights = (np.repeat(part, codes.shape[1]) for part in (labels * weights, weights))
    sums, counts = (np.bincount(places.ravel(), part, len(entries)) for part in (chosen, all_weights))
    starts = np.flatnonzero(np.diff(entries // count, prepend=-2))
    first = np.repeat(starts, np.diff(starts, append=len(entries)))
    sums, counts = ((before := np.cumsum(part) - part) - before[first] for part in (sums, counts))
    return ((sums + _PRIOR * prior) / (counts + _PRIOR))[places].reshape(codes.shape)
