"""Every sample that fails has a status, no failure is silent, and wrong inputs raise."""

import warnings
from typing import Any

import pytest
import torch

from setgrad.errors import ConvergenceError, OptionError, ShapeError
from setgrad.implicit import (
    GMRES,
    LBFGS,
    Anderson,
    Bisection,
    GradientDescent,
    Neumann,
    Newton,
    NormalCG,
    Picard,
    Status,
    argmin,
    fixed_point,
    quadratic,
    root,
)
from tests.implicit.problems import CASES


def test_every_status_can_occur():
    start = torch.ones(2, 1, dtype=torch.float64)
    scale = torch.tensor([[3.0], [0.5]], dtype=torch.float64)
    grows = fixed_point(lambda y, a: a * y + 1, start, scale, on_failure="mask", max_steps=200)
    assert grows.status.tolist() == [Status.DIVERGED, Status.CONVERGED]
    slow = fixed_point(lambda y, a: 0.99 * y + a, start, scale, on_failure="mask", max_steps=3)
    assert slow.status.tolist() == [Status.MAX_STEPS] * 2
    assert slow.steps.tolist() == [3, 3]
    constant = root(lambda y, a: 0 * y + a, start, scale, on_failure="mask")
    assert constant.status.tolist() == [Status.SINGULAR] * 2
    not_finite = root(lambda y, a: y.log() + a, -start, scale, on_failure="mask")
    assert not_finite.status.tolist() == [Status.NONFINITE] * 2
    swings = fixed_point(lambda y, a: a - y, torch.zeros_like(start), scale, on_failure="mask", max_steps=500)
    assert swings.status.tolist() == [Status.STALLED] * 2
    no_bracket = root(lambda y, a: y + a, start, scale, solver=Bisection(0.0, 5.0), on_failure="mask")
    assert no_bracket.status.tolist() == [Status.SINGULAR] * 2


def test_slow_divergence_is_not_reported_as_a_stall():
    start = torch.zeros(1, dtype=torch.float64)
    solution = fixed_point(lambda y: 1.2 * y + 1, start, on_failure="mask", max_steps=120)
    assert solution.status.item() == Status.DIVERGED


def test_a_residual_that_does_not_fall_is_no_solution() -> None:
    """The residual of y -> y + 1 is always 1: small relative to a large y, but not a solution."""
    options: dict[str, Any] = {"tol": 0.01, "max_steps": 2000, "on_failure": "mask", "check_every": 100}
    solution = fixed_point(lambda y: y + 1.0, torch.zeros(1, 1), **options)
    assert not solution.converged.any()
    solution = argmin(lambda y: y.sum(-1), torch.zeros(1, 2), solver=LBFGS(), max_steps=200, on_failure="mask")
    assert not solution.converged.any()


def test_failures_raise_warn_or_are_masked():
    start, rate = torch.ones(3, 1), torch.tensor([[0.5], [2.0], [0.1]])

    def solve(policy):
        return fixed_point(lambda y, a: a * y + 1, start, rate, on_failure=policy, max_steps=60)

    message = r"1 of 3 samples failed \(1 DIVERGED\); the worst is sample 1 .* Remedy: start nearer"
    with pytest.raises(ConvergenceError, match=message):
        solve("raise")
    with pytest.warns(RuntimeWarning, match=message):
        solve("warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = solve("mask")
    with pytest.raises(ConvergenceError, match="sample 1"):
        solution.unwrap()
    with pytest.raises(OptionError, match="unknown on_failure 'ignore'; choose one of: raise, warn, mask"):
        solve("ignore")


def test_a_failed_adjoint_is_never_silent():
    """At a double root the residual is small enough, but the Jacobian vanishes."""
    c = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)

    def solve(policy):
        start = torch.full((1, 1), 1e-9, dtype=torch.float64)
        return root(lambda y, c: (y - 1e-9) ** 2 + c, start, c, on_failure=policy).value

    with pytest.raises(ConvergenceError, match="the adjoint system of the backward pass: 1 of 1 samples failed"):
        torch.autograd.grad(solve("raise").sum(), c)
    assert torch.autograd.grad(solve("mask").sum(), c)[0].tolist() == [[0.0]]


