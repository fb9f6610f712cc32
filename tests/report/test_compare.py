"""Baselines against counting, scikit-learn and problems with known answers; calibration by hand."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from setgrad import Choices, Sets
from setgrad.report._baselines import AbstractBaseline, Boosting, Logistic, Popularity, learned_baseline
from setgrad.report._calibration import calibration_of
from setgrad.report._compare import compare
from setgrad.report._item_features import ItemFeatures
from setgrad.selector import jaccard, pick_top
from setgrad.sets import subset_sizes
from tests.report.conftest import Shop


def threshold_choices(seed: int, sets: int) -> Choices:
    """Return sets of which the items with a first number above zero are chosen."""
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=(sets, 7, 3)))
    return Choices(Sets.from_list([*values]), Sets.from_list([*(values[..., 0] > 0)]))


@pytest.mark.parametrize("kind", [Boosting, Logistic])
def test_learners_find_a_threshold(kind: type[AbstractBaseline]) -> None:
    model, test = kind.fit(threshold_choices(0, 60), []), threshold_choices(1, 20)
    picks = pick_top(model.logits(test), test.sets, subset_sizes(test.subsets))
    assert float(jaccard(picks, test.subsets).mean()) > 0.95


def test_logistic_regression_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    choices = threshold_choices(0, 40)
    _, x = ItemFeatures.fit(choices, [], relative=False)
    scaled = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    y = choices.subsets.values.numpy()
    # The mean loss with a ridge of 1e-3 |w|^2 is theirs with C = 1 / (2e-3 n).
    rival = LogisticRegression(C=1 / (2e-3 * len(y)), tol=1e-8, max_iter=1000).fit(scaled, y)
    found = Logistic.fit(choices, []).logits(choices).numpy()
    np.testing.assert_allclose(found, rival.decision_function(scaled), atol=2e-2)


def test_a_code_becomes_the_share_in_other_sets() -> None:
    codes = np.array([[0], [1], [0], [1]] * 10, dtype=float).reshape(10, 4, 1)
    choices = Choices.of([*codes], [[1, 3]] * 10)
    features, x = ItemFeatures.fit(choices, [(0, 1)], relative=True)
    # Two sets of each fifth: of 8 sets 16 items have the code, and all or none of them were chosen.
    seen = {code: (16.0 * code + 10 * 0.5) / (16 + 10) for code in (0, 1)}
    expected = [(seen[int(code)] + 0.5) / 2 for code in codes.ravel()]
    np.testing.assert_allclose(x[:, 0], expected)
    unknown = features.of(Sets.from_list([torch.tensor([[7.0]])]))
    assert unknown[0, 0] == 0.5


def test_popularity_counts() -> None:
    choices = Choices.of([[[0.0], [0.0]], [[0.0], [0.0]]], [[0], [0]])
    named = replace(choices, item_ids=["a", "b", "a", "c"])
    found = torch.sigmoid(Popularity.fit(named).logits(named))
    np.testing.assert_allclose(found, [2.5 / 3, 0.25, 2.5 / 3, 0.25])
    new = replace(choices, item_ids=np.array(["zz", "b", "", "c"]))
    np.testing.assert_allclose(torch.sigmoid(Popularity.fit(named).logits(new)), [0.5, 0.25, 0.5, 0.25])


def test_without_scikit_learn_logistic_regression_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learned_baseline() is Boosting
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert learned_baseline() is Logistic


def test_baselines_of_a_shop(shop: Shop) -> None:
    found = compare(shop.selector, shop.evaluation, shop.training)
    learned, popular = found.baselines
    # The price decides, so a learner of single items finds it; which product it is does not matter.
    assert float(learned.jaccard.mean()) > 0.5 > float(popular.jaccard.mean())
    rows = found.table(shop.evaluation).rows
    lead = 100 * (shop.evaluation.jaccard - learned.jaccard).numpy()
    assert rows[1][3] == f"{lead.mean():+.2f} ± {lead.std(ddof=1) / len(lead) ** 0.5:.2f}"


def test_folds_hold_out_the_sets_that_are_scored(shop: Shop) -> None:
    found = compare(shop.selector, shop.evaluation, None)
    assert found.note.startswith("The baselines learn from 16 of these sets, and are scored on the others.")
    # Random labels cannot be known from other sets: no leak.
    sets, subsets = shop.evaluation.choices
    labels = torch.from_numpy(np.random.default_rng(0).random(len(subsets.values)) < 0.5)
    blind = replace(shop.evaluation, choices=Choices(sets, subsets.with_values(labels)))
    (learned,) = compare(shop.selector, blind, None).baselines
    assert float(learned.jaccard_true_size.mean()) < 0.6


def test_no_baseline_where_nothing_can_be_learned(shop: Shop) -> None:
    few = Choices(shop.training.sets[:9], shop.training.subsets[:9])
    assert compare(shop.selector, shop.evaluation, few) is None
    nothing = Choices(shop.training.sets, shop.training.subsets.with_values(torch.zeros(240, dtype=torch.bool)))
    assert compare(shop.selector, shop.evaluation, nothing) is None


def test_calibration_by_hand() -> None:
    probability = np.array([0.0, 0.04, 0.55, 0.55, 1.0], dtype=np.float32)
    found = calibration_of(probability, np.array([False, False, True, False, True]))
    assert found.counts.tolist() == [2, 2, 1]
    np.testing.assert_allclose(found.predicted, [0.02, 0.55, 1.0], rtol=1e-6)
    np.testing.assert_allclose(found.observed, [0.0, 0.5, 1.0])
    np.testing.assert_allclose(found.errors, [0, 0.125**0.5, 0])
    assert found.gap == pytest.approx((2 * 0.02 + 2 * 0.05) / 5)
