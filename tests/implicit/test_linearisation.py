"""A linearisation must not change any derivative."""

import pytest
import torch
from torch.autograd import forward_ad

from setgrad.implicit import GMRES, Direct, fixed_point
from tests.implicit.helpers import FORWARD_MODE

A = torch.linspace(0.05, 0.3, 6, dtype=torch.float64).reshape(2, 3)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def solve(a, *, adjoint, linearised, weight=None, mask=None):
    """Return the solution and the list of the points where the linearisation was evaluated."""

    def fn(y, a):
        return (a * y.sum(-1, keepdim=True)).cos()

    def linearisation(y, a):
        points.append(y)
        total = (a * y.sum(-1, keepdim=True)).detach()
        value = fn(y, a)
        return lambda v: value - a.detach() * total.sin() * (v - y).sum(-1, keepdim=True)

    points: list[torch.Tensor] = []
    y0 = torch.zeros_like(A)
    options = {"adjoint": adjoint, "tol": 1e-14, "max_steps": 500, "weight": weight, "mask": mask}
    solution = fixed_point(fn, y0, a, **options, linearisation=linearisation if linearised else None)
    return solution.value, points


@FORWARD_MODE
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("weight", [None, lambda y: 1 + y.square()], ids=["plain", "weighted"])
@pytest.mark.parametrize("adjoint", [GMRES(), Direct()], ids=["GMRES", "Direct"])
def test_derivatives_of_all_orders_and_modes_agree(adjoint, weight, mask):
    options = {"adjoint": adjoint, "weight": weight, "mask": mask}

    def derivatives(linearised):
        a = A.clone().requires_grad_()
        y, points = solve(a, linearised=linearised, **options)
        loss = (y * torch.arange(6.0, dtype=torch.float64).reshape(2, 3)).sum()
        (first_only,) = torch.autograd.grad(loss, a, retain_graph=True)
        assert len(points) == linearised
        (first,) = torch.autograd.grad(loss, a, create_graph=True)
        assert len(points) == 2 * linearised
        (second,) = torch.autograd.grad(first.square().sum(), a)
        jacobian = torch.func.jacrev(lambda a: solve(a, linearised=linearised, **options)[0])(A)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(A, torch.ones_like(A))
            tangent = forward_ad.unpack_dual(solve(dual, linearised=linearised, **options)[0]).tangent
        return y.detach(), first_only, first.detach(), second, jacobian, tangent

    for result, expected in zip(derivatives(True), derivatives(False), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


def test_an_unused_argument_has_gradient_zero():
    unused = torch.ones(3, dtype=torch.float64, requires_grad=True)
    start, linearisation = torch.zeros(2, 1, dtype=torch.float64), lambda y, a: lambda v: 0.5 * v + 1
    solution = fixed_point(lambda y, a: 0.5 * y + 1, start, unused, linearisation=linearisation)
    solution.value.sum().backward()
    assert unused.grad.tolist() == [0, 0, 0]
