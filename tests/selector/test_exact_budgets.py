"""Budgets of prices that are no whole numbers: kept to the last digit, and the best subset all the same."""

import numpy as np
import pytest
import torch

from setgrad.discrete import HiGHS, Program, Status
from setgrad.discrete.solvers import _cuts
from setgrad.selector import AllOf, Budget, SizeRange
from setgrad.selector._allowed import Allowed
from setgrad.selector._exact_program import Exact
from setgrad.sets import Sets


def alone(weights, budget):
    return Budget(weights, budget=budget)


def among_others(weights, budget):
    return AllOf([Budget(weights, budget=budget), SizeRange(0, 1000)])


def choose(constraint, worth):
    sets = Sets.from_list([torch.as_tensor(worth, dtype=torch.float64)])
    return Allowed.of(constraint, sets).choose(sets.values, sets).values


@pytest.fixture
def programs(monkeypatch):
    """The programs that HiGHS is given."""
    given, find = [], HiGHS.find
    monkeypatch.setattr(HiGHS, "find", lambda self, program: given.append(program) or find(self, program))
    return given


@pytest.mark.parametrize("make", [alone, among_others])
def test_single_precision_makes_a_budget_no_larger_in_long_lists(make):
    weights = torch.full((1000,), 2.0)
    weights[0], weights[1] = 0.5, 0.5001
    assert choose(make([weights], 1.0), np.ones(1000)).sum() == 1
    for kind in (torch.float32, torch.float64):
        assert choose(make([torch.full((3,), 0.1, dtype=kind)], 0.3), np.ones(3)).all()


@pytest.mark.parametrize("make", [alone, among_others])
def test_one_large_worth_hides_no_small_one(make):
    assert choose(make([[1.5, 1.5, 1.2]], 3.0), [1e7, 1.0, 0.5]).tolist() == [True, True, False]


@pytest.mark.parametrize("make", [alone, among_others])
def test_sets_a_little_too_heavy_are_shut_out_many_at_a_time(make, programs):
    # Any three cost more than 0.3, by less than a solver sees; there are 220 such sets.
    prices = torch.full((12,), 0.1).double()
    worth = np.random.default_rng(0).random(12) + 0.1
    assert choose(make([prices], 0.3), worth).nonzero().flatten().tolist() == sorted(np.argsort(worth)[-2:])
    assert len(programs) <= 3


def test_rows_that_are_no_weights_hold_too():
    """A lower end, and a row of both signs: broken by less than a solver sees."""
    for row, lower, upper, best in (
        ([1.0, 1.0 - 1e-9, 1.0 - 2e-9], 2.0 - 1.5e-9, np.inf, [1, 1, 0]),
        ([1.0, 1.0, -1.0 + 1e-9], -np.inf, 1.0, [1, 0, 0]),
    ):
        value = np.array([-1.0, -0.9, -0.8]) if upper == np.inf else np.array([1.0, 0.9, -0.5])
        ends = {"min_value": np.zeros(3), "max_value": np.ones(3), "integer": np.ones(3, dtype=bool)}
        program = Program(value, np.array([row]), np.array([lower]), np.array([upper]), **ends)
        point, status = Exact().solve(program)
        assert (point.tolist(), status) == (best, Status.SOLVED)


def test_one_time_limit_for_all_programs_of_a_set(monkeypatch):
    limits = []

    def take_everything(self, program):
        limits.append(self.time_limit)
        assert len(limits) < 9
        return np.ones(len(program.value)), Status.SOLVED

    clock = iter(range(9))
    monkeypatch.setattr(HiGHS, "find", take_everything)
    monkeypatch.setattr(_cuts.time, "monotonic", lambda: float(next(clock)))
    ends = {"min_value": np.zeros(2), "max_value": np.ones(2), "integer": np.ones(2, dtype=bool)}
    program = Program(np.ones(2), np.array([[1.5, 1.5]]), np.array([-np.inf]), np.array([2.0]), **ends)
    assert Exact(time_limit=2.5).solve(program) == (None, Status.NOT_FOUND)
    assert limits == [2.5, 1.5, 0.5]
