"""Solvers on the CPU: pools, backends, time limits, callables, and PyEPO in both directions."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import math
import pickle
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.estimators import Identity
from setgrad.discrete.solvers import (
    Assignment,
    Backend,
    CallableSolver,
    GridPath,
    HiGHS,
    IntegerProgram,
    Knapsack,
    ORTools,
    Program,
    PyEPOSolver,
    TopK,
    WorkerPool,
    to_pyepo,
)
from setgrad.discrete.solvers import pyepo as adapters
from setgrad.errors import MissingDependencyError, OptionError, ShapeError, SolverError
from tests.discrete.problems import FakeModel


@pytest.mark.parametrize("pool", [WorkerPool(1), WorkerPool(3), WorkerPool(), WorkerPool(2, processes=True)], ids=str)
def test_pool_keeps_the_order_of_items(pool: WorkerPool) -> None:
    assert pool.map(abs, range(-25, 0)) == list(range(25, 0, -1))
    assert pool.map(abs, []) == []


def test_threads_run_in_parallel() -> None:
    # Each of two jobs waits until the other has started; a loop would wait for ever.
    meet = threading.Barrier(2, timeout=30)
    assert WorkerPool(2).map(lambda item: meet.wait() * 0 + item, [1, 2]) == [1, 2]


def _runs_in_own_thread(item: int) -> bool:
    """Whether a pool within a worker runs everything in that worker."""
    return set(WorkerPool(3).map(lambda _: threading.get_ident(), range(4))) == {threading.get_ident()}


@pytest.mark.parametrize("pool", [WorkerPool(2), WorkerPool(2, processes=True)], ids=str)
def test_nested_pools_do_not_deadlock(pool: WorkerPool) -> None:
    assert pool.map(_runs_in_own_thread, range(4)) == [True] * 4


def test_function_in_a_pool_can_call_a_solver_with_the_same_pool() -> None:
    theta = torch.eye(2).flip(0).expand(6, 2, 2)
    inner = Assignment(pool=WorkerPool(2))
    solver = CallableSolver(
        lambda scores: inner(torch.from_numpy(np.stack([scores] * 3)))[0].numpy(), dims=2, pool=WorkerPool(2)
    )
    assert torch.equal(solver(theta), theta)


def test_solvers_with_pools_can_be_copied_and_pickled() -> None:
    solver = Assignment(pool=WorkerPool(2))
    theta = torch.eye(3).flip(0).expand(4, 3, 3)
    expected = solver(theta)
    assert torch.equal(copy.deepcopy(solver)(theta), expected)
    assert torch.equal(pickle.loads(pickle.dumps(solver))(theta), expected)
    assert torch.equal(Assignment(pool=WorkerPool(2, processes=True))(theta), expected)


def test_pool_needs_at_least_one_worker() -> None:
    with pytest.raises(OptionError, match="1 or more, or None"):
        WorkerPool(0)


BACKENDS = [HiGHS(), ORTools(), ORTools(engine="SAT")]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_each_instance_has_its_own_status(backend: Backend) -> None:
    # x0 + x1 + x2 = 2, 5, 1 of three variables in 0..1
    ends = torch.tensor([[2.0], [5.0], [1.0]])
    solver = IntegerProgram(torch.ones(1, 3), ends, lower=ends, backend=backend, on_failure="mask")
    result = solver.run(torch.tensor([3.0, 1.0, 2.0]).expand(3, 3))
    assert result.status.tolist() == [Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]
    assert result.value.tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_integer_variables_above_one(backend: Backend) -> None:
    solver = IntegerProgram([[2.0, 3.0]], [12.5], min_value=[0.0, 1.0], max_value=[9.0, 3.0], backend=backend)
    assert solver(torch.tensor([1.0, 1.4])).tolist() == [3, 2]
    assert solver(torch.tensor([-1.0, -1.0])).tolist() == [0, 1]


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e25])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_scale_of_theta_does_not_change_the_solution(backend: Backend, scale: float) -> None:
    theta = scale * torch.tensor([3.0, 4.0, 6.0], dtype=torch.float64)
    assert IntegerProgram([[2.0, 3.0, 4.0]], upper=[5.0], backend=backend)(theta).tolist() == [1, 1, 0]
    assert Knapsack([2.5, 3.5, 4.5], budget=6.0, backend=backend)(theta).tolist() == [1, 1, 0]
    weights = [2.5 * scale, 3.5 * scale, 4.5 * scale]
    assert Knapsack(weights, budget=6.0 * scale, backend=backend)(theta).tolist() == [1, 1, 0]


def test_programs_with_nan_raise_and_without_constraints_work() -> None:
    theta = torch.tensor([1.0, 2.0])
    for A, upper in (([[torch.nan, 1.0]], [1.0]), ([[1.0, 1.0]], [torch.nan])):
        with pytest.raises(OptionError, match="contains NaN"):
            IntegerProgram(A, upper)
    assert IntegerProgram(np.zeros((0, 2)), upper=np.zeros(0))(theta).tolist() == [1, 1]


def test_continuous_variables() -> None:
    solver = IntegerProgram([[2.0, 2.0]], [3.0], integer=[True, False])
    assert solver(torch.tensor([2.0, 1.0])).tolist() == [1, 0.5]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_unbounded_program(backend: Backend) -> None:
    solver = IntegerProgram([[1.0, -1.0]], [1.0], max_value=torch.inf, backend=backend)
    with pytest.raises(SolverError, match=r"1 UNBOUNDED.* bound every variable"):
        solver(torch.tensor([1.0, 1.0]))


@dataclass(frozen=True)
class TimeLimitedBackend(Backend):
    """Returns a suboptimal point at its time limit."""

    def find(self, program: Program) -> tuple[np.ndarray, Status]:
        return np.eye(len(program.value))[0], Status.TIME_LIMIT


def test_point_at_a_time_limit_is_used() -> None:
    solver = IntegerProgram([[1.0, 1.0]], [1.0], backend=TimeLimitedBackend(), on_failure="mask")
    theta = torch.tensor([[1.0, 2.0]], requires_grad=True)
    result = solver.run(theta)
    assert result.status.tolist() == [Status.TIME_LIMIT]
    assert result.value.tolist() == [[1, 0]]
    Identity(solver)(theta).sum().backward()
    assert theta.grad.tolist() == [[1, 1]]
    with pytest.raises(SolverError, match="raise time_limit"):
        IntegerProgram([[1.0, 1.0]], [1.0], backend=TimeLimitedBackend())(theta)


def test_negative_time_limit_raises() -> None:
    with pytest.raises(OptionError, match="0 seconds or more"):
        HiGHS(time_limit=-1.0)


def test_instance_without_a_point_at_the_time_limit_has_no_gradient() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 50, (4, 40)).astype(float)
    ends = rows[:, ::2].sum(1)
    solver = IntegerProgram(rows, ends, lower=ends, backend=HiGHS(time_limit=0.0), on_failure="mask")
    theta = torch.from_numpy(rng.random(40)).requires_grad_()
    assert solver.run(theta).status == Status.NOT_FOUND
    Identity(solver)(theta).sum().backward()
    assert not theta.grad.any()
    with pytest.raises(SolverError, match="before any point was found: raise time_limit"):
        dataclasses.replace(solver, on_failure="raise")(theta)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_time_limit_of_one_instance_does_not_affect_others(backend: Backend) -> None:
    # Five equations that halve 40 numbers between 0 and 99 take these solvers hours. The others have one
    # variable, which is determined by their bounds.
    halves = np.random.default_rng(0).integers(0, 100, (5, 40)).astype(float)
    rows = np.stack([halves, np.zeros((5, 40)), np.zeros((5, 40))])
    ends = np.stack([np.floor(halves.sum(1) / 2), np.zeros(5), np.zeros(5)])
    most = np.stack([np.ones(40), *[np.eye(40)[0]] * 2])
    limited = dataclasses.replace(backend, time_limit=1.0)
    solver = IntegerProgram(
        rows, ends, lower=ends, max_value=most, backend=limited, pool=WorkerPool(1), on_failure="mask"
    )
    result = solver.run(torch.tensor([[1.0], [1.0], [-1.0]]).expand(3, 40))
    assert result.status.tolist() == [Status.NOT_FOUND, Status.SOLVED, Status.SOLVED]
    assert result.value.sum(1).tolist() == [0, 1, 0]


def test_program_with_wrong_shape_raises() -> None:
    with pytest.raises(ShapeError, match="2 columns, but theta has 3"):
        IntegerProgram([[1.0, 1.0]], [1.0])(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"A must be \(\*batch, constraints, n\)"):
        IntegerProgram([1.0, 1.0], [1.0])
    with pytest.raises(ShapeError, match="upper of shape"):
        IntegerProgram([[1.0, 1.0]], [1.0, 1.0])(torch.zeros(2))


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.linear_solver.pywraplp", None)
    with pytest.raises(MissingDependencyError, match=r"needs ortools: pip install \"setgrad\[solvers\]\""):
        IntegerProgram([[1.0, 1.0]], [1.0], backend=ORTools())(torch.ones(2))
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingDependencyError, match="needs scipy"):
        Assignment()(torch.ones(2, 2))


def test_callable_with_wrong_result_raises() -> None:
    theta = torch.ones(2, 3)
    with pytest.raises(SolverError, match=r"answer of shape \(2,\)"):
        CallableSolver(lambda t: t.sum(-1))(theta)
    with pytest.raises(SolverError, match="answer of type list"):
        CallableSolver(lambda t: t.tolist())(theta)
    with pytest.raises(SolverError, match=r"array of shape \(2,\) for an instance of shape \(3,\)"):
        CallableSolver(lambda t: t[:2], pool=WorkerPool(1))(theta)
    with pytest.raises(OptionError, match=r"dims must be 1 or more, got 0; .*theta\[\.\.\., None\]"):
        CallableSolver(lambda t: t, dims=0)


def test_callable_with_fractional_results() -> None:
    answers = torch.tensor([[1.0, 0.00001], [0.5, 1.0], [torch.nan, 1.0], [3.0, -2.0]])
    result = CallableSolver(lambda t: answers, on_failure="mask").run(torch.zeros(4, 2))
    assert result.status.tolist() == [Status.SOLVED, Status.FRACTIONAL, Status.INFEASIBLE, Status.SOLVED]
    assert result.value.tolist() == [[1, 0], [0, 0], [0, 0], [3, -2]]
    with pytest.raises(SolverError, match=r"2 of 4 .*1 INFEASIBLE, 1 FRACTIONAL"):
        CallableSolver(lambda t: answers)(torch.zeros(4, 2))
    fractional = CallableSolver(lambda t: answers, whole=False, on_failure="mask").run(torch.zeros(4, 2))
    assert fractional.status.tolist() == [Status.SOLVED, Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]
    assert fractional.value[1].tolist() == [0.5, 1]


@pytest.mark.parametrize("whole", [False, True])
def test_callable_with_infinite_results(whole: bool) -> None:
    answers = torch.tensor([[1.0, torch.inf], [-torch.inf, torch.nan], [1.0, 0.0]])
    result = CallableSolver(lambda t: answers, whole=whole, on_failure="mask").run(torch.zeros(3, 2))
    assert result.status.tolist() == [Status.UNBOUNDED, Status.INFEASIBLE, Status.SOLVED]
    assert result.value.tolist() == [[0, 0], [0, 0], [1, 0]]


def test_callable_without_a_solution() -> None:
    def solve(costs: np.ndarray) -> np.ndarray | None:
        return None if costs[0] < 0 else costs > 1

    result = CallableSolver(solve, pool=WorkerPool(2), on_failure="mask").run(torch.tensor([[1.0, 2.0], [-1.0, 2.0]]))
    assert result.status.tolist() == [Status.SOLVED, Status.INFEASIBLE]
    assert result.value.tolist() == [[0, 1], [0, 0]]


def test_callable_can_return_statuses() -> None:
    status = torch.tensor([Status.TIME_LIMIT, Status.SOLVED])
    result = CallableSolver(lambda t: SolverResult(t, status), on_failure="mask").run(torch.ones(2, 2))
    assert result.status.tolist() == [Status.TIME_LIMIT, Status.SOLVED]


@pytest.mark.parametrize("shape", [(), (2, 1), (1,)])
def test_statuses_of_the_wrong_shape_raise(shape: tuple[int, ...]) -> None:
    @dataclass(frozen=True, eq=False)
    class WrongStatusShape(CombinatorialSolver):
        def solve(self, theta: torch.Tensor) -> SolverResult:
            return SolverResult(torch.zeros_like(theta), torch.zeros(shape, dtype=torch.long))

    with pytest.raises(SolverError, match=r"statuses of shape .* for a batch of shape \(2,\)"):
        WrongStatusShape(on_failure="mask")(torch.ones(2, 3))


def test_callable_may_modify_its_argument() -> None:
    theta = torch.tensor([-1.0, 2.0])
    assert CallableSolver(lambda x: (x.clamp_(min=0) > 0).float())(theta).tolist() == [0, 1]
    assert theta.tolist() == [-1, 2]


def test_callable_gets_theta_unchanged_in_both_senses() -> None:
    theta = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    for sense in ("max", "min"):
        function = Mock(side_effect=torch.zeros_like)
        CallableSolver(function, sense=sense, dims=2)(theta)
        assert torch.equal(function.call_args.args[0], theta)


def test_callable_with_instances_of_two_axes() -> None:
    theta = torch.tensor([[0.2, 3.0], [-1.0, 2.0]])
    assert CallableSolver(lambda t: (t > 0).to(t), dims=2).run(theta).status.shape == ()


class PartlyInfeasibleModel(FakeModel):
    """Has no solution if the first cost is negative, and a fractional one if the second is."""

    def solve(self) -> tuple[list[float], float]:
        if self.costs[0] < 0:
            raise RuntimeError("infeasible")
        if self.costs[1] < 0:
            return [0.5] * 4, 0.0
        return super().solve()

    def copy(self) -> PartlyInfeasibleModel:
        return PartlyInfeasibleModel()


class NonfiniteModel(FakeModel):
    """Returns a number that is not finite."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def solve(self) -> tuple[list[float], float]:
        return [self.number] * 4, 0.0


