"""Solvers with implementations in NumPy, for the CPU, and in torch: both return the same points, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from setgrad._status import Status
from setgrad.discrete import Blackbox, CombinatorialSolver
from setgrad.discrete._solver import SolverResult
from setgrad.discrete.solvers import (
    TSP,
    GraphPath,
    GridPath,
    Knapsack,
    _dag_path,
    _held_karp,
    _knapsack_table,
    grid_path,
)
from setgrad.discrete.solvers._numpy import numpy_views
from tests.discrete.oracles import draws
from tests.discrete.problems import PROBLEMS, Problem

MODULES = (_dag_path, _held_karp, _knapsack_table, grid_path)


@dataclass(frozen=True, eq=False)
class Case:
    """A solver and the shape of an instance; `apart`: each of 12 instances has its own parameters."""

    name: str
    solver: CombinatorialSolver
    shape: tuple[int, ...]
    apart: bool = False

    def __str__(self) -> str:
        return self.name


def _graph() -> Case:
    """Nodes with few and many edges, also duplicates; starts on all levels, and unreachable goals."""
    pairs = torch.randint(0, 17, (60, 2), generator=torch.Generator().manual_seed(0)).sort(1).values.tolist()
    edges = [(i, j) for i, j in pairs if i != j]
    starts, goals = torch.arange(12).roll(5), torch.tensor([16, 3, 16, 8, 16, 11, 14, 16, 2, 16, 0, 16])
    return Case("graph", GraphPath(edges, starts, goals, on_failure="mask"), (len(edges),), apart=True)


def _knapsacks() -> Case:
    """Weights of zero, equal weights, and weights above the budget; budgets from 0 to the total weight."""
    weights = [1, 5, 3, 0, 4, 4, 20, 2, 3]
    return Case("knapsacks", Knapsack(weights, torch.arange(12) * 2), (len(weights),), apart=True)


def _arcs(side: int) -> Case:
    right = [(cell, cell + 1) for cell in range(side**2) if (cell + 1) % side]
    edges = sorted(right + [(cell, cell + side) for cell in range(side**2 - side)])
    return Case(f"arcs {side}", GraphPath(edges, 0, side**2 - 1), (len(edges),))


CASES = [
    _graph(),
    _arcs(6),
    Case("8-grid", GridPath(), (9, 7)),
    Case("4-grid", GridPath(4), (7, 9)),
    Case("8-grid within", GridPath(start=(2, -2), goal=(0, 1)), (5, 8)),
    Case("4-grid within", GridPath(4, start=(4, 3), goal=(1, 0)), (6, 5)),
    Case("row", GridPath(goal=(0, 0), start=(0, 3)), (1, 6)),
    Case("column", GridPath(4), (6, 1)),
    Case("cell", GridPath(), (1, 1)),
    *(Case(f"tour {n}", TSP(), (n, n)) for n in (3, 4, 7, 9)),
    _knapsacks(),
    Case("knapsack", Knapsack([3, 1, 4, 1, 5, 9, 2, 6], 11), (8,)),
]
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "positive": lambda normal: normal.abs(),
    "steep": lambda normal: normal.abs() ** 6,
    "any sign": lambda normal: normal,
    "ties": lambda normal: normal.round(),
    "ties of costs": lambda normal: normal.abs().round(),
    "many zeros": lambda normal: normal.clamp(min=0),
    "zeros": torch.zeros_like,
    # Lost in a sum with 1: distances do not change along cells with a positive cost.
    "lost": lambda normal: 1e-30 * normal.abs() + (normal > 1),
    "huge": lambda normal: 1e38 * normal.tanh(),
}
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def solve_in_torch(solver: CombinatorialSolver, theta: Tensor) -> SolverResult:
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "numpy_views", lambda *_: None)
        return solver.run(theta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("draw", DRAWS)
@every_case
def test_numpy_and_torch_agree(case: Case, draw: str, dtype: torch.dtype) -> None:
    theta = DRAWS[draw](draws(12, *case.shape, dtype=dtype))
    before = theta.clone()
    result, other = case.solver.run(theta), solve_in_torch(case.solver, theta)
    assert result.value.dtype == dtype
    assert torch.equal(result.value, other.value)
    assert torch.equal(result.status, other.status)
    assert torch.equal(theta, before)
    if case.name == "graph":
        assert 0 < (result.status == Status.INFEASIBLE).sum() < 12
    # Memory in another order, and more batch axes.
    turned = theta.movedim(0, -1).contiguous().movedim(-1, 0).expand(2, *theta.shape)
    assert torch.equal(case.solver(turned), other.value.expand(2, *theta.shape))


@pytest.mark.parametrize("limit", [1, 64, 200])
@every_case
def test_parts_of_a_batch_agree_with_the_whole(case: Case, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    theta = draws(8, 12, *case.shape).round()
    whole = case.solver(theta)
    limits = [(module, "_MEMORY_LIMIT") for module in (_dag_path, grid_path, _knapsack_table)]
    for module, name in (*limits, (_held_karp, "_NUMPY_MEMORY_LIMIT")):
        monkeypatch.setattr(module, name, 32 * limit if name == "_MEMORY_LIMIT" else limit)
    assert torch.equal(whole, case.solver(theta))
    if not case.apart:
        assert torch.equal(whole[0, :3], torch.stack([case.solver(each) for each in theta[0, :3]]))


@pytest.mark.parametrize(
    "problem",
    [problem for problem in PROBLEMS if isinstance(problem.solver, GraphPath | GridPath | TSP | Knapsack)],
    ids=str,
)
def test_torch_implementation_is_optimal(problem: Problem) -> None:
    for theta in (problem.draw(40, seed=1), problem.draw_ties(30, seed=2)):
        z = solve_in_torch(problem.solver, theta).value
        assert problem.allowed(z).all()
        products = (theta * z).flatten(-len(problem.shape)).sum(-1)
        torch.testing.assert_close(products, problem.best(theta), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "module", "name"),
    [
        (_arcs(3), _dag_path._dag_path_numpy, "cheapest"),
        (Case("grid", GridPath(), (3, 3)), grid_path._grid_path_numpy, "paths"),
        (Case("tour", TSP(), (5, 5)), _held_karp._held_karp_numpy, "tours"),
        (Case("knapsack", Knapsack([2, 2, 1, 3], 5), (4,)), _knapsack_table._knapsack_numpy, "fill"),
    ],
    ids=str,
)
def test_cpu_uses_numpy(case: Case, module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = Mock(side_effect=getattr(module, name))
    monkeypatch.setattr(module, name, function)
    theta = draws(4, *case.shape).abs().requires_grad_()
    z = case.solver(theta)
    assert function.call_count == 1
    # An estimator solves twice; under torch.func tensors share no memory, so torch is used.
    (Blackbox(case.solver, lam=1.0)(theta) * theta).sum().backward()
    assert function.call_count == 3
    gradient = torch.func.grad(lambda costs: (case.solver(costs) * costs).sum())(theta.detach())
    assert torch.equal(gradient, z)
    assert function.call_count == 3


def test_large_steps_use_torch_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = draws(3)
    for threads, size, shared in ((1, 9, False), (2, 8, False), (2, 9, True)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert (numpy_views(size, 8, theta) is None) == shared
    assert numpy_views(1, 8, torch.zeros(3, device="meta")) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", [_arcs(3), Case("grid", GridPath(), (3, 3)), Case("tour", TSP(), (4, 4))], ids=str)
def test_compiled_solvers_use_torch_and_agree(case: Case) -> None:
    def answer(theta: Tensor) -> tuple[Tensor, bool]:
        return case.solver(theta), numpy_views(1, 8, theta) is None

    theta = draws(4, *case.shape).abs()
    z, stays = torch.compile(answer, backend="eager")(theta)
    assert stays
    assert torch.equal(z, case.solver(theta))
