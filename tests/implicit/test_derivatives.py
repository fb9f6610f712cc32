"""Values and derivatives of every order, for every problem with every solver and adjoint that applies."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from setgrad.implicit import CG, AdaptivePicard, Anderson, Direct, Neumann, OneStepAdjoint, fixed_point
from tests.implicit.helpers import FORWARD_MODE
from tests.implicit.problems import CASES
from tests.implicit.solvers import BACKWARD, FORWARD


def tracked(args):
    return tuple(a.clone().requires_grad_() for a in args)


def assert_close(result, expected, tol=1e-8):
    torch.testing.assert_close(result, expected, rtol=tol, atol=tol)


@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
def test_every_solver_gives_the_solution_and_its_gradient(case, solver):
    args = tracked(case.args)
    options = {"max_steps": 3000} if type(solver).__name__ == "GradientDescent" else {}
    solution = case.solve(*args, solver=solver, **options)
    assert bool(solution.converged.all())
    expected = case.truth(*args)
    assert_close(solution.value, expected)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    gradients = torch.autograd.grad((solution.unwrap() * weights).sum(), args)
    for a, b in zip(gradients, torch.autograd.grad((expected * weights).sum(), args), strict=True):
        assert_close(a, b)


@FORWARD_MODE
@pytest.mark.parametrize(("case", "adjoint"), BACKWARD, ids=str)
def test_every_adjoint_is_right_at_first_and_second_order(case, adjoint, seeded):
    args = tracked(case.args)

    def value(*a):
        return case.solve(*a, adjoint=adjoint).value

    with seeded(0):
        assert gradcheck(value, args, fast_mode=True)
        assert gradcheck(value, args, fast_mode=True, check_forward_ad=True, check_backward_ad=False)
        assert gradgradcheck(value, args, fast_mode=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_third_derivatives_are_right(case):
    def third(value):
        args = tracked(case.args)
        y = value(*args).sin().sum()
        for _ in range(3):
            y = sum(g.square().sum() for g in torch.autograd.grad(y, args, create_graph=True))
        return y.detach()

    assert_close(third(lambda *a: case.solve(*a).value), third(case.truth), tol=1e-7)


@FORWARD_MODE
@pytest.mark.parametrize("case", CASES, ids=str)
def test_transforms_of_torch_func_are_right(case):
    def loss(value):
        return lambda *a: value(*a).square().sum()

    argnums = tuple(range(len(case.args)))
    ours, reference = loss(lambda *a: case.solve(*a).value), loss(case.truth)
    for result, expected in (
        (torch.func.grad(ours, argnums)(*case.args), torch.func.grad(reference, argnums)(*case.args)),
        (torch.func.hessian(ours)(*case.args), torch.func.hessian(reference)(*case.args)),
        (torch.func.jacrev(lambda *a: case.solve(*a).value)(*case.args), torch.func.jacrev(case.truth)(*case.args)),
    ):
        result, expected = (x if isinstance(x, tuple) else (x,) for x in (result, expected))
        for a, b in zip(result, expected, strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap_equals_a_loop(case):
    shifts = torch.tensor([0.0, 0.05, -0.05], dtype=torch.float64)

    def value(shift):
        return case.solve(*case.args[:-1], case.args[-1] + shift).value

    values = torch.func.vmap(value)(shifts)
    slopes = torch.func.vmap(torch.func.jacrev(value))(shifts)
    for i, shift in enumerate(shifts):
        assert_close(values[i], value(shift))
        assert_close(slopes[i], torch.func.jacrev(value)(shift))


def test_approximate_adjoints_equal_unrolled_steps_from_the_solution():
    case = CASES[0]
    weight, bias = tracked(case.args)

    def gradient(adjoint):
        return torch.autograd.grad(case.solve(weight, bias, adjoint=adjoint).value.sum(), bias)[0]

    y = case.truth(weight, bias).detach()
    for terms in (1, 4):
        z = y
        for _ in range(terms):
            z = case.fn(z, weight, bias)
        assert_close(gradient(Neumann(terms)), torch.autograd.grad(z.sum(), bias)[0])
    assert_close(gradient(OneStepAdjoint()), gradient(Neumann(1)))
    assert (gradient(OneStepAdjoint()) - gradient(Direct())).abs().max() > 1e-3
    assert_close(gradient(Neumann(60)), gradient(Direct()))


def test_a_shared_argument_gets_the_sum_of_the_gradients_of_all_samples():
    case = CASES[2]
    weight, bias = tracked(case.args)
    together = torch.autograd.grad(case.solve(weight, bias).value.sum(), weight)[0]

    def alone(i, j):
        value = fixed_point(case.fn, case.start[i, j], weight, bias[i, j], tol=1e-12).value
        return torch.autograd.grad(value.sum(), weight)[0]

    assert_close(together, sum(alone(i, j) for i in range(2) for j in range(2)))


def test_the_solution_is_freed_without_the_garbage_collector():
    case = CASES[0]
    gc.collect()
    gc.disable()
    try:
        args = tracked(case.args)
        value = case.solve(*args, solver=Anderson()).value
        torch.autograd.grad(value.sum(), args, create_graph=True)
        reference = weakref.ref(value)
        del value
        assert reference() is None
    finally:
        gc.enable()


def test_a_weight_makes_the_adjoint_of_a_stationary_point_symmetric(seeded) -> None:
    """z = A sigmoid(z) + b is a stationary point of a free energy, so CG gives the same derivatives as Direct."""
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(3, 5, 5, generator=generator, dtype=torch.float64)
    coupling = (draw + draw.mT).requires_grad_()
    field = torch.randn(3, 5, generator=generator, dtype=torch.float64).requires_grad_()

    def variance(z: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def solve(coupling: torch.Tensor, field: torch.Tensor, **options: Any) -> torch.Tensor:
        return fixed_point(
            lambda z, a, b: ((a + a.mT) / 2 @ torch.sigmoid(z)[..., None])[..., 0] + b,
            torch.zeros(3, 5, dtype=torch.float64),
            coupling,
            field,
            solver=AdaptivePicard(),
            tol=1e-13,
            max_steps=2000,
            **options,
        ).value

    plain = solve(coupling, field)
    weighted = solve(coupling, field, weight=variance, adjoint=CG(tol=1e-13))
    torch.testing.assert_close(weighted, plain, rtol=1e-11, atol=1e-11)
    for ours, expected in zip(
        torch.autograd.grad(weighted.square().sum(), (coupling, field)),
        torch.autograd.grad(plain.square().sum(), (coupling, field)),
        strict=True,
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    with seeded(0):
        options = {"weight": variance, "adjoint": CG(tol=1e-13)}
        assert gradgradcheck(lambda b: solve(coupling.detach(), b, **options), (field,))
