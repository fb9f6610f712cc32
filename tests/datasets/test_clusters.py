"""Clusters: one of three is chosen, and only a given item tells which."""

import numpy as np
import pytest
import torch

from setgrad.datasets import clusters
from setgrad.errors import OptionError


def test_sets_are_three_clusters_of_one_size() -> None:
    task = clusters()
    assert [len(part) for part in (task.train, task.validation, task.test)] == [1000, 500, 500]
    sizes = [int(mask.sum()) for mask in task.train.subsets]
    assert set(sizes) == {3, 4, 5}
    assert [len(items) for items in task.train.sets] == [3 * size for size in sizes]
    assert task.train.sets.dtype == torch.float32


def test_the_subset_is_what_is_near_one_of_its_items() -> None:
    right = []
    for items, mask in zip(*clusters().test, strict=True):
        distances = torch.cdist(items[mask][:1], items)[0]
        right.append(bool((distances.argsort()[: int(mask.sum())].sort().values == mask.nonzero()[:, 0]).all()))
    assert np.mean(right) > 0.995


def test_without_a_given_item_nothing_tells_which_cluster_is_chosen() -> None:
    # The cluster of the first item, the one farthest from the mean and the one with the largest sum of features.
    hits: list[list[bool]] = []
    for items, mask in zip(*clusters(n_train=3000).train, strict=True):
        farthest = (items - items.mean(0)).norm(dim=1).argmax()
        hits.append([bool(mask[i]) for i in (0, int(farthest), int(items.sum(1).argmax()))])
    # The standard deviation of each mean is 0.0086.
    assert np.abs(np.mean(hits, 0) - 1 / 3).max() < 0.035


def test_wrong_counts_raise_errors() -> None:
    with pytest.raises(OptionError, match="n_test must be an integer of at least 0, not -1"):
        clusters(n_test=-1)
    assert len(clusters(n_train=0, n_validation=0, n_test=0).train) == 0
