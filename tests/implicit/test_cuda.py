"""Results on a GPU equal those on the CPU, and the host waits for the device no more often than documented."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from setgrad.implicit import LBFGS, Direct, EquationSolver, LinearSolver, argmin, quadratic
from tests.implicit.problems import Case
from tests.implicit.solvers import BACKWARD, FORWARD
from tests.waits import count_syncs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}


def move(case: Case, device: str) -> tuple[Tensor, list[Tensor]]:
    return case.start.to(device), [a.detach().to(device).requires_grad_() for a in case.args]


@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
def test_solutions_agree_with_the_cpu(case: Case, solver: EquationSolver):
    solutions = {}
    for device in ("cpu", "cuda"):
        start, args = move(case, device)
        solutions[device] = case.entry_point(case.fn, start, *args, solver=solver, tol=1e-12, max_steps=2000)
    torch.testing.assert_close(solutions["cuda"].value.cpu(), solutions["cpu"].value, **CLOSE)
    assert torch.equal(solutions["cuda"].status.cpu(), solutions["cpu"].status)


@pytest.mark.parametrize(("case", "adjoint"), BACKWARD, ids=str)
def test_gradients_agree_with_the_cpu(case: Case, adjoint: LinearSolver):
    gradients = {}
    for device in ("cpu", "cuda"):
        start, args = move(case, device)
        value = case.entry_point(case.fn, start, *args, adjoint=adjoint, tol=1e-12, max_steps=400).value
        gradients[device] = torch.autograd.grad(value.square().sum(), args)
    for on_cpu, on_gpu in zip(gradients["cpu"], gradients["cuda"], strict=True):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, **CLOSE)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
@pytest.mark.parametrize("check_every", [1, 4, 10])
def test_the_solve_waits_once_in_check_every_steps(case: Case, solver: EquationSolver, check_every: int):
    start, args = move(case, "cuda")
    steps = 40
    options = {"solver": solver, "tol": 1e-300, "max_steps": steps, "check_every": check_every, "on_failure": "mask"}
    case.entry_point(case.fn, start, *args, **options)
    assert count_syncs(lambda: case.entry_point(case.fn, start, *args, **options)) <= math.ceil(steps / check_every)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_count_syncs_counts_a_wait():
    x = torch.ones(3, device="cuda")
    assert count_syncs(lambda: float(x.sum())) == 1


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("unwrapped", [True, False])
@pytest.mark.parametrize(("case", "adjoint"), BACKWARD, ids=str)
def test_the_backward_pass_waits_once_in_check_every_steps(case: Case, adjoint: Any, unwrapped: bool):
    """And once more without `unwrap`, to check that failed samples did not turn shared gradients into NaN."""
    start, args = move(case, "cuda")
    solution = case.entry_point(case.fn, start, *args, adjoint=adjoint, tol=1e-12, max_steps=400, on_failure="mask")
    loss = (solution.unwrap() if unwrapped else solution.value).square().sum()
    torch.autograd.grad(loss, args, retain_graph=True)
    limit = 0 if isinstance(adjoint, Direct) else math.ceil(adjoint.max_steps / adjoint.check_every)
    limit += 0 if unwrapped else 1
    assert count_syncs(lambda: torch.autograd.grad(loss, args, retain_graph=True)) <= limit


def test_quadratic_programs_agree_with_the_cpu():
    pytest.importorskip("qpsolvers")
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 5, 5, generator=generator, dtype=torch.float64)
    q = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    G = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    h = torch.ones(3, 4, dtype=torch.float64)
    results = {}
    for device in ("cpu", "cuda"):
        parts = [t.to(device).requires_grad_() for t in (root @ root.mT + torch.eye(5), q, G, h)]
        value = quadratic(*parts).value
        results[device] = [value, *torch.autograd.grad(value.square().sum(), parts)]
    for on_cpu, on_gpu in zip(results["cpu"], results["cuda"], strict=True):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, **CLOSE)


def test_argmin_with_many_unknowns_agrees_with_the_cpu():
    weights = torch.linspace(1.0, 3.0, 600, dtype=torch.float64)

    def gradient(device: str) -> Tensor:
        target = torch.linspace(-1.0, 1.0, 600, dtype=torch.float64, device=device).requires_grad_()
        scale = weights.to(device)
        solution = argmin(
            lambda y, t: (scale * (y - t) ** 2).sum(-1) + 0.1 * (y**4).sum(-1),
            torch.zeros(2, 600, dtype=torch.float64, device=device),
            target,
            solver=LBFGS(),
            tol=1e-10,
        )
        return torch.autograd.grad(solution.value.square().sum(), target)[0].cpu()

    torch.testing.assert_close(gradient("cuda"), gradient("cpu"), **CLOSE)
