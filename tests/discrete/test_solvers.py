"""The contract that every solver must keep, checked against all feasible points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete import CombinatorialSolver
from setgrad.discrete.solvers import (
    GraphPath,
    IntegerProgram,
    Knapsack,
    PartitionMatroid,
    SpanningTree,
    Threshold,
    TopK,
)
from setgrad.errors import OptionError, ShapeError, SolverError
from tests.discrete.problems import ACYCLIC, PROBLEMS, Problem

every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=str)
every_sense = pytest.mark.parametrize("sense", ["max", "min"])


def _products(theta: Tensor, z: Tensor, problem: Problem) -> Tensor:
    return (theta.double() * z.double()).flatten(-len(problem.shape)).sum(-1)


@every_sense
@every_problem
def test_points_are_feasible_and_optimal(problem: Problem, sense: str) -> None:
    solver = problem.build(sense=sense)
    theta = problem.draw(40, seed=1, sense=sense)
    z = solver(theta)
    assert problem.allowed(z).all()
    torch.testing.assert_close(_products(theta, z, problem), problem.best(theta, sense), rtol=0, atol=1e-12)


@every_problem
def test_maximise_ignores_the_sense(problem: Problem) -> None:
    costs = problem.draw(20, seed=1, sense="min")
    expected, result = problem.build(sense="min").run(costs), problem.build(sense="min").maximise(-costs)
    assert torch.equal(result.value, expected.value)
    assert torch.equal(result.status, expected.status)


@every_sense
@every_problem
def test_ties_are_broken_consistently(problem: Problem, sense: str) -> None:
    solver = problem.build(sense=sense)
    theta = torch.cat([problem.draw_ties(30, seed=2, sense=sense), torch.zeros(1, *problem.shape)])
    z = solver(theta)
    assert problem.allowed(z).all()
    assert torch.equal(_products(theta, z, problem), problem.best(theta, sense))
    assert torch.equal(z, solver(theta))
    # In another batch, at another position, in other memory.
    assert torch.equal(z, solver(theta.flip(0)).flip(0))


@every_sense
@pytest.mark.parametrize("problem", [problem for problem in PROBLEMS if problem.lowest_index_first], ids=str)
def test_ties_go_to_the_lower_index(problem: Problem, sense: str) -> None:
    theta = problem.draw_ties(30, seed=3, sense=sense)
    equal = problem.products(theta) == problem.best(theta, sense)[:, None]
    assert (equal.sum(1) > 1).any()
    # Read as a binary number with the first entry in front, the chosen point is the largest of the equal ones.
    digits = 2.0 ** torch.arange(problem.shape[0], 0, -1).double()
    numbers = torch.where(equal, problem.points @ digits, -1)
    assert torch.equal(problem.build(sense=sense)(theta), problem.points[numbers.argmax(1)])


@every_problem
def test_any_batch_axes_and_independent_instances(problem: Problem) -> None:
    solver = problem.solver
    theta = problem.draw(2, 3, seed=4)
    z = solver(theta)
    assert z.shape == theta.shape
    alone = torch.stack([torch.stack([solver(instance) for instance in row]) for row in theta])
    assert torch.equal(z, alone)
    strided = theta.movedim(0, -1).contiguous().movedim(-1, 0)
    assert not strided.is_contiguous()
    assert torch.equal(z, solver(strided))
    assert torch.equal(z.expand(4, *z.shape), solver(theta.expand(4, *theta.shape)))


@every_problem
def test_an_empty_batch(problem: Problem) -> None:
    result = problem.solver.run(torch.zeros(2, 0, *problem.shape))
    assert result.value.shape == (2, 0, *problem.shape)
    assert result.status.shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_problem
def test_dtype_is_kept(problem: Problem, dtype: torch.dtype) -> None:
    theta = problem.draw(10, seed=5, dtype=dtype)
    z = problem.solver(theta)
    assert z.dtype == dtype
    assert problem.allowed(z).all()
    # Sums are computed in float32 or float64, whatever the dtype of theta.
    torch.testing.assert_close(_products(theta, z, problem), problem.best(theta), rtol=0, atol=1e-5)


@every_problem
def test_solvers_have_no_gradient(problem: Problem) -> None:
    theta = problem.draw(2).requires_grad_()
    assert not problem.solver(theta).requires_grad


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@every_problem
def test_nonfinite_instance_does_not_affect_others(problem: Problem, bad: float) -> None:
    theta = problem.draw(3, seed=6)
    nonfinite = theta.clone()
    nonfinite[1].view(-1)[0] = bad
    result = problem.build(on_failure="mask").run(nonfinite)
    assert result.status.tolist() == [Status.SOLVED, Status.NONFINITE, Status.SOLVED]
    expected = problem.solver(theta)
    expected[1] = 0
    assert torch.equal(result.value, expected)
    with pytest.raises(SolverError, match=r"1 of 3 instances .* NONFINITE.*number 1.*tanh"):
        problem.solver(nonfinite)
    with pytest.warns(RuntimeWarning, match="NONFINITE"):
        warned = problem.build(on_failure="warn")(nonfinite)
    assert torch.equal(warned, expected)


@every_problem
def test_calls_and_instances_are_counted(problem: Problem) -> None:
    solver = problem.solver
    solver(problem.draw(2, 3))
    solver(problem.draw())
    assert (solver.counter.calls, solver.counter.instances) == (2, 7)
    solver.counter.reset()
    assert (solver.counter.calls, solver.counter.instances) == (0, 0)
    assert problem.solver.counter.calls == 0


@every_problem
def test_theta_is_not_modified(problem: Problem) -> None:
    theta = problem.draw(3, seed=7)
    before = theta.clone()
    problem.solver(theta)
    assert torch.equal(theta, before)


@every_problem
def test_invalid_theta_raises(problem: Problem) -> None:
    with pytest.raises(ShapeError, match="floats"):
        problem.solver(problem.draw().long())
    with pytest.raises(ShapeError, match="not empty"):
        problem.solver(torch.zeros(2, *problem.shape[:-1], 0))
    with pytest.raises(ShapeError, match="axes form one instance"):
        problem.solver(torch.tensor(1.0))


@pytest.mark.parametrize("make", [partial(TopK, 2), Threshold, SpanningTree], ids=str)
def test_unknown_names_raise(make: Callable[..., CombinatorialSolver]) -> None:
    with pytest.raises(OptionError, match="choose one of: max, min"):
        make(sense="most")
    with pytest.raises(OptionError, match="choose one of: raise, warn, mask"):
        make(on_failure="ignore")


def test_wrong_shape_of_points_raises() -> None:
    @dataclass(frozen=True, eq=False)
    class Short(CombinatorialSolver):
        def solve(self, theta: Tensor) -> Tensor:
            return theta[..., :1]

    with pytest.raises(SolverError, match=r"Short returned points of shape \(2, 1\) for theta of shape \(2, 3\)"):
        Short()(torch.ones(2, 3))


# Solvers whose parameters have a batch axis, as functions of that axis's slice.
PARAMETERS: dict[str, tuple[Callable[[slice | int], CombinatorialSolver], int | tuple[int, ...]]] = {}


def _tensor(rows: list[object]) -> Tensor:
    return torch.tensor(rows)


_weights, _budgets = _tensor([[3, 1, 4, 2], [1, 1, 2, 9], [5, 5, 1, 2]]), _tensor([5, 3, 6])
_groups, _capacity = _tensor([[0, 0, 1, 1], [0, 1, 2, 2], [0, 0, 0, 0]]), _tensor([[1, 2, 1], [1, 1, 2], [2, 1, 1]])
_allowed = torch.stack([torch.tensor(rows, dtype=torch.bool) for rows in (
    [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]],
    [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]],
    [[0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
)])  # fmt: skip
_rows = _tensor([[[1.0, 1.0, 1.0, 1.0]], [[2.0, 1.0, 1.0, 0.0]], [[1.0, 0.0, 3.0, 1.0]]])
PARAMETERS["knapsack"] = lambda i: Knapsack(_weights[i], _budgets[i]), 4
PARAMETERS["real knapsack"] = lambda i: Knapsack(_weights[i] * 0.1, _budgets[i] * 0.1), 4
PARAMETERS["knapsack, one list"] = lambda i: Knapsack(_weights[0], _budgets[i]), 4
PARAMETERS["partition"] = lambda i: PartitionMatroid(_groups[i], _capacity[i]), 4
PARAMETERS["spanning tree"] = lambda i: SpanningTree(_allowed[i]), (4, 4)
PARAMETERS["threshold"] = lambda i: Threshold(_weights[i] * 0.1), 4
PARAMETERS["integer program"] = lambda i: IntegerProgram(_rows[i], _budgets[i, None] - 3.0), 4
PARAMETERS["path"] = lambda i: GraphPath(ACYCLIC, _tensor([0, 1, 0])[i], _tensor([4, 3, 2])[i]), len(ACYCLIC)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_broadcast_from_the_right(name: str) -> None:
    build, shape = PARAMETERS[name]
    instance = (shape,) if isinstance(shape, int) else shape
    theta = torch.randn(5, 3, *instance, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    together = build(slice(None))(theta)
    for i in range(3):
        assert torch.equal(together[:, i], build(i)(theta[:, i]))
    # With one theta for all instances of a parameter, z would have another shape than theta.
    with pytest.raises(ShapeError, match="does not broadcast"):
        build(slice(None))(theta[0, 0])


def test_finite_numbers_with_an_infinite_sum_are_solved():
    theta = torch.tensor([[3e38, 3e38, 1.0], [1.0, -3e38, 2.0]])
    assert TopK(1)(theta).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
