"""The benchmark of the whole system: its task against enumeration, and one small fit of it."""

import itertools

import numpy as np
import pytest

from benchmarks.lib.records import RunContext
from benchmarks.selection.system import Trial, fit, show
from benchmarks.selection.system_task import KINDS, basket_worth, best_basket, draw


def test_the_best_basket_is_that_of_all_baskets() -> None:
    rng = np.random.default_rng(0)
    for budget in (0, 4, 9):
        kinds, prices, worth = rng.integers(0, KINDS, 8), rng.integers(1, 6, 8), rng.uniform(0.1, 2.5, 8)
        masks = (np.array(bits, dtype=bool) for bits in itertools.product((False, True), repeat=8))
        most = max(basket_worth(mask, kinds, worth) for mask in masks if prices[mask].sum() <= budget)
        found = best_basket(kinds, prices, worth, budget)
        assert prices[found].sum() <= budget
        assert max(np.bincount(kinds[found], minlength=KINDS)) <= 1
        assert basket_worth(found, kinds, worth) == pytest.approx(most)


def test_the_worth_of_the_best_baskets_is_one_and_of_none_is_zero() -> None:
    customers = draw(5, 0)
    best = customers.choices.subsets
    assert customers.worth_of(best) == pytest.approx(1)
    assert customers.worth_of(best.with_values(best.values & False)) == 0


def test_a_small_fit_is_shown_beside_the_whole() -> None:
    trials = [Trial(name, 0, 4, 1, "") for name in ("all", "no budget in training")]
    records = [{"variant": t.variant, "seed": t.seed, **fit(t, RunContext(device="cpu"))} for t in trials]
    assert all(0 <= record[column] <= 100 for record in records for column in ("score", "worth"))
    lines = show(records).splitlines()
    assert len(lines) == 4 and lines[2].split()[1] == "all"
