"""Mean labels of categories against loops over sets."""

import numpy as np
import pytest

from setgrad.trees._mean_labels import mean_labels, mean_labels_before

PRIOR = 10


@pytest.fixture
def items():
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(12), 5)
    # Two combinations, whose buckets follow each other.
    codes = np.stack([rng.integers(0, 4, 60), 4 + rng.integers(0, 3, 60)], 1)
    return codes, rng.integers(0, 2, 60).astype(float), rng.uniform(0.5, 2, 60), ids


def mean_by_hand(labels, weights, prior):
    return (weights @ labels + PRIOR * prior) / (weights.sum() + PRIOR)


def test_a_mean_label_is_that_of_the_items_with_the_value(items):
    codes, labels, weights, _ = items
    means, prior = mean_labels(codes, labels, weights, 8), np.average(labels, weights=weights)
    for bucket in range(8):
        rows = (codes == bucket).any(1)
        assert means[bucket] == pytest.approx(mean_by_hand(labels[rows], weights[rows], prior))
    # No item has the last bucket.
    assert means[7] == pytest.approx(prior)


def test_a_mean_of_sets_before_is_that_of_a_loop(items):
    codes, labels, weights, ids = items
    means = mean_labels_before(codes, labels, weights, ids, np.random.default_rng(1))
    prior = np.average(labels, weights=weights)
    turns = np.random.default_rng(1).permutation(12)
    for row, column in np.ndindex(codes.shape):
        rows = (codes[:, column] == codes[row, column]) & (turns[ids] < turns[ids[row]])
        assert means[row, column] == pytest.approx(mean_by_hand(labels[rows], weights[rows], prior))


def test_no_item_sees_a_label_of_its_own_set(items):
    codes, labels, weights, ids = items
    # The mean of all stays the same, because the labels of one set change places.
    own = np.flatnonzero(ids == 3)
    weights[own], labels[own] = 1.0, [1, 0, 0, 1, 0]
    before = mean_labels_before(codes, labels, weights, ids, np.random.default_rng(1))
    labels[own] = [0, 1, 1, 0, 0]
    after = mean_labels_before(codes, labels, weights, ids, np.random.default_rng(1))
    np.testing.assert_allclose(before[own], after[own], rtol=1e-12)
    assert not np.allclose(before, after)


def test_without_categories_there_are_no_means(items):
    _, labels, weights, ids = items
    none = np.zeros((60, 0), np.int64)
    assert mean_labels(none, labels, weights, 0).shape == (0,)
    assert mean_labels_before(none, labels, weights, ids, np.random.default_rng(0)).shape == (60, 0)
