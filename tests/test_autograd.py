"""Tracked tensors are recognised at every level of `torch.func`."""

import pytest
import torch
from torch.autograd import forward_ad

from setgrad._autograd import has_tangent, is_tracked, levels

# The first use of forward mode makes torch 2.13 warn.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

C = torch.tensor([[4.0], [9.0]], dtype=torch.float64)

# From a function of a tensor to its transform at C; then whether reverse mode and forward mode track the tensor.
TRANSFORMS = {
    "grad": (lambda f: torch.func.grad(f)(C), True, False),
    "jvp": (lambda f: torch.func.jvp(f, (C,), (C,))[1], False, True),
    "hessian": (lambda f: torch.func.hessian(f)(C), True, True),
    "grad of vmap": (lambda f: torch.func.grad(lambda c: torch.func.vmap(f)(c[None]).sum())(C), True, False),
    "vmap of grad": (lambda f: torch.func.vmap(torch.func.grad(f))(C[None]), True, False),
    "jvp of vmap": (lambda f: torch.func.jvp(torch.func.vmap(f), (C[None],), (C[None],))[1], False, True),
    "grad of jvp": (lambda f: torch.func.grad(lambda c: torch.func.jvp(f, (c,), (C,))[1])(C), True, True),
}


@pytest.mark.parametrize(("transform", "reverse", "forward"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_tracking_is_recognised_under_every_transform(transform, reverse, forward):
    def check(c):
        assert (is_tracked(c), has_tangent(c)) == (reverse, forward)
        assert (is_tracked(c.detach()), has_tangent(c.detach())) == (False, False)
        return c.square().sum()

    transform(check)


def test_a_tangent_below_another_transform_is_recognised():
    def check(c, d):
        assert has_tangent(c + d.detach()) and not is_tracked(c + d.detach())
        return (c * d).sum()

    torch.func.jvp(lambda c: torch.func.grad(lambda d: check(c, d))(C), (C,), (C,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(C, C)
        assert has_tangent(dual) and not has_tangent(C)
        torch.func.grad(lambda d: check(dual, d))(C)


def test_levels_are_listed_innermost_first():
    recorded = []

    def record(x):
        recorded.append(levels(x))
        return x

    torch.func.grad(lambda c: torch.func.vmap(record)(c).sum())(C)
    assert recorded == [[2, 1]] and levels(C) == []
