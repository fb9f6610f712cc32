"""Clusters, a task where the subset is only known once one of its items is.

Each set holds three clusters, and the subset is one of them, picked at random. All clusters of a set have the same
size, so neither the items nor the size of the subset tell which one was picked.
"""

from __future__ import annotations

import numpy as np
import torch

from setgrad.datasets._task import Task, resolve_counts, spawn_generators
from setgrad.sets import Choices, Sets

_CLUSTERS = 3
# Items of a cluster, fewest and most.
_SIZES = (3, 5)
_DIM = 8
# Centres are about 4 apart, and the items of a cluster about 0.8.
_NOISE = 0.2
_DEFAULT_COUNTS = (1000, 500, 500)
_SOURCE = "Generated, so no licence is needed."


def clusters(
    *,
    random_state: int = 0,
    n_train: int | None = None,
    n_validation: int | None = None,
    n_test: int | None = None,
) -> Task:
    """Return the task of completing one of three clusters.

    Each set holds 3 to 5 items around each of three random centres, and the subset is all items of one cluster, picked
    at random. Without a given item no method can expect more than 1/3, whatever number of items it chooses. With one
    given item the others follow.

    Args:
        random_state: Seed of all random draws.
        n_train: Number of training sets; 1000 by default.
        n_validation: Number of validation sets; 500 by default.
        n_test: Number of test sets; 500 by default.

    Raises:
        OptionError: If a number is negative or not an integer.

    Examples:
        >>> task = clusters(n_train=5, n_validation=2, n_test=2)
        >>> sets, subsets = task.train
        >>> [len(items) // int(mask.sum()) for items, mask in zip(sets, subsets)]
        [3, 3, 3, 3, 3]
    """
    counts = resolve_counts((n_train, n_validation, n_test), _DEFAULT_COUNTS)
    train, validation, test = (
        _make_split(rng, count) for rng, count in zip(spawn_generators(random_state, 3), counts, strict=True)
    )
    description = (
        "Three clusters of 3 to 5 points each; all points of one cluster, picked at random, are to be found. Without a "
        "given point of it the best possible mean Jaccard is 1/3, with one given point it is 1."
    )
    return Task("clusters", description, train, validation, test, _SOURCE)


def _make_split(rng: np.random.Generator, count: int) -> Choices:
    sizes = rng.integers(_SIZES[0], _SIZES[1] + 1, count)
    # Clusters are in random order, so the first one is as good as any; then the items are shuffled.
    orders = [rng.permutation(_CLUSTERS * size) for size in sizes]
    values = [_draw(rng, int(size))[order] for size, order in zip(sizes, orders, strict=True)]
    masks = [order < size for size, order in zip(sizes, orders, strict=True)]
    flat = np.concatenate(values) if count else np.zeros((0, _DIM))
    sets = Sets.from_lengths(torch.from_numpy(flat.astype(np.float32)), _CLUSTERS * sizes)
    mask = np.concatenate(masks) if count else np.zeros(0, dtype=bool)
    return Choices(sets, sets.with_values(torch.from_numpy(mask)))


def _draw(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return the items of all clusters, one cluster after the other."""
    centres = rng.standard_normal((_CLUSTERS, 1, _DIM))
    return (centres + _NOISE * rng.standard_normal((_CLUSTERS, size, _DIM))).reshape(-1, _DIM)
