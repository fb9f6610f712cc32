"""`Pathwise` and `SecondDifference`: values of Bernoulli samples, and derivatives against enumeration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from setgrad.errors import DerivativeError, OptionError
from setgrad.functions import (
    Bernoulli,
    Coverage,
    DeepSetFunction,
    Exact,
    FacilityLocation,
    FreshNoise,
    FromCallable,
    GraphCut,
    ItemNoise,
    Modular,
    Pathwise,
    SecondDifference,
)
from setgrad.sets import Sets
from tests.functions.contract import draw_sets
from tests.functions.enumeration import direction, enumerate_subsets, probabilities, wavy

SIZES = [5, 0, 1, 3]
KINDS = [Pathwise, SecondDifference]
CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}


def quadratic() -> FromCallable:
    """Return a function of whole subsets with interactions of pairs only: its second differences do not depend on S."""

    def value(items: Tensor, masks: Tensor) -> Tensor:
        x = masks.to(items.dtype)
        return torch.einsum("mi,ij,mj->m", x, torch.sin(items @ items.T), x)

    return FromCallable(value)


def slopes(estimator, bound, psi: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivative of the value, and the product of a vector with the derivative of the gradient."""
    point = psi.clone().requires_grad_()
    (first,) = torch.autograd.grad(estimator.value(bound, point).sum(), point)
    (second,) = torch.autograd.grad(estimator.gradient(bound, point), point, vector)
    return first, second


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [FacilityLocation(), Coverage(), Modular()], ids=["facility", "coverage", "mod"])
def test_values_equal_those_of_bernoulli(function, kind):
    sets = draw_sets(SIZES)
    bound, psi, selected = function.bind(sets), probabilities(sets), torch.tensor([8, 0, 3])
    plain, other = Bernoulli(7, ItemNoise(sets)), kind(7, ItemNoise(sets))
    for p in (psi, psi.clone().requires_grad_()):
        torch.testing.assert_close(other.value(bound, p).detach(), plain.value(bound, psi), **CLOSE)
        torch.testing.assert_close(other.gradient(bound, p).detach(), plain.gradient(bound, psi), **CLOSE)
        entries = other.gradient(bound, p, selected).detach()
        torch.testing.assert_close(entries, plain.gradient(bound, psi, selected), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_numbers_equal_those_of_bernoulli(kind):
    sets = draw_sets(SIZES)
    bound, psi = FacilityLocation().bind(sets), probabilities(sets)
    plain, other = Bernoulli(3, FreshNoise(4)), kind(3, FreshNoise(4))
    for _ in range(3):
        torch.testing.assert_close(other.gradient(bound, psi), plain.gradient(bound, psi), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_noise_repeats_its_numbers(kind):
    sets = draw_sets(SIZES)
    bound, psi = FacilityLocation().bind(sets), probabilities(sets)
    fresh = kind(3)
    assert not torch.equal(fresh.gradient(bound, psi), fresh.gradient(bound, psi))
    frozen = fresh.frozen()
    first = frozen.gradient(bound, psi)
    assert torch.equal(frozen.gradient(bound, psi), first)
    assert torch.equal(frozen.frozen().gradient(bound, psi), first)
    # The random numbers are the same, but the subsets depend on psi.
    assert not torch.equal(frozen.gradient(bound, 1 - psi), first)


# The relaxed graph cut is quadratic, so its slopes do not depend on the subset either.
@pytest.mark.parametrize(("kind", "make"), [(SecondDifference, quadratic), (Pathwise, GraphCut)])
def test_derivatives_of_pairs_are_exact_with_one_sample(kind, make):
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    truth = enumerate_subsets(make(), sets, psi, vector)
    estimator, bound = kind(1), make().bind(sets)
    torch.testing.assert_close(slopes(estimator, bound, psi, vector)[1], truth.product, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(estimator.hessian_vector(bound, psi, vector), truth.product, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("kind", "function"),
    [(SecondDifference, wavy()), (SecondDifference, FacilityLocation()), (Pathwise, FacilityLocation())],
    ids=["second, wavy", "second, facility", "pathwise, facility"],
)
def test_derivatives_are_unbiased(kind, function):
    # The relaxed facility location is the multilinear extension, whose slopes are the second differences.
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    truth = enumerate_subsets(function, sets, psi, vector)
    bound, estimator = function.bind(sets), kind(1, FreshNoise(0))
    draws = [slopes(estimator, bound, psi, vector) for _ in range(400)]
    for result, expected in zip(zip(*draws, strict=True), (truth.gradient, truth.product), strict=True):
        many = torch.stack(result)
        error = many.std(0) / len(many) ** 0.5
        assert ((many.mean(0) - expected).abs() < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_vector_is_the_derivative_along_the_vector(kind):
    sets = draw_sets(SIZES)
    bound, psi, vector = FacilityLocation().bind(sets), probabilities(sets), direction(sets)
    estimator = kind(5, FreshNoise(1)).frozen()
    rows = torch.autograd.functional.jacobian(lambda p: estimator.gradient(bound, p), psi)
    torch.testing.assert_close(estimator.hessian_vector(bound, psi, vector), rows @ vector, **CLOSE)
    assert torch.equal(rows.diagonal(), torch.zeros_like(psi))


@pytest.mark.parametrize("kind", KINDS)
def test_identical_items_have_identical_derivatives(kind):
    drawn = draw_sets([3])
    sets = Sets.from_lengths(drawn.values[[0, 1, 0, 2]], [4])
    psi = torch.tensor([0.3, 0.6, 0.3, 0.5], dtype=torch.float64, requires_grad=True)
    estimator = kind(5, ItemNoise(sets))
    gradient = estimator.gradient(FacilityLocation().bind(sets), psi)
    assert gradient[0] == gradient[2]
    first, second = (torch.autograd.grad(gradient[entry], psi, retain_graph=True)[0] for entry in (0, 2))
    torch.testing.assert_close(first, second, **CLOSE)


@pytest.mark.parametrize("kind", [Bernoulli, Pathwise, SecondDifference])
def test_identical_items_have_identical_products(kind, seeded):
    items = draw_sets([3]).values
    sets = Sets.from_lengths(items[[0, 1, 0, 2]], [4])
    with seeded(0):
        function = DeepSetFunction(items.shape[1], "mlp", dim=6, hidden=(8,)).double()
    psi = torch.full((4,), 0.4, dtype=torch.float64)
    vector = torch.tensor([0.5, -1.0, 0.5, 2.0], dtype=torch.float64)
    result = kind(7, ItemNoise(sets)).hessian_vector(function.bind(sets), psi, vector)
    assert torch.equal(result[0], result[2])
    shuffled = Sets.from_lengths(items[[2, 0, 0, 1]], [4])
    other = kind(7, ItemNoise(shuffled)).hessian_vector(function.bind(shuffled), psi, vector[[3, 0, 2, 1]])
    torch.testing.assert_close(other, result[[3, 0, 2, 1]])


def test_pathwise_masks_can_be_differentiated_twice(seeded):
    with seeded(0):
        function = DeepSetFunction(2, "mlp", dim=4, hidden=(8,)).double()
    sets = draw_sets([3, 1])
    bound, psi = function.bind(sets), torch.full((4,), 0.4, dtype=torch.float64, requires_grad=True)
    gradient = Pathwise(4).gradient(bound, psi)
    (slope,) = torch.autograd.grad(gradient.square().sum(), psi, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), psi)
    assert bend.isfinite().all()


@pytest.mark.parametrize("what", ["value", "gradient"])
def test_a_second_derivative_of_second_differences_raises(what):
    sets = draw_sets([3, 1])
    bound, psi = wavy().bind(sets), torch.full((4,), 0.4, dtype=torch.float64, requires_grad=True)
    estimator = SecondDifference(4)
    result = estimator.value(bound, psi) if what == "value" else estimator.gradient(bound, psi)
    # The loss is not linear, so that its gradient can be differentiated again.
    (slope,) = torch.autograd.grad(result.square().sum(), psi, create_graph=True)
    with pytest.raises(DerivativeError, match="a second one was requested"):
        torch.autograd.grad(slope.sum(), psi)


@pytest.mark.parametrize("what", ["value", "gradient"])
def test_derivatives_of_second_differences_are_the_same_under_vmap(what):
    sets = draw_sets([3, 1])
    bound, psi = wavy().bind(sets), probabilities(sets)
    compute = getattr(SecondDifference(4).frozen(), what)
    # Draw first, because random numbers inside vmap raise an error.
    compute(bound, psi)
    expected = torch.func.grad(lambda p: compute(bound, p).sin().sum())(psi)
    mapped = torch.func.vmap(lambda p: compute(bound, p).sin().sum())
    result = torch.func.grad(lambda p: mapped(p).sum())(torch.stack([psi, psi]))
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(result, torch.stack([expected, expected]), **CLOSE)


def test_pathwise_names_the_estimator_for_functions_of_whole_subsets():
    sets = draw_sets([3])
    with pytest.raises(OptionError, match="SecondDifference"):
        Pathwise(2).gradient(wavy().bind(sets), torch.full((3,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_results_have_no_graph_if_psi_has_none(kind):
    sets = draw_sets(SIZES)
    bound, psi = FacilityLocation().bind(sets), probabilities(sets)
    assert not kind(2).gradient(bound, psi).requires_grad
    with torch.no_grad():
        assert not kind(2).gradient(bound, psi.clone().requires_grad_()).requires_grad


def test_more_samples_give_smaller_errors():
    sets = draw_sets(SIZES)
    bound, psi, vector = wavy().bind(sets), probabilities(sets), direction(sets)
    exact = Exact().hessian_vector(bound, psi, vector)
    errors = [
        float((SecondDifference(m, ItemNoise(sets)).hessian_vector(bound, psi, vector) - exact).norm())
        for m in (8, 8192)
    ]
    assert errors[1] < errors[0] / 4
