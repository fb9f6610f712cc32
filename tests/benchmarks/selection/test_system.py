"""The benchmark of the whole system: its task, and one small fit of it."""

import itertools

import pytest
import torch

from benchmarks.lib.records import RunContext
from benchmarks.selection import system_task
from benchmarks.selection.system import Trial, fit, show
from benchmarks.selection.system_task import draw


def test_the_best_baskets_are_those_of_all_baskets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_task, "ITEMS", 7)
    customers = draw(4, 0)
    baskets = torch.tensor(list(itertools.product((0.0, 1.0), repeat=7)), dtype=torch.float64)
    prices = customers.choices.sets.values[:, 1].view(4, 7).double()
    allowed = baskets @ prices.T <= torch.tensor(customers.budget.budget.tolist())
    most = (baskets @ customers.worth.T).masked_fill(~allowed, 0).amax(0)
    found = (customers.worth * customers.choices.subsets.values.view(4, 7)).sum(1)
    torch.testing.assert_close(found, most)


def test_the_worth_of_the_best_baskets_is_one_and_of_none_is_zero() -> None:
    customers = draw(5, 0)
    best = customers.choices.subsets
    assert customers.worth_of(best) == pytest.approx(1)
    assert customers.worth_of(best.with_values(best.values & False)) == 0


def test_a_small_fit_is_shown_beside_the_whole() -> None:
    trials = [Trial(name, 0, "", quick=True) for name in ("all", "no budget in training")]
    records = [{"variant": t.variant, "seed": t.seed, **fit(t, RunContext(device="cpu"))} for t in trials]
    assert all(-100 <= record[column] <= 100 for record in records for column in ("score", "worth"))
    lines = show(records).splitlines()
    assert len(lines) == 4 and lines[2].split()[1] == "all"
