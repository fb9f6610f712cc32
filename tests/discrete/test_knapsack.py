"""Knapsacks against other solvers and enumeration: by the table, and by integer programs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, milp

from setgrad._status import Status
from setgrad.discrete.solvers import Backend, HiGHS, IntegerProgram, Knapsack, ORTools, Program, WorkerPool, _cuts
from setgrad.errors import OptionError, ShapeError, SolverError
from tests.discrete.oracles import draws, product
from tests.discrete.problems import binary


@pytest.mark.parametrize("scale", [1, 0.37])
def test_knapsack_against_an_integer_program(scale: float) -> None:
    rng = np.random.default_rng(1)
    weights, budget = rng.integers(1, 30, 25) * scale, 90 * scale
    theta = draws(5, 25)
    z = Knapsack(weights, budget)(theta)
    assert ((z.numpy() @ weights) <= budget * (1 + 1e-12)).all()
    for values, items in zip(theta, z, strict=True):
        truth = milp(
            -values.numpy(), integrality=np.ones(25), bounds=(0, 1), constraints=LinearConstraint(weights, ub=budget)
        )
        assert product(values, items) == pytest.approx(-truth.fun)


def test_knapsack_ties_limits_and_invalid_input() -> None:
    ones = torch.ones(4)
    assert Knapsack([2, 2, 2, 2], 5)(ones).tolist() == [1, 1, 0, 0]
    assert Knapsack([[2, 2, 2, 2], [3, 1, 1, 3]], 5)(ones.expand(2, 4)).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert Knapsack([[2, 2, 2, 2]], [4])(ones[None]).tolist() == [[1, 1, 0, 0]]
    assert Knapsack([0, 9, 9, 9], 8)(ones).tolist() == [1, 0, 0, 0]
    assert Knapsack([1, 1, 1, 1], torch.inf)(torch.tensor([1.0, 0.0, -1.0, 1.0])).tolist() == [1, 0, 0, 1]
    assert Knapsack([1, 1, 1, 1], -torch.inf, on_failure="mask").run(ones).status == Status.INFEASIBLE
    assert Knapsack([6, 4, 2, 10], 7.9)(ones).tolist() == [0, 1, 1, 0]
    for weights in ([1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]):
        result = Knapsack(weights, torch.tensor([-1.0, 1.0]), on_failure="mask").run(ones.expand(2, 4))
        assert result.status.tolist() == [Status.INFEASIBLE, Status.SOLVED]
        assert result.value.sum(1).tolist() == [0, 1 / weights[0]]
    with pytest.raises(SolverError, match=r"1 of 2 .*INFEASIBLE.*relax"):
        Knapsack([1, 1, 1, 1], torch.tensor([-1, 1]))(ones.expand(2, 4))
    with pytest.raises(OptionError, match="finite and 0 or more"):
        Knapsack([1, -1], 3)
    with pytest.raises(ShapeError, match="4 weights, but 3 entries"):
        Knapsack([1, 1, 1, 1], 3)(torch.ones(3))
    with pytest.raises(OptionError, match="NaN"):
        Knapsack([1, 1], torch.nan)


def test_real_weights_never_exceed_the_budget() -> None:
    # Together they exceed the budget by less than a solver's tolerance.
    weights = torch.tensor([0.5, 0.5 + 1e-9, 0.3], dtype=torch.float64)
    assert Knapsack(weights, 1.0)(torch.tensor([2.0, 2.0, 1.0])).tolist() == [1, 0, 1]
    # A difference by rounding alone excludes nothing.
    assert Knapsack([0.1, 0.1, 0.1], 0.3)(torch.ones(3)).tolist() == [1, 1, 1]


def test_large_budget_uses_integer_programs() -> None:
    rng = np.random.default_rng(2)
    weights = rng.integers(1, 10**6, 12)
    budget = int(weights.sum() // 3)
    theta = draws(12).abs()
    points = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 12)
    allowed = points[points @ torch.from_numpy(weights).double() <= budget]
    assert product(theta, Knapsack(weights, budget)(theta)) == pytest.approx(float((allowed @ theta).max()))


BACKENDS = [HiGHS(), ORTools(), ORTools(engine="SAT")]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_small_differences_in_value_decide(backend: Backend) -> None:
    lot = np.random.default_rng(3)
    points = binary(10)
    for noise in (1e-4, 1e-7):
        weights = torch.from_numpy(lot.uniform(0.75, 1.25, (4, 10)))
        # Values proportional to the weights, or all equal: tiny differences decide.
        theta = torch.cat([weights[:2], torch.ones(2, 10)]) + noise * torch.from_numpy(lot.standard_normal((4, 10)))
        result = Knapsack(weights, 4.0, backend=backend)(theta)
        again = IntegerProgram(weights[:, None], [4.0], backend=backend)(theta)
        for w, values, z, other in zip(weights, theta, result, again, strict=True):
            best = float((points[points @ w <= 4.0] @ values).max())
            assert product(values, z) == pytest.approx(best, rel=0, abs=1e-14)
            assert product(values, other) == pytest.approx(best, rel=0, abs=1e-14)


@pytest.mark.parametrize("ratio", [1e4, 1e7, 1e9])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_large_value_does_not_hide_small_ones(backend: Backend, ratio: float) -> None:
    for unit in (1e-290, 1e-20, 1.0, 1e20, 1.7e308 / ratio):
        theta = unit * torch.tensor([ratio, 1.0, 0.5], dtype=torch.float64)
        assert Knapsack([1.5, 1.5, 1.2], 3.0, backend=backend)(theta).tolist() == [1, 1, 0]
        assert IntegerProgram([[1.5, 1.5, 1.2]], [3.0], backend=backend)(theta).tolist() == [1, 1, 0]


def test_single_precision_does_not_raise_the_budget_of_long_lists() -> None:
    weights = torch.full((1000,), 2.0)
    weights[0], weights[1] = 0.5, 0.5001
    assert Knapsack(weights, 1.0)(torch.ones(1000)).sum() == 1
    for kind in (torch.float16, torch.float32, torch.float64):
        assert Knapsack(torch.full((3,), 0.1, dtype=kind), 0.3)(torch.ones(3)).tolist() == [1, 1, 1]
    # Whole numbers are exact: an excess of 1 does not fit.
    assert Knapsack([10**14, 10**14 + 1], 2 * 10**14)(torch.ones(2)).tolist() == [1, 0]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that HiGHS solves."""
    solved: list[Program] = []
    find = HiGHS.find

    def record(self: HiGHS, program: Program) -> tuple[np.ndarray | None, Status]:
        solved.append(program)
        return find(self, program)

    monkeypatch.setattr(HiGHS, "find", record)
    return solved


