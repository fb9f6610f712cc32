"""A map that stands for another near the solution must not change any derivative."""

import pytest
import torch
from torch.autograd import forward_ad

from setgrad.implicit import GMRES, Direct, fixed_point

A = torch.linspace(0.05, 0.3, 6, dtype=torch.float64).reshape(2, 3)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def solve(a, *, adjoint, tangent, weight=None, mask=None):
    def fn(y, a):
        return (a * y.sum(-1, keepdim=True)).cos()

    def line(y, a):
        seen.append(y)
        total = (a * y.sum(-1, keepdim=True)).detach()
        value = fn(y, a)
        return lambda v: value - a.detach() * total.sin() * (v - y).sum(-1, keepdim=True)

    seen = []
    y0 = torch.zeros_like(A)
    options = {"adjoint": adjoint, "tol": 1e-14, "max_steps": 500, "weight": weight, "mask": mask}
    found = fixed_point(fn, y0, a, **options, tangent=line if tangent else None)
    return found.value, seen


# Of torch's own forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("weight", [None, lambda y: 1 + y.square()], ids=["plain", "weighted"])
@pytest.mark.parametrize("adjoint", [GMRES(), Direct()], ids=["GMRES", "Direct"])
def test_all_orders_and_modes_agree(adjoint, weight, mask):
    options = {"adjoint": adjoint, "weight": weight, "mask": mask}

    def derivatives(tangent):
        a = A.clone().requires_grad_()
        y, seen = solve(a, tangent=tangent, **options)
        loss = (y * torch.arange(6.0, dtype=torch.float64).reshape(2, 3)).sum()
        (alone,) = torch.autograd.grad(loss, a, retain_graph=True)
        assert len(seen) == tangent
        (first,) = torch.autograd.grad(loss, a, create_graph=True)
        assert len(seen) == 2 * tangent
        (second,) = torch.autograd.grad(first.square().sum(), a)
        mapped = torch.func.jacrev(lambda a: solve(a, tangent=tangent, **options)[0])(A)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(A, torch.ones_like(A))
            moved = forward_ad.unpack_dual(solve(dual, tangent=tangent, **options)[0]).tangent
        return y.detach(), alone, first.detach(), second, mapped, moved

    for found, wanted in zip(derivatives(True), derivatives(False), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_an_argument_without_influence_has_gradient_zero():
    idle = torch.ones(3, dtype=torch.float64, requires_grad=True)
    line = lambda y, a: lambda v: 0.5 * v + 1  # noqa: E731
    found = fixed_point(lambda y, a: 0.5 * y + 1, torch.zeros(2, 1, dtype=torch.float64), idle, tangent=line)
    found.value.sum().backward()
    assert idle.grad.tolist() == [0, 0, 0]