@pytest.mark.parametrize("workers", [1, 2])
def test_pyepo_model_without_a_solution(workers: int) -> None:
    theta = torch.tensor([[1.0, 2, 3, 4], [-1, 2, 3, 4], [1, -2, 3, 4], [9, 2, 3, 4]])
    result = PyEPOSolver(PartlyInfeasibleModel(), workers=workers, on_failure="mask").run(theta)
    assert result.status.tolist() == [Status.SOLVED, Status.INFEASIBLE, Status.FRACTIONAL, Status.SOLVED]
    assert result.value.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]]
    assert PyEPOSolver(PartlyInfeasibleModel(), whole=False)(theta[2]).tolist() == [0.5] * 4
    for number, status in ((math.nan, Status.INFEASIBLE), (math.inf, Status.UNBOUNDED)):
        model = PyEPOSolver(NonfiniteModel(number), whole=False, on_failure="mask")
        assert model.run(theta[0]).status == status
    with pytest.raises(ShapeError, match="4 costs, but theta has 3"):
        PyEPOSolver(PartlyInfeasibleModel())(torch.ones(3))


@pytest.fixture
def pyepo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyEPO if it is installed, else the part of it that the adapter uses."""
    adapters._model_class.cache_clear()
    if importlib.util.find_spec("pyepo") is None:

        class optModel:
            def __init__(self) -> None:
                self._model, self.x = self._getModel()  # type: ignore[attr-defined]

            @property
            def num_cost(self) -> int:
                return len(self.x)

        package, model, opt = (types.ModuleType(name) for name in ("pyepo", "pyepo.model", "pyepo.model.opt"))
        vars(package)["EPO"] = types.SimpleNamespace(ModelSense=int)
        vars(opt)["optModel"] = optModel
        for module in (package, model, opt):
            monkeypatch.setitem(sys.modules, module.__name__, module)
    yield
    adapters._model_class.cache_clear()


@pytest.mark.usefixtures("pyepo")
def test_solver_as_a_pyepo_model() -> None:
    model = to_pyepo(TopK(2), 4)
    assert (model.modelSense, model.num_cost) == (-1, 4)
    model.setObj(np.array([1.0, 5.0, 2.0, 3.0]))
    solution, objective = model.solve()
    assert solution.tolist() == [0, 1, 0, 1]
    assert objective == 8
    grid = to_pyepo(GridPath(), (2, 2))
    assert (grid.modelSense, grid.num_cost) == (1, 4)
    grid.setObj(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert grid.solve()[0].tolist() == [1, 0, 0, 1]
    with pytest.raises(OptionError, match="2 axes"):
        to_pyepo(GridPath(), 4)


@pytest.mark.usefixtures("pyepo")
def test_pyepo_round_trip() -> None:
    theta = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    for sense in ("max", "min"):
        solver = TopK(3, sense=sense)
        assert torch.equal(PyEPOSolver(to_pyepo(solver, 6))(theta), solver(theta))


def test_losses_of_pyepo() -> None:
    pyepo = pytest.importorskip("pyepo")
    adapters._model_class.cache_clear()
    model = to_pyepo(TopK(2), 4)
    truth = torch.tensor([[1.0, 4.0, 2.0, 3.0], [4.0, 3.0, 2.0, 1.0]])
    best = TopK(2)(truth)
    costs = torch.tensor([[4.0, 1.0, 2.0, 3.0], [4.0, 3.0, 2.0, 1.0]], requires_grad=True)
    loss = pyepo.func.SPOPlus(model, processes=1, reduction="sum")(
        costs, truth, best, (truth * best).sum(-1, keepdim=True)
    )
    loss.backward()
    # The subgradient of SPO+ for the largest product is 2 (z(2 c - c*) - z*).
    expected = 2 * (TopK(2)(2 * costs.detach() - truth) - best)
    torch.testing.assert_close(costs.grad, expected)
    pyepo_model = pyepo.model.ort.knapsackModel(weights=np.array([[3.0, 4.0, 2.0, 5.0]]), capacity=np.array([7.0]))
    theta = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(PyEPOSolver(pyepo_model)(theta), Knapsack([3, 4, 2, 5], 7)(theta))


def test_to_pyepo_without_pyepo_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters._model_class.cache_clear()
    monkeypatch.setitem(sys.modules, "pyepo.model.opt", None)
    with pytest.raises(MissingDependencyError, match="pip install pyepo"):
        to_pyepo(TopK(2), 4)
