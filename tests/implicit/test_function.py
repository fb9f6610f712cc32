"""The user's function: captured tensors, modules with parameters and buffers, batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from setgrad.errors import OptionError
from setgrad.implicit import GMRES, Newton, argmin, compare_gradients, fixed_point, root
from tests.implicit.helpers import FORWARD_MODE, draw
from tests.test_autograd import TRANSFORMS, C

OPTIONS: dict[str, Any] = {"tol": 1e-12, "max_steps": 300}
START = torch.zeros(5, 4, dtype=torch.float64)


# --- captured tensors


@FORWARD_MODE
@pytest.mark.parametrize("transform", [row[0] for row in TRANSFORMS.values()], ids=TRANSFORMS)
@pytest.mark.parametrize("passed", [False, True], ids=["captured", "captured and passed"])
def test_captured_tensors_that_a_transform_differentiates_raise(transform, passed):
    def value(c):
        if passed:
            return root(lambda y, d: y * y - c - d, torch.ones_like(C), c).value.sum()
        return root(lambda y: y * y - c, torch.ones_like(C)).value.sum()

    with pytest.raises(OptionError, match=r"captures a tensor that requires a gradient.*pass it as an argument"):
        transform(value)


@FORWARD_MODE
@pytest.mark.parametrize("transform", [row[0] for row in TRANSFORMS.values()], ids=TRANSFORMS)
def test_arguments_have_the_right_derivative_under_every_transform(transform):
    result = transform(lambda c: root(lambda y, c: y * y - c, torch.ones_like(C), c, tol=1e-12).value.sum())
    torch.testing.assert_close(result, transform(lambda c: c.sqrt().sum()), rtol=1e-8, atol=1e-10)


@FORWARD_MODE
@pytest.mark.parametrize("grad", [True, False])
def test_a_captured_tangent_raises(grad):
    with nullcontext() if grad else torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(C, C)
        with pytest.raises(OptionError, match="captures a tensor that requires a gradient"):
            fixed_point(lambda y: 0.1 * y + dual, torch.ones_like(C))


def test_a_captured_tensor_that_vmap_maps_raises():
    with pytest.raises(OptionError, match=r"captures a tensor that torch\.func maps"):
        torch.func.vmap(lambda c: root(lambda y: y * y - c, torch.ones_like(C[0])).value)(C)


# --- modules and their buffers


class Scaled(nn.Module):
    """tanh(c y + u(x)) with three buffers: a scale c, a mask and a permutation of the unknowns."""

    c: Tensor
    on: Tensor
    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.full((4,), 0.3))
        self.register_buffer("on", torch.tensor([True, True, True, False]))
        self.register_buffer("order", torch.tensor([1, 0, 2, 3]))
        self.u = nn.Linear(3, 4)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return scaled(y, x, self.u.weight, self.u.bias, self.c, self.on, self.order)


class Residual(Scaled):
    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return super().forward(y, x) - y


class Objective(Scaled):
    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return (y.cosh() - self.on * self.c * self.u(x)[..., self.order] * y).sum(-1)


def scaled(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *buffers: Tensor) -> Tensor:
    c, on, order = buffers
    return torch.tanh(on * c * y + (x @ weight.T + bias)[..., order])


ENTRY_POINTS: dict[str, tuple[Callable[..., Any], type[Scaled]]] = {
    "fixed_point": (fixed_point, Scaled),
    "root": (root, Residual),
    "argmin": (argmin, Objective),
}


CHANGES: dict[str, Callable[[Scaled], Tensor]] = {
    "numbers": lambda module: module.c.mul_(3),
    "mask": lambda module: module.on.logical_not_(),
    "order": lambda module: module.order.copy_(module.order.flip(0)),
}


def make(kind: type[Scaled], seeded: Any) -> Scaled:
    with seeded(0):
        return kind().double()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_changing_a_buffer_before_the_backward_pass_raises(entry_point, change, seeded):
    solve, kind = ENTRY_POINTS[entry_point]
    module = make(kind, seeded)
    value = solve(module, START, draw(5, 3), **OPTIONS).value
    CHANGES[change](module)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


def test_a_module_gets_the_gradients_of_unrolled_steps(seeded):
    with seeded(0):
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
        module[0].get_parameter("weight").data.mul_(0.4)
    start = torch.zeros(2, 3, dtype=torch.float64)
    value = fixed_point(module, start, tol=1e-12).value
    gradients = torch.autograd.grad(value.square().sum(), list(module.parameters()))
    y = start
    for _ in range(100):
        y = module(y)
    expected = torch.autograd.grad(y.square().sum(), list(module.parameters()))
    torch.testing.assert_close(gradients, expected, rtol=1e-8, atol=1e-9)


def test_replacing_a_buffer_after_the_solve_has_no_effect(seeded):
    module = make(Scaled, seeded)
    weights = list(module.parameters())
    expected = torch.autograd.grad(fixed_point(module, START, draw(5, 3), **OPTIONS).value.sum(), weights)
    value = fixed_point(module, START, draw(5, 3), **OPTIONS).value
    module.c = 3 * module.c
    torch.testing.assert_close(torch.autograd.grad(value.sum(), weights), expected)


class Replacing(Scaled):
    """Replaces a buffer in every call by a tensor that is only valid inside a transform of torch.func."""

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        self.c = self.c + 0 * y.detach().mean()
        return super().forward(y, x)


@pytest.mark.parametrize("kind", [Scaled, Replacing])
def test_buffers_get_no_gradient_and_are_restored(kind, seeded):
    module, x = make(kind, seeded), draw(5, 3).requires_grad_()
    before = module.c
    value = fixed_point(module, START, x, **OPTIONS).value
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert module.c is before and before.grad is None and not before.requires_grad
    assert module.u.weight.grad.isfinite().all()


@FORWARD_MODE
@pytest.mark.parametrize("adjoint", [None, GMRES(tol=1e-13)], ids=["Direct", "GMRES"])
def test_module_derivatives_of_all_orders_and_modes(adjoint, seeded):
    module = make(Scaled, seeded).train()
    values = (draw(5, 3), module.u.weight.detach(), module.u.bias.detach())
    buffers = list(module.buffers())

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        parameters = {"inner.u.weight": weight, "inner.u.bias": bias}
        return torch.func.functional_call(Solved(module, adjoint), parameters, (x,))

    def plain(*args: Tensor) -> Tensor:
        fn = lambda y, *a: scaled(y, *a, *buffers)  # noqa: E731
        return fixed_point(fn, START, *args, adjoint=adjoint, **OPTIONS).value

    inputs = tuple(v.clone().requires_grad_() for v in values)
    with seeded(0):
        assert gradcheck(ours, inputs, fast_mode=True, check_forward_ad=True)
        assert gradgradcheck(ours, inputs, fast_mode=True)
    shifts = torch.tensor([0.0, 0.3], dtype=torch.float64)
    for result, expected in (
        (torch.func.jacrev(ours)(*values), torch.func.jacrev(plain)(*values)),
        (torch.func.jacfwd(ours)(*values), torch.func.jacfwd(plain)(*values)),
        (
            torch.func.vmap(lambda s: ours(values[0] + s, *values[1:]))(shifts),
            torch.func.vmap(lambda s: plain(values[0] + s, *values[1:]))(shifts),
        ),
    ):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)


class Solved(nn.Module):
    """A module around the solve, because `functional_call` replaces the parameters of a module that is called."""

    def __init__(self, inner: Scaled, adjoint: Any = None) -> None:
        super().__init__()
        self.inner, self.adjoint = inner, adjoint

    def forward(self, x: Tensor) -> Tensor:
        return fixed_point(self.inner, START, x, adjoint=self.adjoint, **OPTIONS).value


def test_buffers_can_be_mapped_by_vmap(seeded):
    """As in an ensemble whose members have different buffers."""
    module, x = Solved(make(Scaled, seeded)), draw(5, 3)
    buffers = torch.stack([module.inner.c, -module.inner.c])

    def solve(c: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"inner.c": c}, (x,))

    torch.testing.assert_close(torch.func.vmap(solve)(buffers), torch.stack([solve(c) for c in buffers]))


@FORWARD_MODE
def test_buffers_that_are_differentiated_raise(seeded):
    module, x = Solved(make(Scaled, seeded)), draw(5, 3)

    def solve(c: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"inner.c": c}, (x,))

    c = module.inner.c
    message = "captures a tensor that requires a gradient"
    with pytest.raises(OptionError, match=message):
        solve(c.clone().requires_grad_())
    with pytest.raises(OptionError, match=message):
        torch.func.grad(lambda c: solve(c).sum())(c)
    with pytest.raises(OptionError, match=message), forward_ad.dual_level():
        solve(forward_ad.make_dual(c, torch.ones_like(c)))


# Dynamo uses deprecated parts of torch.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_a_module_can_be_solved_under_compile(seeded):
    module, x = make(Scaled, seeded), draw(5, 3)
    weights = list(module.parameters())
    compiled = torch.compile(lambda x: fixed_point(module, START, x, **OPTIONS).value, backend="eager")
    expected = fixed_point(module, START, x, **OPTIONS).value
    result = compiled(x)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad(result.sum(), weights, retain_graph=True), torch.autograd.grad(expected.sum(), weights)
    )
    module.c.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_linearisation_and_preconditioner_get_no_buffers(seeded):
    module, counts = make(Scaled, seeded), []

    def linearisation(y: Tensor, *args: Tensor) -> Callable[[Tensor], Tensor]:
        counts.append(len(args))
        return lambda v: scaled(v, *args, *module.buffers())

    def precondition(y: Tensor, *args: Tensor) -> Tensor:
        counts.append(len(args))
        return -torch.ones_like(y)

    weights = list(module.parameters())
    expected = torch.autograd.grad(fixed_point(module, START, draw(5, 3), **OPTIONS).value.sum(), weights)
    options = OPTIONS | {"linearisation": linearisation, "precondition": precondition, "adjoint": GMRES(tol=1e-13)}
    result = torch.autograd.grad(fixed_point(module, START, draw(5, 3), **options).value.sum(), weights)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)
    assert counts == [3, 3]


def test_compare_gradients_leaves_buffers_out(seeded):
    result = compare_gradients(make(Scaled, seeded), START, draw(5, 3))
    assert result.shapes == ((5, 3), (4, 3), (4,))
    assert result.worst < 1e-6


# --- batch normalisation


def normed(tracked: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=tracked), nn.Tanh()).double()


@pytest.mark.parametrize("solve", [fixed_point, root, argmin, compare_gradients])
def test_batch_normalisation_by_batch_statistics_raises(solve, seeded):
    with seeded(0):
        module, untracked = normed(), normed(tracked=False).eval()
    with pytest.raises(OptionError, match=r"BatchNorm1d at '1' .* mixes samples.*put it into evaluation mode"):
        solve(module, START)
    with pytest.raises(OptionError, match="BatchNorm1d normalises"):
        solve(module[1], START)
    # Without running statistics also in evaluation mode.
    with pytest.raises(OptionError, match="BatchNorm1d at '1'"):
        solve(untracked, START)


def test_batch_normalisation_works_in_evaluation_mode(seeded):
    with seeded(0):
        module = normed().eval()
        module[0].get_parameter("weight").data.mul_(0.3)
    value = fixed_point(module, START, **OPTIONS).value
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(value.sum(), list(module.parameters())))


class Rows(nn.Module):
    """One sample that normalises over its own unknowns."""

    def __init__(self, tracked: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, track_running_stats=tracked).double()

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return 0.1 * self.norm((y + x).reshape(-1, 2)).reshape(y.shape)


def test_a_single_sample_may_normalise_over_its_unknowns():
    x = draw(8).requires_grad_()
    for solver in (None, Newton()):
        value = fixed_point(Rows(tracked=False), torch.zeros_like(x), x, solver=solver, **OPTIONS).value
        assert torch.autograd.grad(value.square().sum(), x)[0].isfinite().all()
    with pytest.raises(OptionError, match="writes running statistics"):
        fixed_point(Rows(tracked=True), torch.zeros_like(x), x)
