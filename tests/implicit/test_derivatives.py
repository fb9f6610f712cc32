"""Values and derivatives of every order, for every problem with every solver and every adjoint that fits."""

import gc
import weakref

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from setgrad.implicit import CG, AdaptivePicard, Anderson, Direct, Neumann, OneStepAdjoint, fixed_point
from tests.implicit.problems import CASES
from tests.implicit.solvers import BACKWARD, FORWARD

# torch's own forward mode compiles with a tool that torch 2.13 deprecates.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


def require(args):
    return tuple(a.clone().requires_grad_() for a in args)


def close(found, wanted, tol=1e-8):
    torch.testing.assert_close(found, wanted, rtol=tol, atol=tol)


@pytest.mark.parametrize(("case", "solver"), FORWARD, ids=str)
def test_every_solver_finds_the_solution_and_its_gradient(case, solver):
    args = require(case.args)
    options = {"max_steps": 3000} if type(solver).__name__ == "GradientDescent" else {}
    solution = case.solve(*args, solver=solver, **options)
    assert bool(solution.converged.all())
    wanted = case.truth(*args)
    close(solution.value, wanted)
    weights = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).reshape(wanted.shape)
    found = torch.autograd.grad((solution.unwrap() * weights).sum(), args)
    for a, b in zip(found, torch.autograd.grad((wanted * weights).sum(), args), strict=True):
        close(a, b)


@FORWARD_MODE
@pytest.mark.parametrize(("case", "adjoint"), BACKWARD, ids=str)
def test_every_adjoint_is_right_at_first_and_second_order(case, adjoint, seeded):
    args = require(case.args)

    def value(*a):
        return case.solve(*a, adjoint=adjoint).value

    with seeded(0):
        assert gradcheck(value, args, fast_mode=True)
        assert gradcheck(value, args, fast_mode=True, check_forward_ad=True, check_backward_ad=False)
        assert gradgradcheck(value, args, fast_mode=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_third_order_against_the_other_way(case):
    def third(value):
        args = require(case.args)
        y = value(*args).sin().sum()
        for _ in range(3):
            y = sum(g.square().sum() for g in torch.autograd.grad(y, args, create_graph=True))
        return y.detach()

    close(third(lambda *a: case.solve(*a).value), third(case.truth), tol=1e-7)


@FORWARD_MODE
@pytest.mark.parametrize("case", CASES, ids=str)
def test_transforms_of_torch_func(case):
    def loss(value):
        return lambda *a: value(*a).square().sum()

    places = tuple(range(len(case.args)))
    ours, other = loss(lambda *a: case.solve(*a).value), loss(case.truth)
    for found, wanted in (
        (torch.func.grad(ours, places)(*case.args), torch.func.grad(other, places)(*case.args)),
        (torch.func.hessian(ours)(*case.args), torch.func.hessian(other)(*case.args)),
        (torch.func.jacrev(lambda *a: case.solve(*a).value)(*case.args), torch.func.jacrev(case.truth)(*case.args)),
    ):
        found, wanted = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
        for a, b in zip(found, wanted, strict=True):
            close(a, b)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap_is_a_loop(case):
    shifts = torch.tensor([0.0, 0.05, -0.05], dtype=torch.float64)

    def value(shift):
        return case.solve(*case.args[:-1], case.args[-1] + shift).value

    mapped = torch.func.vmap(value)(shifts)
    slopes = torch.func.vmap(torch.func.jacrev(value))(shifts)
    for number, shift in enumerate(shifts):
        close(mapped[number], value(shift))
        close(slopes[number], torch.func.jacrev(value)(shift))


def test_named_approximations_are_what_their_names_say():
    case = CASES[0]
    weight, bias = require(case.args)

    def gradient(adjoint):
        return torch.autograd.grad(case.solve(weight, bias, adjoint=adjoint).value.sum(), bias)[0]

    y = case.truth(weight, bias).detach()
    # One step from the solution, and k of them, unrolled.
    for terms in (1, 4):
        z = y
        for _ in range(terms):
            z = case.fn(z, weight, bias)
        wanted = torch.autograd.grad(z.sum(), bias)[0]
        close(gradient(Neumann(terms)), wanted)
    close(gradient(OneStepAdjoint()), gradient(Neumann(1)))
    assert (gradient(OneStepAdjoint()) - gradient(Direct())).abs().max() > 1e-3
    close(gradient(Neumann(60)), gradient(Direct()))


def test_shared_arguments_get_the_sum_of_the_samples_gradients():
    case = CASES[2]
    weight, bias = require(case.args)
    whole = torch.autograd.grad(case.solve(weight, bias).value.sum(), weight)[0]
    parts = sum(
        torch.autograd.grad(fixed_point(case.fn, case.start[i, j], weight, bias[i, j], tol=1e-12).value.sum(), weight)[
            0
        ]
        for i in range(2)
        for j in range(2)
    )
    close(whole, parts)


def test_nothing_is_kept_alive():
    case = CASES[0]
    gc.collect()
    gc.disable()
    try:
        args = require(case.args)
        value = case.solve(*args, solver=Anderson()).value
        torch.autograd.grad(value.sum(), args, create_graph=True)
        gone = weakref.ref(value)
        del value
        assert gone() is None
    finally:
        gc.enable()


def test_a_weight_makes_the_adjoint_of_a_stationary_point_symmetric(seeded) -> None:
    """z = A sigmoid(z) + b is where a free energy is stationary: conjugate gradients give Direct's derivatives."""
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(3, 5, 5, generator=generator, dtype=torch.float64)
    coupling = (draw + draw.mT).requires_grad_()
    field = torch.randn(3, 5, generator=generator, dtype=torch.float64).requires_grad_()

    def variance(z: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def solve(coupling: torch.Tensor, field: torch.Tensor, **options: object) -> torch.Tensor:
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