def test_one_cut_excludes_many_infeasible_sets(programs: list[Program]) -> None:
    # Any three weigh more than 0.3, by less than the tolerance of a solver; there are 220 such sets.
    weights = torch.full((12,), 0.1).double()
    assert Knapsack(weights, 0.3, pool=WorkerPool(1))(draws(12).abs() + 0.1).sum() == 2
    assert len(programs) <= 3


def test_cuts_never_exclude_the_solution() -> None:
    points = binary(10)
    for seed in range(12):
        lot = np.random.default_rng(seed)
        weights = torch.from_numpy(lot.integers(1, 5, 10) + 1e-8 * lot.standard_normal(10))
        theta = torch.from_numpy(lot.random(10) + 0.1)
        z = Knapsack(weights, 10.0, pool=WorkerPool(1))(theta)
        assert z @ weights <= 10.0
        best = (points[points @ weights <= 10.0] @ theta).max()
        assert product(theta, z) == pytest.approx(float(best), rel=1e-12)


def test_time_limit_applies_to_all_programs_of_an_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limits = itertools.count(), []

    class Greedy(Backend):
        """Chooses everything, and takes a second."""

        def find(self, program: Program) -> tuple[np.ndarray, Status]:
            limits.append(self.time_limit)
            assert len(limits) < 9
            return np.ones(len(program.value)), Status.SOLVED

    monkeypatch.setattr(_cuts.time, "monotonic", lambda: float(next(clock)))
    result = Knapsack([1.5, 1.5], 2.0, backend=Greedy(time_limit=2.5), on_failure="mask").run(torch.ones(2))
    assert limits == [2.5, 1.5, 0.5]
    assert result.status == Status.NOT_FOUND


def test_equal_items_go_to_the_lower_index_in_programs() -> None:
    assert Knapsack([1.5] * 5, 3.0)(torch.ones(5)).tolist() == [1, 1, 0, 0, 0]
    # Items of another weight or value do not change.
    weights, theta = [1.5, 0.9, 1.5, 0.9, 1.5, 0.7], torch.tensor([1.0, 0.9, 1.0, 0.9, 2.0, -1.0])
    assert Knapsack(weights, 3.9)(theta).tolist() == [1, 1, 0, 0, 1, 0]


def test_rounding_does_not_change_ties() -> None:
    lot = torch.Generator().manual_seed(0)
    # Sums in another order differ in the last digit.
    twins = torch.randint(0, 5, (14,), generator=lot)
    weights = torch.tensor([1, 2, 3, 5, 7])[twins]
    theta = torch.rand(64, 5, generator=lot)[:, twins]
    for each in (weights, weights.expand(64, 14)):
        z = Knapsack(each, int(weights.sum() * 0.4))(theta)
        assert all((z[:, twins == kind].diff(dim=1) <= 0).all() for kind in range(5))


def test_boolean_weights() -> None:
    assert Knapsack([True, True, False], 1)(torch.ones(3)).tolist() == [1, 0, 1]


def test_budget_just_below_a_whole_number_by_rounding() -> None:
    ones = torch.ones(2)
    assert 0.29 * 100 < 29
    for weights in ([29, 2], [29, 2.5], [29.0, 2.0], [290, 20]):
        budget = 0.29 * 100 * (weights[0] // 29)
        assert Knapsack(weights, budget)(torch.tensor([3.0, 1.0])).tolist() == [1, 0]
    single = torch.tensor(29.0).nextafter(torch.tensor(0.0))
    assert Knapsack([29, 2], torch.stack([single, single - 1e-3]))(torch.tensor([[3.0, 1.0]] * 2)).tolist() == [
        [1, 0],
        [0, 1],
    ]
    # Larger differences than rounding count, and whole budgets are exact in every dtype.
    assert Knapsack([29, 2], 29 - 1e-9)(ones).tolist() == [0, 1]
    assert Knapsack([29, 2], -1e-300, on_failure="mask").run(ones).status == Status.INFEASIBLE
    assert Knapsack(torch.tensor([2000, 2], dtype=torch.float16), 1999)(ones).tolist() == [0, 1]
