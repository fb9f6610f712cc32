"""Modules with buffers: constants that must stay as they were, and those that no solver can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from setgrad.errors import OptionError
from setgrad.implicit import GMRES, Newton, argmin, compare_gradients, fixed_point, root

OPTIONS: dict[str, Any] = {"tol": 1e-12, "max_steps": 300}
# Of torch's own forward mode.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


class Scaled(nn.Module):
    """tanh(c y + u(x)) with a constant c, a mask and an order of the unknowns."""

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


DOORS: dict[str, tuple[Callable[..., Any], type[Scaled]]] = {
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


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


START = torch.zeros(5, 4, dtype=torch.float64)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("door", DOORS)
def test_a_buffer_that_changed_before_the_backward_pass_is_noticed(door, change, seeded):
    solve, kind = DOORS[door]
    module = make(kind, seeded)
    value = solve(module, START, draw(5, 3), **OPTIONS).value
    CHANGES[change](module)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


def test_a_buffer_that_was_replaced_counts_as_it_was(seeded):
    module = make(Scaled, seeded)
    weights = list(module.parameters())
    wanted = torch.autograd.grad(fixed_point(module, START, draw(5, 3), **OPTIONS).value.sum(), weights)
    value = fixed_point(module, START, draw(5, 3), **OPTIONS).value
    module.c = 3 * module.c
    torch.testing.assert_close(torch.autograd.grad(value.sum(), weights), wanted)


class Replacing(Scaled):
    """Replaces a buffer in every call, by a tensor that does not outlive a transform of torch.func."""

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        self.c = self.c + 0 * y.detach().mean()
        return super().forward(y, x)


@pytest.mark.parametrize("kind", [Scaled, Replacing])
def test_buffers_get_no_gradient_and_stay(kind, seeded):
    module, x = make(kind, seeded), draw(5, 3).requires_grad_()
    before = module.c
    value = fixed_point(module, START, x, **OPTIONS).value
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert module.c is before and before.grad is None and not before.requires_grad
    assert module.u.weight.grad.isfinite().all()


@FORWARD_MODE
@pytest.mark.parametrize("adjoint", [None, GMRES(tol=1e-13)], ids=["Direct", "GMRES"])
def test_all_orders_and_modes(adjoint, seeded):
    module = make(Scaled, seeded).train()
    values = (draw(5, 3), module.u.weight.detach(), module.u.bias.detach())
    buffers = list(module.buffers())

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given = {"inside.u.weight": weight, "inside.u.bias": bias}
        return torch.func.functional_call(Solved(module, adjoint), given, (x,))

    def plain(*given: Tensor) -> Tensor:
        fn = lambda y, *a: scaled(y, *a, *buffers)  # noqa: E731
        return fixed_point(fn, START, *given, adjoint=adjoint, **OPTIONS).value

    inputs = tuple(v.clone().requires_grad_() for v in values)
    with seeded(0):
        assert gradcheck(ours, inputs, fast_mode=True, check_forward_ad=True)
        assert gradgradcheck(ours, inputs, fast_mode=True)
    shifts = torch.tensor([0.0, 0.3], dtype=torch.float64)
    for found, wanted in (
        (torch.func.jacrev(ours)(*values), torch.func.jacrev(plain)(*values)),
        (torch.func.jacfwd(ours)(*values), torch.func.jacfwd(plain)(*values)),
        (
            torch.func.vmap(lambda s: ours(values[0] + s, *values[1:]))(shifts),
            torch.func.vmap(lambda s: plain(values[0] + s, *values[1:]))(shifts),
        ),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


class Solved(nn.Module):
    """Parameters can be replaced only where a module is called."""

    def __init__(self, inside: nn.Module, adjoint: Any = None) -> None:
        super().__init__()
        self.inside, self.adjoint = inside, adjoint

    def forward(self, x: Tensor) -> Tensor:
        return fixed_point(self.inside, START, x, adjoint=self.adjoint, **OPTIONS).value


def test_buffers_that_are_mapped(seeded):
    """As in an ensemble whose members have constants of their own."""
    module, x = Solved(make(Scaled, seeded)), draw(5, 3)
    own = torch.stack([module.inside.c, -module.inside.c])

    def code(c: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"inside.c": c}, (x,))

    torch.testing.assert_close(torch.func.vmap(code)(own), torch.stack([code(c) for c in own]))


@FORWARD_MODE
def test_buffers_whose_derivative_would_be_lost_are_refused(seeded):
    module, x = Solved(make(Scaled, seeded)), draw(5, 3)

    def code(c: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"inside.c": c}, (x,))

    c = module.inside.c
    refused = pytest.raises(OptionError, match="captures a tensor that requires a gradient")
    with refused:
        code(c.clone().requires_grad_())
    with refused:
        torch.func.grad(lambda c: code(c).sum())(c)
    with refused, forward_ad.dual_level():
        code(forward_ad.make_dual(c, torch.ones_like(c)))


# Dynamo's own use of deprecated parts of torch.
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_call(seeded):
    torch._dynamo.reset()
    module, x = make(Scaled, seeded), draw(5, 3)
    weights = list(module.parameters())
    compiled = torch.compile(lambda x: fixed_point(module, START, x, **OPTIONS).value, backend="eager")
    wanted = fixed_point(module, START, x, **OPTIONS).value
    found = compiled(x)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), weights, retain_graph=True), torch.autograd.grad(wanted.sum(), weights)
    )
    module.c.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
    torch._dynamo.reset()


def test_what_the_caller_gives_sees_arguments_and_parameters_only(seeded):
    module, seen = make(Scaled, seeded), []

    def tangent(y: Tensor, *given: Tensor) -> Callable[[Tensor], Tensor]:
        seen.append(len(given))
        return lambda v: scaled(v, *given, *module.buffers())

    def precondition(y: Tensor, *given: Tensor) -> Tensor:
        seen.append(len(given))
        return -torch.ones_like(y)

    weights = list(module.parameters())
    wanted = torch.autograd.grad(fixed_point(module, START, draw(5, 3), **OPTIONS).value.sum(), weights)
    options = OPTIONS | {"tangent": tangent, "precondition": precondition, "adjoint": GMRES(tol=1e-13)}
    found = torch.autograd.grad(fixed_point(module, START, draw(5, 3), **options).value.sum(), weights)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert set(seen) == {3} and len(seen) == 2


def test_gradients_are_compared_for_arguments_and_parameters_only(seeded):
    found = compare_gradients(make(Scaled, seeded), START, draw(5, 3))
    assert found.shapes == ((5, 3), (4, 3), (4,))
    assert found.worst < 1e-6


def normed(tracked: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=tracked), nn.Tanh()).double()


@pytest.mark.parametrize("solve", [fixed_point, root, argmin, compare_gradients])
def test_batch_normalisation_is_refused_while_training(solve, seeded):
    with seeded(0):
        module, untracked = normed(), normed(tracked=False).eval()
    with pytest.raises(OptionError, match=r"BatchNorm1d at '1' .* mixes samples.*put it into evaluation mode"):
        solve(module, START)
    with pytest.raises(OptionError, match="BatchNorm1d normalises"):
        solve(module[1], START)
    # In evaluation mode too, without running statistics.
    with pytest.raises(OptionError, match="BatchNorm1d at '1'"):
        solve(untracked, START)


def test_batch_normalisation_in_evaluation_is_a_function_like_others(seeded):
    with seeded(0):
        module = normed().eval()
        module[0].weight.data.mul_(0.3)
    value = fixed_point(module, START, **OPTIONS).value
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(value.sum(), list(module.parameters())))


class Rows(nn.Module):
    """One sample whose unknowns are a batch."""

    def __init__(self, tracked: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, track_running_stats=tracked).double()

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        return 0.1 * self.norm((y + x).reshape(-1, 2)).reshape(y.shape)


def test_one_sample_may_normalise_over_itself():
    x = draw(8).requires_grad_()
    for solver in (None, Newton()):
        value = fixed_point(Rows(tracked=False), torch.zeros_like(x), x, solver=solver, **OPTIONS).value
        assert torch.autograd.grad(value.square().sum(), x)[0].isfinite().all()
    with pytest.raises(OptionError, match="writes running statistics"):
        fixed_point(Rows(tracked=True), torch.zeros_like(x), x)
