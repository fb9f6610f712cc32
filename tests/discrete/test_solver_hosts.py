"""Work on the host: pools, backends, time limits, functions of the user's, PyEPO both ways."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import math
import pickle
import sys
import threading
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from setgrad._status import Status
from setgrad.discrete._solver import CombinatorialSolver, SolverResult
from setgrad.discrete.estimators import Identity
from setgrad.discrete.solvers import (
    Assignment,
    Backend,
    Custom,
    FromPyEPO,
    GridPath,
    HiGHS,
    HostPool,
    IntegerProgram,
    Knapsack,
    ORTools,
    Program,
    TopK,
    to_pyepo,
)
from setgrad.discrete.solvers import pyepo as adapters
from setgrad.errors import MissingDependencyError, OptionError, ShapeError, SolverError
from tests.discrete.problems import FakeModel


@pytest.mark.parametrize("pool", [HostPool(1), HostPool(3), HostPool(), HostPool(2, processes=True)], ids=str)
def test_a_pool_keeps_the_order(pool: HostPool) -> None:
    assert pool.map(abs, range(-25, 0)) == list(range(25, 0, -1))
    assert pool.map(abs, []) == []


def test_threads_work_side_by_side() -> None:
    # Each of two jobs waits until the other has begun; a loop would wait for ever.
    meet = threading.Barrier(2, timeout=30)
    assert HostPool(2).map(lambda item: meet.wait() * 0 + item, [1, 2]) == [1, 2]


def _own_thread(item: int) -> bool:
    """Whether a worker that asks for a pool of others works alone."""
    return set(HostPool(3).map(lambda _: threading.get_ident(), range(4))) == {threading.get_ident()}


@pytest.mark.parametrize("pool", [HostPool(2), HostPool(2, processes=True)], ids=str)
def test_workers_do_not_wait_for_workers(pool: HostPool) -> None:
    assert pool.map(_own_thread, range(4)) == [True] * 4


def test_a_function_of_a_pool_may_call_a_solver_that_uses_it() -> None:
    theta = torch.eye(2).flip(0).expand(6, 2, 2)
    inner = Assignment(pool=HostPool(2))
    solver = Custom(lambda scores: inner(torch.from_numpy(np.stack([scores] * 3)))[0].numpy(), dims=2, pool=HostPool(2))
    assert torch.equal(solver(theta), theta)


def test_solvers_with_pools_can_be_copied_and_pickled() -> None:
    solver = Assignment(pool=HostPool(2))
    theta = torch.eye(3).flip(0).expand(4, 3, 3)
    expected = solver(theta)
    assert torch.equal(copy.deepcopy(solver)(theta), expected)
    assert torch.equal(pickle.loads(pickle.dumps(solver))(theta), expected)
    assert torch.equal(Assignment(pool=HostPool(2, processes=True))(theta), expected)


def test_workers_below_one_are_refused() -> None:
    with pytest.raises(OptionError, match="1 or more, or None"):
        HostPool(0)


BACKENDS = [HiGHS(), ORTools(), ORTools(engine="SAT")]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_each_instance_has_a_status_of_its_own(backend: Backend) -> None:
    # x0 + x1 + x2 = 2, 5, 1 of three variables in 0..1
    ends = torch.tensor([[2.0], [5.0], [1.0]])
    solver = IntegerProgram(torch.ones(1, 3), ends, lower=ends, backend=backend, on_failure="mask")
    found = solver.run(torch.tensor([3.0, 1.0, 2.0]).expand(3, 3))
    assert found.status.tolist() == [Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]
    assert found.value.tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_whole_numbers_beyond_one(backend: Backend) -> None:
    solver = IntegerProgram([[2.0, 3.0]], [12.5], least=[0.0, 1.0], most=[9.0, 3.0], backend=backend)
    assert solver(torch.tensor([1.0, 1.4])).tolist() == [3, 2]
    assert solver(torch.tensor([-1.0, -1.0])).tolist() == [0, 1]


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e25])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_the_unit_of_theta_makes_no_difference(backend: Backend, scale: float) -> None:
    theta = scale * torch.tensor([3.0, 4.0, 6.0], dtype=torch.float64)
    assert IntegerProgram([[2.0, 3.0, 4.0]], upper=[5.0], backend=backend)(theta).tolist() == [1, 1, 0]
    assert Knapsack([2.5, 3.5, 4.5], budget=6.0, backend=backend)(theta).tolist() == [1, 1, 0]
    weights = [2.5 * scale, 3.5 * scale, 4.5 * scale]
    assert Knapsack(weights, budget=6.0 * scale, backend=backend)(theta).tolist() == [1, 1, 0]


def test_programs_of_odd_numbers() -> None:
    theta = torch.tensor([1.0, 2.0])
    for wrong in ({"A": [[torch.nan, 1.0]], "upper": [1.0]}, {"A": [[1.0, 1.0]], "upper": [torch.nan]}):
        with pytest.raises(OptionError, match="holds NaN"):
            IntegerProgram(**wrong)
    assert IntegerProgram(np.zeros((0, 2)), upper=np.zeros(0))(theta).tolist() == [1, 1]


def test_variables_that_need_not_be_whole() -> None:
    solver = IntegerProgram([[2.0, 2.0]], [3.0], integer=[True, False])
    assert solver(torch.tensor([2.0, 1.0])).tolist() == [1, 0.5]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_program_without_a_best_value(backend: Backend) -> None:
    solver = IntegerProgram([[1.0, -1.0]], [1.0], most=torch.inf, backend=backend)
    with pytest.raises(SolverError, match=r"1 UNBOUNDED.* bound every variable"):
        solver(torch.tensor([1.0, 1.0]))


@dataclass(frozen=True)
class Hasty(Backend):
    """Has found a point, not the best, when time runs out."""

    def find(self, program: Program) -> tuple[np.ndarray, Status]:
        return np.eye(len(program.value))[0], Status.TIME_LIMIT


def test_the_point_at_a_time_limit_counts() -> None:
    solver = IntegerProgram([[1.0, 1.0]], [1.0], backend=Hasty(), on_failure="mask")
    theta = torch.tensor([[1.0, 2.0]], requires_grad=True)
    found = solver.run(theta)
    assert found.status.tolist() == [Status.TIME_LIMIT]
    assert found.value.tolist() == [[1, 0]]
    Identity(solver)(theta).sum().backward()
    assert theta.grad.tolist() == [[1, 1]]
    with pytest.raises(SolverError, match="raise time_limit"):
        IntegerProgram([[1.0, 1.0]], [1.0], backend=Hasty())(theta)


def test_time_limits_below_0_are_refused() -> None:
    with pytest.raises(OptionError, match="0 seconds or more"):
        HiGHS(time_limit=-1.0)


def test_an_instance_without_a_point_in_time_has_no_gradient() -> None:
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
def test_an_instance_out_of_time_leaves_the_others_as_they_are(backend: Backend) -> None:
    # Five equations that halve 40 numbers between 0 and 99 keep these solvers busy for hours. The others have one
    # variable, which their bounds settle.
    halves = np.random.default_rng(0).integers(0, 100, (5, 40)).astype(float)
    rows = np.stack([halves, np.zeros((5, 40)), np.zeros((5, 40))])
    ends = np.stack([np.floor(halves.sum(1) / 2), np.zeros(5), np.zeros(5)])
    most = np.stack([np.ones(40), *[np.eye(40)[0]] * 2])
    limited = dataclasses.replace(backend, time_limit=1.0)
    solver = IntegerProgram(rows, ends, lower=ends, most=most, backend=limited, pool=HostPool(1), on_failure="mask")
    found = solver.run(torch.tensor([[1.0], [1.0], [-1.0]]).expand(3, 40))
    assert found.status.tolist() == [Status.NOT_FOUND, Status.SOLVED, Status.SOLVED]
    assert found.value.sum(1).tolist() == [0, 1, 0]


def test_programs_that_do_not_fit_theta() -> None:
    with pytest.raises(ShapeError, match="2 columns, but theta has 3"):
        IntegerProgram([[1.0, 1.0]], [1.0])(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"A must be \(\*batch, constraints, n\)"):
        IntegerProgram([1.0, 1.0], [1.0])
    with pytest.raises(ShapeError, match="upper of shape"):
        IntegerProgram([[1.0, 1.0]], [1.0, 1.0])(torch.zeros(2))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.linear_solver.pywraplp", None)
    with pytest.raises(MissingDependencyError, match=r"needs ortools: pip install \"setgrad\[solvers\]\""):
        IntegerProgram([[1.0, 1.0]], [1.0], backend=ORTools())(torch.ones(2))
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingDependencyError, match="needs scipy"):
        Assignment()(torch.ones(2, 2))


def test_a_custom_answer_of_the_wrong_shape_or_kind() -> None:
    theta = torch.ones(2, 3)
    with pytest.raises(SolverError, match=r"answer of shape \(2,\)"):
        Custom(lambda t: t.sum(-1))(theta)
    with pytest.raises(SolverError, match="answer of type list"):
        Custom(lambda t: t.tolist())(theta)
    with pytest.raises(SolverError, match=r"array of shape \(2,\) for an instance of shape \(3,\)"):
        Custom(lambda t: t[:2], pool=HostPool(1))(theta)
    with pytest.raises(OptionError, match=r"dims must be 1 or more, got 0; .*theta\[\.\.\., None\]"):
        Custom(lambda t: t, dims=0)


def test_custom_answers_that_are_not_whole() -> None:
    answers = torch.tensor([[1.0, 0.00001], [0.5, 1.0], [torch.nan, 1.0], [3.0, -2.0]])
    found = Custom(lambda t: answers, on_failure="mask").run(torch.zeros(4, 2))
    assert found.status.tolist() == [Status.SOLVED, Status.FRACTIONAL, Status.INFEASIBLE, Status.SOLVED]
    assert found.value.tolist() == [[1, 0], [0, 0], [0, 0], [3, -2]]
    with pytest.raises(SolverError, match=r"2 of 4 .*1 INFEASIBLE, 1 FRACTIONAL"):
        Custom(lambda t: answers)(torch.zeros(4, 2))
    fractional = Custom(lambda t: answers, whole=False, on_failure="mask").run(torch.zeros(4, 2))
    assert fractional.status.tolist() == [Status.SOLVED, Status.SOLVED, Status.INFEASIBLE, Status.SOLVED]
    assert fractional.value[1].tolist() == [0.5, 1]


@pytest.mark.parametrize("whole", [False, True])
def test_custom_answers_that_are_infinite(whole: bool) -> None:
    answers = torch.tensor([[1.0, torch.inf], [-torch.inf, torch.nan], [1.0, 0.0]])
    found = Custom(lambda t: answers, whole=whole, on_failure="mask").run(torch.zeros(3, 2))
    assert found.status.tolist() == [Status.UNBOUNDED, Status.INFEASIBLE, Status.SOLVED]
    assert found.value.tolist() == [[0, 0], [0, 0], [1, 0]]


def test_custom_instances_without_an_answer() -> None:
    def solve(costs: np.ndarray) -> np.ndarray | None:
        return None if costs[0] < 0 else costs > 1

    found = Custom(solve, pool=HostPool(2), on_failure="mask").run(torch.tensor([[1.0, 2.0], [-1.0, 2.0]]))
    assert found.status.tolist() == [Status.SOLVED, Status.INFEASIBLE]
    assert found.value.tolist() == [[0, 1], [0, 0]]


def test_custom_functions_may_report_statuses_themselves() -> None:
    status = torch.tensor([Status.TIME_LIMIT, Status.SOLVED])
    found = Custom(lambda t: SolverResult(t, status), on_failure="mask").run(torch.ones(2, 2))
    assert found.status.tolist() == [Status.TIME_LIMIT, Status.SOLVED]


@pytest.mark.parametrize("shape", [(), (2, 1), (1,)])
def test_statuses_of_the_wrong_shape(shape: tuple[int, ...]) -> None:
    @dataclass(frozen=True, eq=False)
    class Odd(CombinatorialSolver):
        def solve(self, theta: torch.Tensor) -> SolverResult:
            return SolverResult(torch.zeros_like(theta), torch.zeros(shape, dtype=torch.long))

    with pytest.raises(SolverError, match=r"statuses of shape .* for a batch of shape \(2,\)"):
        Odd(on_failure="mask")(torch.ones(2, 3))


def test_custom_functions_may_write_into_theta() -> None:
    theta = torch.tensor([-1.0, 2.0])
    assert Custom(lambda x: (x.clamp_(min=0) > 0).float())(theta).tolist() == [0, 1]
    assert theta.tolist() == [-1, 2]


def test_custom_functions_see_theta_as_it_is_in_both_senses() -> None:
    theta = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    for sense in ("max", "min"):
        seen = []
        Custom(lambda t, seen=seen: seen.append(t) or torch.zeros_like(t), sense=sense, dims=2)(theta)
        assert torch.equal(seen[0], theta)


def test_instances_of_two_axes() -> None:
    theta = torch.tensor([[0.2, 3.0], [-1.0, 2.0]])
    assert Custom(lambda t: (t > 0).to(t), dims=2).run(theta).status.shape == ()


class Picky(FakeModel):
    """Has no solution where the first cost is negative, and half of one where the second is."""

    def solve(self) -> tuple[list[float], float]:
        if self.costs[0] < 0:
            raise RuntimeError("infeasible")
        if self.costs[1] < 0:
            return [0.5] * 4, 0.0
        return super().solve()

    def copy(self) -> Picky:
        return Picky()


class Diverging(FakeModel):
    """Says a number that is none."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def solve(self) -> tuple[list[float], float]:
        return [self.number] * 4, 0.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pyepo_model_that_finds_nothing(workers: int) -> None:
    theta = torch.tensor([[1.0, 2, 3, 4], [-1, 2, 3, 4], [1, -2, 3, 4], [9, 2, 3, 4]])
    found = FromPyEPO(Picky(), workers=workers, on_failure="mask").run(theta)
    assert found.status.tolist() == [Status.SOLVED, Status.INFEASIBLE, Status.FRACTIONAL, Status.SOLVED]
    assert found.value.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]]
    assert FromPyEPO(Picky(), whole=False)(theta[2]).tolist() == [0.5] * 4
    for number, status in ((math.nan, Status.INFEASIBLE), (math.inf, Status.UNBOUNDED)):
        model = FromPyEPO(Diverging(number), whole=False, on_failure="mask")
        assert model.run(theta[0]).status == status
    with pytest.raises(ShapeError, match="4 costs, but theta has 3"):
        FromPyEPO(Picky())(torch.ones(3))


