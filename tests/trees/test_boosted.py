"""The scores of items: out-of-fold, the same in every batch and precision."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from setgrad.columns._part import Part
from setgrad.trees import BoostedTrees, boosted

# Two quantities, a category, a fact of the set of 3 values, words, and a vector without axes that mean something.
PARTS = (
    Part(2, compared=1),
    Part(1, 6, 4),
    Part(1, 4, 4, context=True),
    Part(3, 9, 4, words=3),
    Part(40),
)
SETS, SIZE = 60, 8


def make_items(seed=0, sets=SETS):
    """Numbers as `PARTS` describe them, features relative to the set, sets, and a choice by both columns of codes."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(sets), SIZE)
    numbers = np.concatenate(
        [
            rng.normal(size=(len(ids), 2)),
            rng.integers(0, 6, (len(ids), 1)),
            rng.integers(1, 4, sets)[ids, None],
            rng.integers(0, 9, (len(ids), 3)),
            rng.normal(size=(len(ids), 40)),
        ],
        1,
    )
    relative = rng.normal(size=(len(ids), 3))
    chosen = (numbers[:, 2] + numbers[:, 3]) % 3 == 0
    return torch.tensor(numbers), torch.tensor(relative), torch.tensor(chosen), torch.tensor(ids)


@pytest.fixture(scope="module")
def fitted():
    trees = BoostedTrees(PARTS, 3)
    numbers, relative, chosen, ids = make_items()
    return trees, trees.fit(numbers, relative, chosen, ids, seed=0)


def own_scores(trees, folds, numbers, relative, ids):
    """The scores of the sets that trees were grown on."""
    return trees(numbers, relative, folds[ids])


def score_by_hand(trees, numbers, relative):
    """Scores by loops over folds, items, trees and levels."""
    features = trees.inputs.features(numbers, relative)
    scores = np.zeros((len(trees.counts), len(numbers)))
    for fold, count in enumerate(trees.counts.tolist()):
        table = torch.cat([features, trees.labels[fold][trees.inputs.codes(numbers)]], 1)
        # Lists, because a loop over tensors takes seconds.
        columns, thresholds, values = (
            part[fold, :count].tolist() for part in (trees.columns, trees.thresholds, trees.values)
        )
        for row, item in enumerate(table.tolist()):
            scores[fold, row] = trees.starts[fold]
            for tree in range(count):
                leaf = 0
                for column, threshold in zip(columns[tree], thresholds[tree], strict=True):
                    leaf = 2 * leaf + int(item[column] > threshold)
                scores[fold, row] += values[tree][leaf]
    return scores


