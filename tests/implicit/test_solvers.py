"""Properties of single solvers: few steps, good starts, overshooting, preconditioners."""

from dataclasses import replace

import pytest
import torch

from setgrad.errors import OptionError
from setgrad.implicit import (
    CG,
    GMRES,
    Anderson,
    Broyden,
    Neumann,
    Newton,
    NormalCG,
    OneStepAdjoint,
    Picard,
    Status,
    argmin,
    fixed_point,
    root,
)
from tests.implicit.problems import CASES
from tests.implicit.solvers import FORWARD


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Newton(), Broyden()], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_few_steps_reduce_the_residual(solver, steps):
    case = CASES[0]
    solution = case.solve(*case.args, solver=solver, max_steps=steps, on_failure="mask")
    assert solution.steps.max() == steps
    assert solution.status.tolist() == [Status.MAX_STEPS] * 3
    if steps == 0:
        assert torch.equal(solution.value, case.start)
    else:
        assert solution.residual.max() < (case.fn(case.start, *case.args) - case.start).norm(dim=-1).max()


@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
def test_no_steps_are_taken_from_the_solution(case, solver):
    solution = case.entry_point(case.fn, case.truth(*case.args), *case.args, solver=solver, tol=1e-8)
    assert solution.steps.max() == 0
    torch.testing.assert_close(solution.value, case.truth(*case.args), rtol=1e-12, atol=1e-12)


def test_the_best_iterate_is_returned():
    # Without damping this map swings around 1/2, and the residual is smallest at the start.
    solution = fixed_point(lambda y: 1 - y, torch.tensor([0.4]), on_failure="mask", max_steps=200)
    assert solution.value.tolist() == pytest.approx([0.4])
    assert solution.residual.item() == pytest.approx(0.2, rel=1e-5)


def test_newton_halves_a_step_that_overshoots():
    # From 0 a full step lands at 39, where the exponential is 8e16.
    c = torch.tensor([[40.0], [1.0]], dtype=torch.float64, requires_grad=True)
    solution = argmin(lambda y, c: (y.exp() - c * y).sum(-1), torch.zeros(2, 1, dtype=torch.float64), c, tol=1e-12)
    torch.testing.assert_close(solution.value, c.log())
    torch.testing.assert_close(torch.autograd.grad(solution.value.sum(), c)[0], 1 / c)
    assert solution.steps.max() < 20


def test_argmin_accepts_any_stationary_point():
    solution = argmin(lambda y: -(y**2).sum(-1), torch.ones(1, 1, dtype=torch.float64))
    assert solution.converged.tolist() == [True] and solution.value.tolist() == [[0.0]]


def test_anderson_leaves_a_point_where_the_map_jumps():
    """The map is constant except for one small jump: two changes of the residual cancel without any move."""

    def fn(y):
        return torch.where(y[..., :1] < 0.9, torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.01])).to(y)

    solution = fixed_point(fn, torch.zeros(1, 2, dtype=torch.float64), solver=Anderson(damping=0.5), tol=1e-9)
    torch.testing.assert_close(solution.value, torch.tensor([[1.0, 1.01]], dtype=torch.float64), rtol=0, atol=1e-8)
    assert int(solution.steps) < 40


@pytest.mark.parametrize("adjoint", [CG(), GMRES(restart=3)], ids=str)
def test_an_exact_preconditioner_solves_in_one_step(adjoint):
    scales = torch.logspace(0, 6, 20, dtype=torch.float64)
    b = torch.ones(1, 20, dtype=torch.float64, requires_grad=True)
    value = argmin(
        lambda y, b: (0.5 * scales * y**2 - b * y).sum(-1),
        torch.zeros(1, 20, dtype=torch.float64),
        b,
        adjoint=replace(adjoint, max_steps=1),
        precondition=lambda y, b: 1 / scales,
    ).value
    torch.testing.assert_close(torch.autograd.grad(value.sum(), b)[0], (1 / scales)[None])


def test_a_solver_without_preconditioning_rejects_a_preconditioner():
    c = torch.ones(1, 2, requires_grad=True)
    value = root(lambda y, c: y - c, torch.zeros(1, 2), c, adjoint=NormalCG(), precondition=lambda y, c: c).value
    with pytest.raises(OptionError, match="NormalCG takes no preconditioner"):
        value.sum().backward()


@pytest.mark.parametrize("adjoint", [OneStepAdjoint(), Neumann(5)], ids=repr)
@pytest.mark.parametrize("entry_point", [root, argmin])
def test_a_neumann_series_is_for_fixed_points_only(adjoint, entry_point):
    with pytest.raises(OptionError, match="approximation for fixed_point only"):
        entry_point(lambda y: y, torch.zeros(1, 2), adjoint=adjoint)
