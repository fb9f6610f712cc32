"""`Relaxed`: F at fractional masks, exact where F is multilinear, with the derivatives of what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from setgrad.functions import (
    Coverage,
    DeepSetFunction,
    Exact,
    FacilityLocation,
    GraphCut,
    HorseFunction,
    InsetFunction,
    ItemScores,
    LogDeterminant,
    Modular,
    Relaxed,
    multilinear_gradient,
)
from tests.functions.contract import DIM, draw_sets
from tests.functions.enumeration import direction, enumerate_subsets, estimate, estimate_bound, probabilities

SIZES = [4, 0, 1, 3]
LEARNED: dict[str, Callable[[], Any]] = {
    "deep set": lambda: DeepSetFunction(DIM, "mlp", dim=4, hidden=(5, 5)),
    "deep set, context": lambda: DeepSetFunction(DIM, dim=8, hidden=(8, 8), relation=2),
    "inset": lambda: InsetFunction(DIM, dim=4, hidden=(5,)),
    "horse": lambda: HorseFunction(DIM, "mlp", dim=4, hidden=(5,), slots=2, heads=2),
    "item scores": lambda: ItemScores(DIM, dim=8),
}


@pytest.fixture
def inside():
    """Sets, probabilities away from 0 and 1, and a direction."""
    sets = draw_sets(SIZES)
    return sets, probabilities(sets).clamp(0.1, 0.9), direction(sets)


@pytest.mark.parametrize(
    "function", [Modular(), Coverage(), FacilityLocation(), GraphCut()], ids=lambda f: type(f).__name__
)
def test_multilinear_functions_are_exact(function):
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    truth = enumerate_subsets(function, sets, psi, vector)
    torch.testing.assert_close(estimate(function, sets, psi, vector, Relaxed()), truth, rtol=1e-11, atol=1e-11)


def test_the_value_at_a_corner_is_that_of_the_subset(seeded):
    sets = draw_sets(SIZES)
    corner = (direction(sets) > 0).double()
    with seeded(0):
        functions = [LogDeterminant(), DeepSetFunction(DIM, "mlp", dim=4, hidden=(5,)).double()]
    for function in functions:
        exact = Exact().value(function.bind(sets), corner)
        torch.testing.assert_close(Relaxed().value(function.bind(sets), corner), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_equal_finite_differences(name, inside, seeded):
    sets, psi, _ = inside
    with seeded(0):
        function = LEARNED[name]().double()
    bound, step = function.bind(sets), 1e-6
    gradient = Relaxed().gradient(bound, psi)
    for item in range(len(psi)):
        move = step * torch.nn.functional.one_hot(torch.tensor(item), len(psi))
        slope = (bound.value((psi + move)[None]) - bound.value((psi - move)[None])).sum() / (2 * step)
        torch.testing.assert_close(gradient[item], slope, rtol=1e-6, atol=1e-7)


def test_products_equal_finite_differences_and_can_be_differentiated(inside):
    sets, psi, vector = inside
    bound, step = LogDeterminant().bind(sets), 1e-5
    ahead, behind = (Relaxed().gradient(bound, psi + sign * step * vector) for sign in (1, -1))
    product = Relaxed().hessian_vector(bound, psi, vector)
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)
    assert product.abs().max() > 1e-3
    assert torch.autograd.gradcheck(lambda p: estimate_bound(Relaxed(), bound, p, vector), psi.requires_grad_())


def test_gradients_can_be_differentiated_by_parameters(inside, seeded):
    sets, psi, vector = inside
    with seeded(0):
        function = DeepSetFunction(DIM, "mlp", dim=4, hidden=(5,)).double()
    last = function.rho[-1]
    assert isinstance(last, torch.nn.Linear)
    weight = last.weight

    def slope() -> torch.Tensor:
        return multilinear_gradient(function, sets, psi, estimator=Relaxed()) @ vector

    (gradient,) = torch.autograd.grad(slope(), weight)
    # The gradient is linear in the weights of the last layer.
    torch.testing.assert_close((gradient * weight).sum(), slope(), rtol=1e-10, atol=1e-12)


def test_a_set_has_the_same_result_in_any_batch(inside, seeded):
    sets, psi, _ = inside
    with seeded(0):
        function = DeepSetFunction(DIM, dim=8, hidden=(8,)).double()
    together = Relaxed().gradient(function.bind(sets), psi)
    alone = Relaxed().gradient(function.bind(sets[3:]), psi[5:])
    torch.testing.assert_close(together[5:], alone, rtol=1e-12, atol=1e-12)
    assert Relaxed().restrict(sets) == Relaxed()
