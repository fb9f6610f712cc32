"""A tensor that a function captures is refused whoever follows it, and whoever follows a tensor is seen."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd import forward_ad

from setgrad._autograd import has_tangent, is_tracked, levels
from setgrad.errors import OptionError
from setgrad.implicit import fixed_point, root

# Of torch's own forward mode.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

C = torch.tensor([[4.0], [9.0]], dtype=torch.float64)
START = torch.ones_like(C)

# From a function of a tensor to a transform of it at C, with what follows the tensor: reverse mode, forward mode.
WAYS = {
    "grad": (lambda f: torch.func.grad(f)(C), True, False),
    "jvp": (lambda f: torch.func.jvp(f, (C,), (C,))[1], False, True),
    "hessian": (lambda f: torch.func.hessian(f)(C), True, True),
    "grad of vmap": (lambda f: torch.func.grad(lambda c: torch.func.vmap(f)(c[None]).sum())(C), True, False),
    "vmap of grad": (lambda f: torch.func.vmap(torch.func.grad(f))(C[None]), True, False),
    "jvp of vmap": (lambda f: torch.func.jvp(torch.func.vmap(f), (C[None],), (C[None],))[1], False, True),
    "grad of jvp": (lambda f: torch.func.grad(lambda c: torch.func.jvp(f, (c,), (C,))[1])(C), True, True),
}


@pytest.mark.parametrize(("transform", "reverse", "forward"), WAYS.values(), ids=WAYS)
def test_who_follows_a_tensor_is_seen_at_every_level(transform, reverse, forward):
    def look(c):
        assert (is_tracked(c), has_tangent(c)) == (reverse, forward)
        assert (is_tracked(c.detach()), has_tangent(c.detach())) == (False, False)
        return c.square().sum()

    transform(look)


def test_a_tangent_below_another_transform_is_seen():
    def inside(c, d):
        assert has_tangent(c + d.detach()) and not is_tracked(c + d.detach())
        return (c * d).sum()

    torch.func.jvp(lambda c: torch.func.grad(lambda d: inside(c, d))(C), (C,), (C,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(C, C)
        assert has_tangent(dual) and not has_tangent(C)
        torch.func.grad(lambda d: inside(dual, d))(C)


@pytest.mark.parametrize("transform", [way[0] for way in WAYS.values()], ids=WAYS)
@pytest.mark.parametrize("passed", [False, True], ids=["captured", "captured and passed"])
def test_what_is_captured_under_a_transform_is_refused(transform, passed):
    def value(c):
        if passed:
            return root(lambda y, d: y * y - c - d, START, c).value.sum()
        return root(lambda y: y * y - c, START).value.sum()

    with pytest.raises(OptionError, match=r"captures a tensor that requires a gradient.*pass it as an argument"):
        transform(value)


@pytest.mark.parametrize("transform", [way[0] for way in WAYS.values()], ids=WAYS)
def test_what_is_passed_under_a_transform_has_its_derivative(transform):
    found = transform(lambda c: root(lambda y, c: y * y - c, START, c, tol=1e-12).value.sum())
    torch.testing.assert_close(found, transform(lambda c: c.sqrt().sum()), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("grad", [True, False])
def test_a_captured_tangent_is_refused(grad):
    with nullcontext() if grad else torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(C, C)
        with pytest.raises(OptionError, match="captures a tensor that requires a gradient"):
            fixed_point(lambda y: 0.1 * y + dual, START)


def test_what_is_captured_and_mapped_is_refused():
    with pytest.raises(OptionError, match=r"captures a tensor that torch\.func maps"):
        torch.func.vmap(lambda c: root(lambda y: y * y - c, START[0]).value)(C)


def test_levels_are_named_from_the_inside():
    seen = []
    torch.func.grad(lambda c: torch.func.vmap(lambda x: seen.append(levels(x)) or x)(c).sum())(C)
    assert seen == [[2, 1]] and levels(C) == []
