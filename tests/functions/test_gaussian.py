"""`Gaussian` is exact or close to it where expected, and its derivatives are those of its estimate."""

from __future__ import annotations

from typing import final

import pytest
import torch
from torch import Tensor

from setgrad.functions import (
    BoundSetFunction,
    Coverage,
    Exact,
    FacilityLocation,
    FreshNoise,
    Gaussian,
    GraphCut,
    ItemNoise,
    LogDeterminant,
    Modular,
    multilinear_gradient,
    multilinear_hessian_vector,
    multilinear_value,
)
from setgrad.sets import Sets
from tests.functions.contract import draw_sets
from tests.functions.enumeration import Truth, direction, estimate_bound, probabilities

SIZES = [4, 0, 1, 3]
MULTILINEAR = {"coverage": Coverage(), "facility location": FacilityLocation(), "graph cut": GraphCut()}
SMOOTH = {**MULTILINEAR, "log-determinant": LogDeterminant()}


@pytest.mark.parametrize("name", SMOOTH)
def test_certain_items_give_the_exact_result(name):
    sets, function = draw_sets(SIZES), SMOOTH[name]
    psi = (direction(sets) > 0).double()
    for compute in (multilinear_value, multilinear_gradient):
        exact = compute(function, sets, psi, estimator=Exact())
        torch.testing.assert_close(compute(function, sets, psi, estimator=Gaussian(1)), exact, rtol=1e-12, atol=1e-12)


def test_modular_functions_have_exact_gradients():
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    gradient = multilinear_gradient(Modular(), sets, psi, estimator=Gaussian(1))
    torch.testing.assert_close(gradient, sets.values.sum(1), rtol=1e-15, atol=1e-15)
    product = multilinear_hessian_vector(Modular(), sets, psi, vector, estimator=Gaussian(1))
    assert torch.equal(product, torch.zeros_like(psi))


def assert_unbiased(estimates: list[Tensor], truth: Tensor) -> None:
    """Assert that the mean of the estimates is within 4 standard errors of the truth, in every coordinate."""
    table = torch.stack(estimates)
    error, spread = (table.mean(0) - truth).abs(), table.std(0) / len(table) ** 0.5
    assert bool((error <= 4 * spread + 1e-12).all())


@final
class _Square(BoundSetFunction):
    """The square of a sum. It is not multilinear, but unbiased if the masks have the variance of the items."""

    relaxed = True

    def __init__(self, sets: Sets) -> None:
        self.sets, self.inner = sets, Modular().bind(sets)

    def value(self, masks: Tensor) -> Tensor:
        return self.inner.value(masks).square()


def test_masks_have_the_mean_and_variance_of_the_items():
    sets = draw_sets(SIZES)
    psi, estimator, bound = probabilities(sets), Gaussian(32, FreshNoise(seed=5)), _Square(sets)
    assert_unbiased([estimator.value(bound, psi) for _ in range(200)], Exact().value(bound, psi))
    assert_unbiased([estimator.gradient(bound, psi) for _ in range(200)], Exact().gradient(bound, psi))


@pytest.mark.parametrize("name", MULTILINEAR)
def test_multilinear_functions_are_unbiased(name):
    sets, function = draw_sets(SIZES), SMOOTH[name]
    psi, vector, estimator, repeats = probabilities(sets), direction(sets), Gaussian(32, FreshNoise(seed=5)), 200

    for compute in (multilinear_value, multilinear_gradient):
        estimates = [compute(function, sets, psi, estimator=estimator) for _ in range(repeats)]
        assert_unbiased(estimates, compute(function, sets, psi, estimator=Exact()))
    # Near 0 and 1 the slope of the root of psi (1 - psi) is unbounded, and so is the variance.
    inside = psi.clamp(0.1, 0.9)
    products = [multilinear_hessian_vector(function, sets, inside, vector, estimator=estimator) for _ in range(repeats)]
    assert_unbiased(products, multilinear_hessian_vector(function, sets, inside, vector, estimator=Exact()))


@pytest.mark.parametrize(
    ("function", "bound"),
    [(LogDeterminant(), 0.08), (LogDeterminant(ridge=10.0), 0.02), (LogDeterminant(ridge=0.05), 0.25)],
    ids=["log-determinant", "nearly linear", "strongly curved"],
)
def test_the_bias_is_small(function, bound, record_property):
    sets = draw_sets([6, 0, 1, 10])
    psi = probabilities(sets)
    truth = multilinear_gradient(function, sets, psi, estimator=Exact())
    gradient = multilinear_gradient(function, sets, psi, estimator=Gaussian(20_000, FreshNoise(seed=6)))
    error = float((gradient - truth).norm() / truth.norm())
    record_property("relative error of the Gaussian gradient", error)
    assert error < bound


def fixed_gaussian(sets: Sets) -> Gaussian:
    """Return an estimator that draws the same numbers at every call."""
    return Gaussian(3, ItemNoise(sets, seed=4))


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("identical", [False, True], ids=["", "identical items"])
def test_products_equal_differences_of_the_estimated_gradient(name, identical):
    sets, function = draw_sets([4, 0, 2], seed=2), SMOOTH[name]
    if identical:
        sets = sets.with_values(sets.values[[0, 1, 0, 3, 4, 4]])
    psi, vector, step = 0.2 + 0.6 * direction(sets).sigmoid(), direction(sets, seed=3), 1e-6
    estimator = fixed_gaussian(sets)

    def gradient(psi: Tensor) -> Tensor:
        return multilinear_gradient(function, sets, psi, estimator=estimator)

    expected = (gradient(psi + step * vector) - gradient(psi - step * vector)) / (2 * step)
    product = multilinear_hessian_vector(function, sets, psi, vector, estimator=estimator)
    torch.testing.assert_close(product, expected, rtol=1e-6, atol=1e-7)
    assert bool((expected.abs() > 1e-3).any())


def test_products_need_no_graph_and_return_none():
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    with torch.no_grad():
        product = multilinear_hessian_vector(GraphCut(), sets, psi, vector, estimator=fixed_gaussian(sets))
    assert not product.requires_grad
    repeated = multilinear_hessian_vector(GraphCut(), sets, psi, vector, estimator=fixed_gaussian(sets))
    torch.testing.assert_close(repeated, product)


@pytest.mark.parametrize("name", MULTILINEAR)
def test_derivatives_by_psi_equal_finite_differences(name):
    sets, function = draw_sets([3, 0, 1]), SMOOTH[name]
    vector = direction(sets)

    def all_three(psi: Tensor) -> Truth:
        return estimate_bound(fixed_gaussian(sets), function.bind(sets), psi, vector)

    psi = torch.tensor([0.3, 0.6, 0.8, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(all_three, psi)


def test_derivatives_at_0_and_1_are_finite():
    sets = draw_sets([3, 0, 1])
    psi = torch.tensor([0.0, 1.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    for function in SMOOTH.values():
        gradient = multilinear_gradient(function, sets, psi, estimator=fixed_gaussian(sets))
        (slope,) = torch.autograd.grad(gradient.sum(), psi)
        assert bool(slope.isfinite().all())


def test_derivatives_by_parameters_equal_finite_differences():
    sets = draw_sets([3, 0, 1])
    psi, vector = probabilities(sets), direction(sets)

    def all_three(penalty: Tensor) -> Truth:
        return estimate_bound(fixed_gaussian(sets), GraphCut(penalty=penalty).bind(sets), psi, vector)

    assert torch.autograd.gradcheck(all_three, torch.tensor(0.4, dtype=torch.float64, requires_grad=True))
