"""Budgets of fractional costs: respected to the last digit, with the best subset."""

import numpy as np
import pytest
import torch

from setgrad.discrete import HiGHS, Program, Status
from setgrad.discrete.solvers import _cuts
from setgrad.selector import AllOf, Budget, SizeRange
from setgrad.selector._batch_constraint import BatchConstraint
from setgrad.selector.constraints._exact import ExactBackend
from setgrad.sets import Sets


def single(costs, budget):
    return Budget(costs, budget=budget)


def combined(costs, budget):
    return AllOf([Budget(costs, budget=budget), SizeRange(0, 1000)])


def choose(constraint, scores):
    sets = Sets.from_list([torch.as_tensor(scores, dtype=torch.float64)])
    return BatchConstraint.of(constraint, sets).choose(sets.values, sets).values


@pytest.fixture
def programs(monkeypatch):
    """Record the programs that HiGHS solves."""
    calls, find = [], HiGHS.find

    def record(self, program):
        calls.append(program)
        return find(self, program)

    monkeypatch.setattr(HiGHS, "find", record)
    return calls


@pytest.mark.parametrize("make", [single, combined])
def test_single_precision_does_not_enlarge_a_budget(make):
    costs = torch.full((1000,), 2.0)
    costs[0], costs[1] = 0.5, 0.5001
    assert choose(make([costs], 1.0), np.ones(1000)).sum() == 1
    for kind in (torch.float32, torch.float64):
        assert choose(make([torch.full((3,), 0.1, dtype=kind)], 0.3), np.ones(3)).all()
    # An excess of 1e-8 is infeasible, though the tolerance of the solver is 1e-6.
    assert choose(make([[1.0 + 1e-8, 1.0, 1.0]], 3.0), np.ones(3)).sum() == 2


@pytest.mark.parametrize("make", [single, combined])
def test_a_large_score_does_not_hide_a_small_one(make):
    assert choose(make([[1.5, 1.5, 1.2]], 3.0), [1e7, 1.0, 0.5]).tolist() == [True, True, False]


@pytest.mark.parametrize("make", [single, combined])
def test_one_cut_removes_many_slightly_infeasible_subsets(make, programs):
    # Any three cost more than 0.3, by less than the tolerance of a solver; there are 220 such subsets.
    prices = torch.full((12,), 0.1).double()
    scores = np.random.default_rng(0).random(12) + 0.1
    assert choose(make([prices], 0.3), scores).nonzero().flatten().tolist() == sorted(np.argsort(scores)[-2:])
    assert len(programs) <= 3


def test_lower_bounds_and_mixed_signs_hold_exactly():
    """A lower bound, and a row with both signs: broken by less than the tolerance of a solver."""
    for row, lower, upper, best in (
        ([1.0, 1.0 - 1e-9, 1.0 - 2e-9], 2.0 - 1.5e-9, np.inf, [1, 1, 0]),
        ([1.0, 1.0, -1.0 + 1e-9], -np.inf, 1.0, [1, 0, 0]),
    ):
        value = np.array([-1.0, -0.9, -0.8]) if upper == np.inf else np.array([1.0, 0.9, -0.5])
        ends = {"min_value": np.zeros(3), "max_value": np.ones(3), "integer": np.ones(3, dtype=bool)}
        program = Program(value, np.array([row]), np.array([lower]), np.array([upper]), **ends)
        point, status = ExactBackend().solve(program)
        assert (point.tolist(), status) == (best, Status.SOLVED)


def test_all_programs_of_a_set_share_one_time_limit(monkeypatch):
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
    assert ExactBackend(time_limit=2.5).solve(program) == (None, Status.NOT_FOUND)
    assert limits == [2.5, 1.5, 0.5]


@pytest.mark.parametrize("make", [single, combined])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_allowed_subsets_are_those_that_a_solver_may_return(make, kind):
    """Sums of tenths at the budget, where only rounding decides."""
    rng = np.random.default_rng(3)
    for budget in (0.3, 0.7, 1.2, 2.0, 0.1 * 3):
        costs = torch.tensor(rng.integers(1, 5, 7) / 10).to(kind)
        sets = Sets.from_list([costs])
        constraint = BatchConstraint.of(make([costs], budget), sets)
        masks = torch.tensor([[bits >> k & 1 for k in range(7)] for bits in range(0, 128, 3)], dtype=torch.bool)
        nearest = constraint.solve(2.0 * masks.double() - 1.0, sets)
        assert torch.equal(constraint.allows(masks, sets)[:, 0], (nearest == masks).all(1))
