"""Boosting against enumeration of all questions, and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score

from setgrad.trees import _grow
from setgrad.trees._grow import DEPTH, Examples, bin_edges, grow, into_bins

PENALTY = 3.0


def make_examples(features, labels, sets=None, weights=None):
    count = len(labels)
    ids = np.arange(count) if sets is None else np.repeat(np.arange(sets), count // sets)
    weights = np.ones(count) if weights is None else weights
    return Examples(features.astype(np.float32), labels.astype(float), weights, ids)


def predict(trees, features):
    """The scores by a loop over items, trees and levels."""
    scores = np.full(len(features), trees.start)
    # Lists, because a loop over arrays takes seconds.
    grown = [part.tolist() for part in (trees.columns, trees.thresholds, trees.values)]
    for row, item in enumerate(features.astype(np.float32).tolist()):
        for columns, thresholds, values in zip(*grown, strict=True):
            leaf = 0
            for column, threshold in zip(columns, thresholds, strict=True):
                leaf = 2 * leaf + int(item[column] > threshold)
            scores[row] += values[leaf]
    return scores


@given(st.lists(st.sampled_from([-2.0, 0.0, 0.1, 1.0, 1e6]), min_size=1, max_size=30))
def test_few_different_values_are_all_kept_apart(values):
    values = np.array(values, np.float32)
    edges = bin_edges(values)
    bins = into_bins(values[:, None], [edges])[:, 0]
    np.testing.assert_array_equal(bins, np.unique(values, return_inverse=True)[1])
    np.testing.assert_array_equal(bins, (values[:, None] > edges).sum(1))


def test_many_values_are_split_into_bins_of_about_one_size():
    values = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    counts = np.bincount(into_bins(values[:, None], [bin_edges(values)])[:, 0])
    assert len(counts) == 33 and counts.min() > 250 and counts.max() < 360


def test_a_frequent_value_takes_no_thresholds_from_others():
    values = np.concatenate([np.zeros(9_000), np.arange(1, 1_001)]).astype(np.float32)
    edges = bin_edges(values)
    assert 0 < edges[0] < 1 or edges[0] > 0
    assert len(edges) >= 3 and (np.diff(edges) > 0).all()


def loss_reduction(bins, gradients, curvatures, leaves, column, edge):
    """What a question to all leaves gains, leaf by leaf."""
    total = 0.0
    for leaf in np.unique(leaves):
        for side in (bins[:, column] > edge, bins[:, column] <= edge):
            rows = (leaves == leaf) & side
            total += gradients[rows].sum() ** 2 / (curvatures[rows].sum() + PENALTY)
    return total


def test_every_level_asks_the_best_of_all_questions():
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 5, (80, 4)).astype(np.int32)
    gradients, curvatures = rng.normal(size=80), rng.uniform(0.05, 0.25, 80)
    columns = np.array([0, 2, 3])
    splits, values = _grow._grow_tree(bins, columns, gradients, curvatures)
    leaves = np.zeros(80, int)
    for column, edge in splits:
        best = max(
            loss_reduction(bins, gradients, curvatures, leaves, other, place) for other in columns for place in range(5)
        )
        assert column in columns
        assert loss_reduction(bins, gradients, curvatures, leaves, column, edge) == pytest.approx(best)
        leaves = 2 * leaves + (bins[:, column] > edge)
    for leaf in range(2**DEPTH):
        rows = leaves == leaf
        assert values[leaf] == pytest.approx(0.1 * gradients[rows].sum() / (curvatures[rows].sum() + PENALTY))


def test_scores_are_as_good_as_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(6_000, 6))
    features[:, 4] = rng.integers(0, 3, 6_000)
    logits = 2 * features[:, 0] * (features[:, 4] == 1) - np.abs(features[:, 1]) + features[:, 2]
    labels = rng.random(6_000) < 1 / (1 + np.exp(-logits))
    train, held_out, test = (slice(*part) for part in ((0, 2_000), (2_000, 3_000), (3_000, 6_000)))
    first, second = (make_examples(features[part], labels[part]) for part in (train, held_out))
    trees = grow(first, second, rng)
    chances = 1 / (1 + np.exp(-predict(trees, features[test])))
    rival = HistGradientBoostingClassifier(early_stopping=True, validation_fraction=1 / 3, random_state=0)
    other = rival.fit(features[:3_000], labels[:3_000]).predict_proba(features[test])[:, 1]
    assert log_loss(labels[test], chances) < 1.02 * log_loss(labels[test], other)
    assert roc_auc_score(labels[test], chances) > roc_auc_score(labels[test], other) - 0.005


def test_a_question_that_needs_two_columns_is_found():
    rng = np.random.default_rng(2)
    features = rng.integers(0, 2, (800, 5))
    labels = features[:, 1] != features[:, 3]
    trees = grow(make_examples(features[:500], labels[:500]), make_examples(features[500:], labels[500:]), rng)
    np.testing.assert_array_equal(predict(trees, features) > 0, labels)


def test_an_item_of_double_weight_counts_as_two():
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(300, 3)), rng.random(300) < 0.3
    twice = np.concatenate([np.arange(300), np.arange(0, 300, 2)])
    weights = np.where(np.arange(300) % 2 == 0, 2.0, 1.0)
    held_out = make_examples(rng.normal(size=(100, 3)), rng.random(100) < 0.3)
    ids = np.zeros(450, int)
    one = Examples(features.astype(np.float32), labels.astype(float), weights, ids[:300])
    two = Examples(features[twice].astype(np.float32), labels[twice].astype(float), np.ones(450), ids)
    # Both have one set, so both see all items; few values, so both have the same thresholds.
    for part in (one, two):
        part.features[:] = part.features.round()
    first, second = (grow(part, held_out, np.random.default_rng(0)) for part in (one, two))
    np.testing.assert_array_equal(first.columns, second.columns)
    np.testing.assert_allclose(first.values, second.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("labels", [np.zeros(40), np.ones(40)])
def test_labels_that_are_all_alike_give_one_score(labels):
    features = np.random.default_rng(0).normal(size=(40, 2))
    trees = grow(make_examples(features, labels), make_examples(features, labels), np.random.default_rng(0))
    assert np.isfinite(trees.start) and abs(trees.start) > 10
    assert np.ptp(predict(trees, features)) < 1e-3


def test_columns_without_different_values_give_one_score():
    features, labels = np.ones((40, 2)), np.arange(40) % 4 == 0
    trees = grow(make_examples(features, labels), make_examples(features, labels), np.random.default_rng(0))
    assert predict(trees, features) == pytest.approx(np.full(40, np.log(1 / 3)))


def test_more_items_than_a_tree_sees(monkeypatch):
    monkeypatch.setattr(_grow, "_MOST_ITEMS", 100)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2_000, 3))
    labels = features[:, 0] > 0.5
    trees = grow(make_examples(features, labels, sets=200), make_examples(features, labels, sets=200), rng)
    assert ((predict(trees, features[:300]) > 0) == labels[:300]).mean() > 0.97