@pytest.mark.parametrize("corner", [1e-6, 0.0])
def test_normal_equations_may_be_solved_when_the_system_is_not(corner):
    a = torch.tensor([[1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([1.0, corner], dtype=torch.float64)
    start = torch.tensor([[1.0, 1 / corner if corner else 0.0]], dtype=torch.float64)
    target = a if corner else a * torch.tensor([1.0, 0.0])
    y = root(lambda y, a: scale * y - a, start, target, adjoint=NormalCG()).value
    with pytest.raises(ConvergenceError, match="the adjoint system of the backward pass: 1 of 1 samples failed"):
        torch.autograd.grad(y.sum(), a)


@pytest.mark.parametrize("linearised", [False, True])
def test_a_failed_sample_does_not_change_the_gradient_of_shared_arguments(linearised):
    """It fails at a point without a finite derivative, and 0 times infinity would be NaN."""
    w = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    a = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    start = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    def fn(y, a, w):
        return y - (w * y.sqrt() - a)

    linearisation = (lambda y, a, w: lambda v: fn(v, a, w)) if linearised else None
    solution = fixed_point(fn, start, a, w, solver=Newton(), on_failure="mask", linearisation=linearisation)
    assert solution.converged.tolist() == [True, False]
    a_grad, w_grad = torch.autograd.grad(solution.value.sum(), (a, w))
    # y = (a / w)^2
    torch.testing.assert_close(a_grad, torch.tensor([[0.5], [0.0]], dtype=torch.float64))
    torch.testing.assert_close(w_grad, torch.tensor(-0.25, dtype=torch.float64))


def test_a_shared_gradient_that_is_nan_raises():
    a = torch.tensor([[1.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    w = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def solve(a, w):
        return fixed_point(lambda y, a, w: w * a.sqrt() + 0.1 * y, torch.zeros_like(a), a, w, on_failure="mask").value

    (a_grad,) = torch.autograd.grad(solve(a, w.detach()).sum(), a)
    torch.testing.assert_close(a_grad, torch.tensor([[1 / 0.9], [0.0]], dtype=torch.float64))
    with pytest.raises(ConvergenceError, match=r"share with the others have no gradient.*Leave out the samples"):
        torch.autograd.grad(solve(a, w).sum(), w)
    assert [g.abs().sum().item() for g in torch.autograd.grad(solve(a[1:], w).sum(), (a, w))] == [0.0, 0.0]


def test_half_precision_raises_for_linear_systems():
    c = torch.ones(2, 1, dtype=torch.float16, requires_grad=True)
    y = fixed_point(lambda y, c: 0.5 * y + c, torch.zeros_like(c), c, tol=1e-2).value
    with pytest.raises(OptionError, match=r"cannot be solved in torch.float16: use float32"):
        torch.autograd.grad(y.sum(), c)
    eye = torch.eye(2, dtype=torch.bfloat16)
    with pytest.raises(OptionError, match=r"cannot be solved in torch.bfloat16: use float32"):
        quadratic(eye, eye[:1])


def test_the_solution_holds_the_outcome_of_the_adjoint():
    case = CASES[0]
    weight, bias = (a.clone().requires_grad_() for a in case.args)
    solution = case.solve(weight, bias, adjoint=GMRES(tol=1e-9))
    before = solution.adjoint
    solution.value.sum().backward()
    after = solution.adjoint
    assert before is None and after is not None
    assert after.status.tolist() == [Status.CONVERGED] * 3
    assert after.residual.max() < 1e-8


def test_wrong_inputs_raise():
    weight = torch.tensor([0.5], requires_grad=True)
    with pytest.raises(OptionError, match="captures a tensor that requires a gradient"):
        fixed_point(lambda y: weight * y, torch.ones(1))
    with pytest.raises(ShapeError, match=r"the shape of y, \(2, 3\), but returned \(2,\)"):
        fixed_point(lambda y: y.sum(-1), torch.ones(2, 3))
    number: Any = 0.5
    two_tensors: Any = lambda y: (y, y)  # noqa: E731
    for entry_point in (fixed_point, root):
        with pytest.raises(ShapeError, match=r"one tensor of the shape of y.*but returned tuple"):
            entry_point(two_tensors, torch.ones(2, 3))
    with pytest.raises(ShapeError, match=r"the mask must be bool.*not torch\.float32"):
        fixed_point(lambda y: 0.5 * y, torch.ones(2), mask=torch.ones(2))
    with pytest.raises(ShapeError, match="unknowns on the last axis"):
        fixed_point(lambda y: y, torch.tensor(1.0))
    with pytest.raises(OptionError, match="argument 0 is float, not a tensor"):
        fixed_point(lambda y, a: a * y, torch.ones(1), number)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, "tol must be above 0"),
        ({"max_steps": -1}, "max_steps must be at least 0"),
        ({"check_every": 0}, "check_every must be at least 1"),
    ],
)
def test_limits_out_of_range_raise(options, message):
    with pytest.raises(OptionError, match=message):
        fixed_point(lambda y: 0.5 * y, torch.ones(1), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Picard(damping=0.0), "damping must lie in"),
        (lambda: Anderson(window=0), "window must be at least 1"),
        (lambda: GradientDescent(0.0), "rate must be above 0"),
        (lambda: LBFGS(0), "window must be at least 1"),
        (lambda: GMRES(restart=0), "restart must be at least 1"),
        (lambda: Neumann(0), "at least 1 term"),
    ],
)
def test_solver_options_out_of_range_raise(make, message):
    with pytest.raises(OptionError, match=message):
        make()