@pytest.fixture
def pyepo(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyEPO itself if it is installed, else the part of it that the adapter touches."""
    adapters._model_type.cache_clear()
    if importlib.util.find_spec("pyepo") is None:

        class optModel:
            def __init__(self) -> None:
                self._model, self.x = self._getModel()

            @property
            def num_cost(self) -> int:
                return len(self.x)

        package, model, opt = (types.ModuleType(name) for name in ("pyepo", "pyepo.model", "pyepo.model.opt"))
        package.EPO = types.SimpleNamespace(ModelSense=int)
        opt.optModel = optModel
        for module in (package, model, opt):
            monkeypatch.setitem(sys.modules, module.__name__, module)
    yield
    adapters._model_type.cache_clear()


@pytest.mark.usefixtures("pyepo")
def test_a_solver_as_a_pyepo_model() -> None:
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
def test_there_and_back_again() -> None:
    theta = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    for sense in ("max", "min"):
        solver = TopK(3, sense=sense)
        assert torch.equal(FromPyEPO(to_pyepo(solver, 6))(theta), solver(theta))


def test_losses_of_pyepo_itself() -> None:
    pyepo = pytest.importorskip("pyepo")
    adapters._model_type.cache_clear()
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
    theirs = pyepo.model.ort.knapsackModel(weights=np.array([[3.0, 4.0, 2.0, 5.0]]), capacity=np.array([7.0]))
    theta = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(FromPyEPO(theirs)(theta), Knapsack([3, 4, 2, 5], 7)(theta))


def test_without_pyepo(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters._model_type.cache_clear()
    monkeypatch.setitem(sys.modules, "pyepo.model.opt", None)
    with pytest.raises(MissingDependencyError, match="pip install pyepo"):
        to_pyepo(TopK(2), 4)
