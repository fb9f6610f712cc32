"""Scores against sums over sets in plain Python, and the chance level against enumeration."""

from itertools import combinations

import numpy as np
import pytest

from setgrad import Choices, Sets, SubsetSelector
from setgrad.errors import DataError, NotFittedError, OptionError
from setgrad.report import Evaluation, chance_jaccard, evaluate
from setgrad.report._scores import score_table, size_rule_table
from setgrad.selector import SIZE_RULES
from tests.report.conftest import Shop, shop_table


def by_enumeration(n: int, k: int, given: int = 0) -> float:
    right, told = set(range(k)), set(range(given))
    subsets = [told | set(rest) for rest in combinations(range(given, n), k - given)]
    return float(np.mean([len(right & c) / len(right | c) if k else 1.0 for c in subsets]))


@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 1), (2, 1), (5, 2), (6, 4), (7, 7), (9, 3)])
def test_chance_by_enumeration(n: int, k: int) -> None:
    subsets = Sets.from_list([[place < k for place in range(n)]])
    assert chance_jaccard(subsets) == pytest.approx(by_enumeration(n, k), rel=1e-12)


@pytest.mark.parametrize(("n", "k", "given"), [(1, 1, 1), (5, 2, 1), (6, 4, 3), (7, 7, 2), (9, 3, 3)])
def test_chance_of_completing(n: int, k: int, given: int) -> None:
    right, told = (Sets.from_list([[place < count for place in range(n)]]) for count in (k, given))
    assert chance_jaccard(right, told) == pytest.approx(by_enumeration(n, k, given), rel=1e-12)


def test_given_items_that_are_not_right_raise(selector: SubsetSelector, test_sets: Choices) -> None:
    with pytest.raises(DataError, match=r"is given, but is not in the right subset; given must be a part of it"):
        evaluate(selector, test_sets, given=test_sets.sets.with_values(~test_sets.subsets.values))


def test_chance_is_a_mean_over_sets() -> None:
    shapes = [(5, 2), (6, 4), (5, 2), (3, 0)]
    subsets = Sets.from_list([[place < k for place in range(n)] for n, k in shapes])
    assert chance_jaccard(subsets) == pytest.approx(np.mean([by_enumeration(*shape) for shape in shapes]))


def test_chance_of_large_sets_is_finite() -> None:
    mask = np.zeros(200_000, dtype=bool)
    mask[:100_000] = True
    # Half of a large set: two random halves share a quarter, and cover three.
    assert chance_jaccard(Sets.from_list([mask])) == pytest.approx(1 / 3, abs=1e-5)


def test_scores_are_those_of_the_selector(selector: SubsetSelector, test_sets: Choices, evaluation: Evaluation) -> None:
    scores = evaluation.scores
    assert scores.jaccard == selector.score(*test_sets)
    assert scores.jaccard_true_size == selector.score_true_size(*test_sets)


def test_scores_by_hand(test_sets: Choices, evaluation: Evaluation) -> None:
    picked = [set(np.flatnonzero(mask)) for mask in evaluation.picks.to_list()]
    right = [set(np.flatnonzero(mask)) for mask in test_sets.subsets.to_list()]
    pairs = list(zip(picked, right, strict=True))
    scores = evaluation.scores
    assert all(picked)
    assert scores.precision == pytest.approx(np.mean([len(p & r) / len(p) for p, r in pairs]))
    assert scores.recall == pytest.approx(np.mean([len(p & r) / len(r) for p, r in pairs]))
    assert scores.exact == np.mean([p == r for p, r in pairs])
    assert scores.mean_size == np.mean([len(p) for p in picked])
    assert (scores.mean_true_size, scores.mean_set_size, scores.sets, scores.items) == (10, 100, 12, 1200)
    assert evaluation.jaccard.tolist() == pytest.approx([len(p & r) / len(p | r) for p, r in pairs])


@pytest.mark.parametrize(
    ("picked", "right", "precision", "recall"),
    [([], [], 1, 1), ([], [0], 0, 0), ([0], [], 0, 0), ([0, 1], [0], 0.5, 1), ([0], [0, 1], 1, 0.5)],
)
def test_nothing_chosen_and_nothing_right(
    monkeypatch: pytest.MonkeyPatch,
    selector: SubsetSelector,
    picked: list[int],
    right: list[int],
    precision: float,
    recall: float,
) -> None:
    choices = Choices.of([[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]], [right])
    picks = Choices.of(choices.sets, [picked]).subsets
    monkeypatch.setattr(SubsetSelector, "predict", lambda self, sets, **how: picks)
    scores = evaluate(selector, choices).scores
    assert (scores.precision, scores.recall) == (precision, recall)
    assert scores.exact == (picked == right)


def test_no_sets_at_all(selector: SubsetSelector, test_sets: Choices) -> None:
    with pytest.raises(DataError, match="no sets to evaluate"):
        evaluate(selector, Choices(test_sets.sets[:0], test_sets.subsets[:0]))
    with pytest.raises(DataError, match=r"as Choices, not tuple; make them: Choices.of\(sets, subsets\)"):
        evaluate(selector, (test_sets.sets, test_sets.subsets))


def test_a_table_is_read_as_the_selector_knows_it(shop: Shop, selector: SubsetSelector) -> None:
    table = shop_table(2, 5)
    evaluation = evaluate(shop.selector, table)
    assert evaluation.scores.jaccard == shop.selector.score(table)
    assert list(evaluation.choices.item_ids) == table["product"].to_pylist()
    with pytest.raises(NotFittedError, match="not fitted yet"):
        evaluate(SubsetSelector(), table)
    with pytest.raises(OptionError, match="was not fitted on a table"):
        evaluate(selector, table)


def test_grids_show_the_scores(selector: SubsetSelector, evaluation: Evaluation) -> None:
    cells = {row[0]: row[1] for row in score_table(evaluation.scores).rows}
    assert cells["Jaccard, true size given"] == f"{100 * evaluation.scores.jaccard_true_size:.2f}"
    used = [row[0] for row in size_rule_table(selector).rows if row[2] == "used"]
    assert [SIZE_RULES[name] for name in used] == [type(selector.size_rule_)]
