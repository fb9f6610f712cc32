"""Linearisations of the gains, and their cost, against differentiation of the gains."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from setgrad.functions import (
    DeepSetFunction,
    Gaussian,
    HorseFunction,
    InsetFunction,
    ItemNoise,
    Pathwise,
    _neural,
    deep_set_function,
)
from setgrad.implicit import GMRES
from setgrad.inference import ImplicitMeanField, mean_field
from setgrad.sets import Sets
from tests.inference.oracle import SCALES, amplify

ADJOINT = GMRES(tol=1e-14)
FUNCTIONS: dict[str, Callable[[], Any]] = {
    "deepset": lambda: DeepSetFunction(2, "mlp", dim=6, hidden=(16, 16)),
    "skip": lambda: DeepSetFunction(2, "mlp", dim=6, hidden=(16,), skip=True),
    "chunks": lambda: DeepSetFunction(2, "mlp", dim=6, hidden=(16, 16), max_flips=30),
    "inset": lambda: InsetFunction(2, "mlp", dim=6, hidden=(16, 16)),
    "complement": lambda: InsetFunction(2, "mlp", dim=6, hidden=(16, 16), complement=True),
    "horse": lambda: HorseFunction(2, "mlp", dim=8, hidden=(16, 16), slots=3),
}


@pytest.fixture
def sets():
    values = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Items 5 and 6 of the first set are identical.
    values[5] = values[6]
    return Sets.from_lengths(values, [7, 0, 1, 4])


@pytest.fixture(params=[Gaussian, Pathwise])
def estimator(request, sets):
    return request.param(5, ItemNoise(sets)).frozen()


@pytest.fixture
def make(seeded):
    def build(name):
        with seeded(0):
            function = FUNCTIONS[name]().double()
        amplify(function.rho, 3.0)
        return function

    return build


def has_linearisation(bound):
    """Return whether the function has a fast Jacobian."""
    masks = torch.full((2, 12), 0.5, dtype=torch.float64)
    return bound.linearisation(masks, torch.ones_like(masks)) is not None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_linearisation_has_the_value_and_the_first_derivatives(make, sets, estimator, name):
    bound = estimator.prepare(make(name).bind(sets))
    psi = torch.linspace(0, 1, 12, dtype=torch.float64).requires_grad_()
    expected = estimator.gradient(bound, psi)
    assert has_linearisation(bound)
    result = estimator.linearisation(bound, psi)(psi)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)
    inputs = (psi, *(t for t in bound.tensors() if t.requires_grad))
    for row in torch.eye(12, dtype=torch.float64):
        gradients = [torch.autograd.grad(y, inputs, row, retain_graph=True) for y in (result, expected)]
        for linear, plain in zip(*gradients, strict=True):
            torch.testing.assert_close(linear, plain, rtol=1e-10, atol=1e-10)


def derivatives(function, sets, estimator, scale):
    """Return first derivatives of a loss of the logits, without and with a graph, and second derivatives."""
    solver = ImplicitMeanField(adjoint=ADJOINT, tol=1e-13, max_steps=500)
    result = mean_field(function, sets, estimator=estimator, solver=solver, scale=scale)
    loss = (result.logits * torch.cos(torch.arange(12.0, dtype=torch.float64))).sum()
    parameters = list(function.parameters())
    without_graph = torch.autograd.grad(loss, parameters, retain_graph=True)
    first = torch.autograd.grad(loss, parameters, create_graph=True)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), parameters)
    return without_graph, first, second


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("name", ["deepset", "inset"])
def test_implicit_derivatives_equal_those_without_linearisation(make, sets, estimator, name, scale, monkeypatch):
    function = make(name)
    without_graph, first, second = derivatives(function, sets, estimator, scale)
    monkeypatch.setattr(_neural, "_MAX_ENTRIES", -1)
    assert not has_linearisation(function.bind(sets))
    expected = derivatives(function, sets, estimator, scale)
    size = max(float(g.abs().max()) for g in expected[2])
    assert size > 1e-6
    for linear, plain in zip((*without_graph, *first), (*expected[0], *expected[0]), strict=True):
        torch.testing.assert_close(linear, plain, rtol=1e-10, atol=1e-10)
    for linear, plain in zip(second, expected[2], strict=True):
        torch.testing.assert_close(linear, plain, rtol=1e-10, atol=1e-10 * max(1.0, size))


def test_rho_is_evaluated_once_per_step_and_once_in_the_backward_pass(make, sets, monkeypatch):
    calls = []
    apply_layers = deep_set_function.apply_layers

    def counted(*args, **options):
        calls.append(1)
        return apply_layers(*args, **options)

    monkeypatch.setattr(deep_set_function, "apply_layers", counted)
    result = mean_field(make("deepset"), sets, estimator=Gaussian(5), solver=ImplicitMeanField(adjoint=ADJOINT))
    assert len(calls) == int(torch.as_tensor(result.steps).max()) + 1
    calls.clear()
    result.value.sum().backward()
    assert int(result.solution.adjoint.steps.max()) > 1
    assert len(calls) == 1