def test_a_score_is_the_mean_of_the_trees_of_all_folds(fitted):
    numbers, relative, _, _ = make_items(seed=1, sets=3)
    expected = score_by_hand(fitted[0], numbers, relative).mean(0)
    torch.testing.assert_close(fitted[0](numbers, relative).double(), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_a_choice_by_a_category_and_a_fact_of_the_set_is_learned(fitted):
    trees, folds = fitted
    numbers, relative, chosen, _ = make_items(seed=1)
    assert roc_auc_score(chosen, trees(numbers, relative)) > 0.98
    numbers, relative, chosen, ids = make_items()
    assert roc_auc_score(chosen, own_scores(trees, folds, numbers, relative, ids)) > 0.95


def test_each_fold_scores_its_own_sets(fitted):
    trees, folds = fitted
    numbers, relative, _, ids = make_items()
    by_fold = score_by_hand(trees, numbers[:80], relative[:80])
    expected = by_fold[folds[ids[:80]], np.arange(80)]
    scores = own_scores(trees, folds, numbers[:80], relative[:80], ids[:80])
    torch.testing.assert_close(scores.double(), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    # Folds are as large as one another.
    assert np.bincount(folds).tolist() == [SETS // 5] * 5


def test_a_set_is_scored_by_trees_that_have_not_seen_it():
    # Every set has a category of its own, which tells nothing of other sets; its labels are random.
    rng = np.random.default_rng(0)
    ids = torch.arange(30).repeat_interleave(20)
    numbers, chosen = ids[:, None].double() + 1, torch.tensor(rng.random(30) < 0.5).repeat_interleave(20)
    trees = BoostedTrees([Part(1, 32, 4)], 0)
    folds = trees.fit(numbers, None, chosen, ids, seed=0)
    assert roc_auc_score(chosen, own_scores(trees, folds, numbers, None, ids)) < 0.75
    # The trees have learned the labels of all sets but those of a fold.
    assert roc_auc_score(chosen, trees(numbers, None)) > 0.95


def test_scores_do_not_depend_on_the_batch_or_the_precision(fitted, monkeypatch):
    trees = fitted[0]
    numbers, relative, _, _ = make_items(seed=1)
    scores = trees(numbers, relative)
    for rows in (slice(0, 1), slice(7, 30)):
        torch.testing.assert_close(trees(numbers[rows], relative[rows]), scores[rows], rtol=0, atol=1e-6)
    monkeypatch.setattr(boosted, "_CHUNK", 50)
    assert trees(numbers, relative).equal(scores)
    exact = BoostedTrees(PARTS, 3)
    exact.load_state_dict(trees.state_dict())
    torch.testing.assert_close(exact.double()(numbers, relative), scores.double(), rtol=1e-5, atol=1e-5)
    assert trees(numbers[:0], relative[:0]).shape == (0,)


def test_the_seed_decides_all(few_trees):
    numbers, relative, chosen, ids = make_items()
    first, again, other = (BoostedTrees(PARTS, 3) for _ in range(3))
    with few_trees():
        folds = first.fit(numbers, relative, chosen, ids, seed=0)
        assert again.fit(numbers, relative, chosen, ids, seed=0).equal(folds)
        assert all(value.equal(first.state_dict()[name]) for name, value in again.state_dict().items())
        assert not other.fit(numbers, relative, chosen, ids, seed=1).equal(folds)


def test_trees_learn_from_a_part_of_many_items(fitted, monkeypatch):
    monkeypatch.setattr(boosted, "_MOST_ITEMS", 300)
    trees = BoostedTrees(PARTS, 3)
    numbers, relative, chosen, ids = make_items(sets=200)
    folds = trees.fit(numbers, relative, chosen, ids, seed=0)
    assert (folds >= 0).sum() == 38 and (folds < 0).sum() == 162
    # Sets that no trees learned from are scored as new ones.
    own, new = own_scores(trees, folds, numbers, relative, ids), trees(numbers, relative)
    assert own[folds[ids] < 0].equal(new[folds[ids] < 0]) and not own.equal(new)
    assert roc_auc_score(chosen, own) > 0.9


def test_an_item_without_weight_teaches_nothing(few_trees):
    numbers, relative, chosen, ids = make_items()
    weights = (ids < 50).float()
    changed = torch.where(ids < 50, chosen, ~chosen)
    first, second = BoostedTrees(PARTS, 3), BoostedTrees(PARTS, 3)
    with few_trees():
        first.fit(numbers, relative, chosen, ids, weights, seed=0)
        second.fit(numbers, relative, changed, ids, weights, seed=0)
    assert all(value.equal(second.state_dict()[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_very_few_sets_give_finite_scores(sets):
    trees = BoostedTrees(PARTS, 3)
    numbers, relative, chosen, ids = make_items(sets=sets)
    folds = trees.fit(numbers, relative, chosen, ids, seed=0)
    assert own_scores(trees, folds, numbers, relative, ids).isfinite().all()
    # Folds without sets of their own say what is chosen on average.
    assert trees(numbers, relative).isfinite().all() and (trees.starts != 0).all()


def test_new_trees_score_0():
    numbers, relative, _, _ = make_items()
    assert BoostedTrees(PARTS, 3)(numbers, relative).count_nonzero() == 0


@pytest.mark.parametrize(("name", "value"), [("columns", 10_000), ("columns", -1), ("counts", 501), ("counts", -1)])
def test_trees_of_a_damaged_file_are_not_sound(fitted, name, value):
    trees = BoostedTrees(PARTS, 3)
    trees.load_state_dict(fitted[0].state_dict())
    assert trees.is_sound
    getattr(trees, name).view(-1)[0] = value
    assert not trees.is_sound


def test_values_that_are_not_finite_are_not_sound(fitted):
    trees = BoostedTrees(PARTS, 3)
    trees.load_state_dict(fitted[0].state_dict())
    trees.values[0, 0, 0] = torch.nan
    assert not trees.is_sound


def test_what_trees_read():
    inputs = BoostedTrees(PARTS, 3).inputs
    # A long vector, words and missing values are left out.
    assert inputs.quantities == [0, 1] and inputs.flags == [(2, code) for code in range(1, 6)] + [
        (3, code) for code in range(1, 4)
    ]
    assert [place.starts for place in inputs.combinations] == [(2,), (2, 3)]
    assert inputs.buckets == 6 + 6 * 4 and inputs.width == 2 + 8 + 3 + 2


def test_pairs_of_columns_with_many_values_share_mean_labels():
    inputs = BoostedTrees([Part(1, 3_000, 4), Part(1, 2_000, 4)], 0).inputs
    single, other, pair = inputs.combinations
    assert (single.buckets, other.buckets, pair.buckets) == (3_000, 2_000, 2**14)
    codes = inputs.codes(torch.tensor([[2_999.0, 1_999.0], [0.0, 0.0]]))
    assert codes.tolist() == [[2_999, 4_999, 5_000 + 5_999_999 % 2**14], [0, 3_000, 5_000]]
