"""`Pathwise` and `SecondDifference`: Bernoulli samples in value, and derivatives checked against enumeration."""

from __future__ import annotations

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
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def quadratic() -> FromCallable:
    """Whole subsets only, with interactions of pairs and no more: its second differences do not depend on S."""

    def value(items: Tensor, masks: Tensor) -> Tensor:
        x = masks.to(items.dtype)
        return torch.einsum("mi,ij,mj->m", x, torch.sin(items @ items.T), x)

    return FromCallable(value)


def slopes(estimator, bound, psi: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Derivative of the value, and derivative of the gradient along a vector from the left."""
    point = psi.clone().requires_grad_()
    (first,) = torch.autograd.grad(estimator.value(bound, point).sum(), point)
    (second,) = torch.autograd.grad(estimator.gradient(bound, point), point, vector)
    return first, second


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [FacilityLocation(), Coverage(), Modular()], ids=["facility", "coverage", "mod"])
def test_values_are_those_of_bernoulli(function, kind):
    sets = draw_sets(SIZES)
    bound, psi, wanted = function.bind(sets), probabilities(sets), torch.tensor([8, 0, 3])
    plain, other = Bernoulli(7, ItemNoise(sets)), kind(7, ItemNoise(sets))
    for p in (psi, psi.clone().requires_grad_()):
        torch.testing.assert_close(other.value(bound, p).detach(), plain.value(bound, psi), **CLOSE)
        torch.testing.assert_close(other.gradient(bound, p).detach(), plain.gradient(bound, psi), **CLOSE)
        part = other.gradient(bound, p, wanted).detach()
        torch.testing.assert_close(part, plain.gradient(bound, psi, wanted), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_noise_is_drawn_as_bernoulli_draws_it(kind):
    sets = draw_sets(SIZES)
    bound, psi = FacilityLocation().bind(sets), probabilities(sets)
    plain, other = Bernoulli(3, FreshNoise(4)), kind(3, FreshNoise(4))
    for _ in range(3):
        torch.testing.assert_close(other.gradient(bound, psi), plain.gradient(bound, psi), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_noise_repeats(kind):
    sets = draw_sets(SIZES)
    bound, psi = FacilityLocation().bind(sets), probabilities(sets)
    fresh = kind(3)
    assert not torch.equal(fresh.gradient(bound, psi), fresh.gradient(bound, psi))
    frozen = fresh.frozen()
    first = frozen.gradient(bound, psi)
    assert torch.equal(frozen.gradient(bound, psi), first)
    assert torch.equal(frozen.frozen().gradient(bound, psi), first)
    # The numbers stay, the subsets follow psi.
    assert not torch.equal(frozen.gradient(bound, 1 - psi), first)


def test_second_differences_of_pairs_are_exact_with_one_sample():
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    truth = enumerate_subsets(quadratic(), sets, psi, vector)
    estimator, bound = SecondDifference(1), quadratic().bind(sets)
    torch.testing.assert_close(slopes(estimator, bound, psi, vector)[1], truth.product, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(estimator.hessian_vector(bound, psi, vector), truth.product, rtol=1e-10, atol=1e-11)


def test_path_wise_derivatives_of_pairs_are_exact_with_one_sample():
    # The relaxed graph cut is multilinear in pairs, so its slopes do not depend on the subset either.
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    truth = enumerate_subsets(GraphCut(), sets, psi, vector)
    estimator, bound = Pathwise(1), GraphCut().bind(sets)
    torch.testing.assert_close(slopes(estimator, bound, psi, vector)[1], truth.product, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(estimator.hessian_vector(bound, psi, vector), truth.product, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("kind", "function"),
    [(SecondDifference, wavy()), (SecondDifference, FacilityLocation()), (Pathwise, FacilityLocation())],
    ids=["second, wavy", "second, facility", "path-wise, facility"],
)
def test_derivatives_are_right_in_expectation(kind, function):
    # The relaxed facility location is its multilinear extension, whose slopes are the second differences.
    sets = draw_sets(SIZES)
    psi, vector = probabilities(sets), direction(sets)
    truth = enumerate_subsets(function, sets, psi, vector)
    bound, estimator = function.bind(sets), kind(1, FreshNoise(0))
    draws = [slopes(estimator, bound, psi, vector) for _ in range(400)]
    for found, wanted in zip(zip(*draws, strict=True), (truth.gradient, truth.product), strict=True):
        many = torch.stack(found)
        error = many.std(0) / len(many) ** 0.5
        assert ((many.mean(0) - wanted).abs() < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_vector_is_the_derivative_along_the_vector(kind):
    sets = draw_sets(SIZES)
    bound, psi, vector = FacilityLocation().bind(sets), probabilities(sets), direction(sets)
    estimator = kind(5, FreshNoise(1)).frozen()
    rows = torch.autograd.functional.jacobian(lambda p: estimator.gradient(bound, p), psi)
    torch.testing.assert_close(estimator.hessian_vector(bound, psi, vector), rows @ vector, **CLOSE)
    assert torch.equal(rows.diagonal(), torch.zeros_like(psi))


@pytest.mark.parametrize("kind", KINDS)
def test_identical_items_get_identical_derivatives(kind):
    drawn = draw_sets([3])
    sets = Sets.from_lengths(drawn.values[[0, 1, 0, 2]], [4])
    psi = torch.tensor([0.3, 0.6, 0.3, 0.5], dtype=torch.float64, requires_grad=True)
    estimator = kind(5, ItemNoise(sets))
    gradient = estimator.gradient(FacilityLocation().bind(sets), psi)
    assert gradient[0] == gradient[2]
    first, second = (torch.autograd.grad(gradient[entry], psi, retain_graph=True)[0] for entry in (0, 2))
    torch.testing.assert_close(first, second, **CLOSE)


@pytest.mark.parametrize("kind", [Bernoulli, Pathwise, SecondDifference])
def test_identical_items_get_identical_products(kind, seeded):
    items = draw_sets([3]).values
    sets = Sets.from_lengths(items[[0, 1, 0, 2]], [4])
    with seeded(0):
        function = DeepSetFunction(items.shape[1], "mlp", dim=6, hidden=(8,)).double()
    psi = torch.full((4,), 0.4, dtype=torch.float64)
    vector = torch.tensor([0.5, -1.0, 0.5, 2.0], dtype=torch.float64)
    found = kind(7, ItemNoise(sets)).hessian_vector(function.bind(sets), psi, vector)
    assert torch.equal(found[0], found[2])
    turned = Sets.from_lengths(items[[2, 0, 0, 1]], [4])
    other = kind(7, ItemNoise(turned)).hessian_vector(function.bind(turned), psi, vector[[3, 0, 2, 1]])
    torch.testing.assert_close(other, found[[3, 0, 2, 1]])


def test_path_wise_masks_can_be_differentiated_twice(seeded):
    with seeded(0):
        function = DeepSetFunction(2, "mlp", dim=4, hidden=(8,)).double()
    sets = draw_sets([3, 1])
    bound, psi = function.bind(sets), torch.full((4,), 0.4, dtype=torch.float64, requires_grad=True)
    gradient = Pathwise(4).gradient(bound, psi)
    (slope,) = torch.autograd.grad(gradient.square().sum(), psi, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), psi)
    assert bend.isfinite().all()


@pytest.mark.parametrize("what", ["value", "gradient"])
def test_second_differences_refuse_another_derivative(what):
    sets = draw_sets([3, 1])
    bound, psi = wavy().bind(sets), torch.full((4,), 0.4, dtype=torch.float64, requires_grad=True)
    estimator = SecondDifference(4)
    found = estimator.value(bound, psi) if what == "value" else estimator.gradient(bound, psi)
    # The loss bends, so that there is something to differentiate again.
    (slope,) = torch.autograd.grad(found.square().sum(), psi, create_graph=True)
    with pytest.raises(DerivativeError, match="a second one was requested"):
        torch.autograd.grad(slope.sum(), psi)


@pytest.mark.parametrize("what", ["value", "gradient"])
def test_derivatives_of_second_differences_are_kept_under_vmap(what):
    sets = draw_sets([3, 1])
    bound, psi = wavy().bind(sets), probabilities(sets)
    ask = getattr(SecondDifference(4).frozen(), what)
    # The draw is made before, because vmap refuses to.
    ask(bound, psi)
    wanted = torch.func.grad(lambda p: ask(bound, p).sin().sum())(psi)
    mapped = torch.func.vmap(lambda p: ask(bound, p).sin().sum())
    found = torch.func.grad(lambda p: mapped(p).sum())(torch.stack([psi, psi]))
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(found, torch.stack([wanted, wanted]), **CLOSE)


def test_what_is_refused():
    sets = draw_sets([3])
    psi = torch.full((3,), 0.5, dtype=torch.float64)
    with pytest.raises(OptionError, match="SecondDifference"):
        Pathwise(2).gradient(wavy().bind(sets), psi)
    for kind in KINDS:
        with pytest.raises(OptionError, match="at least 1"):
            kind(0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_graph_no_derivative(kind):
    sets = draw_sets(SIZES)
    bound, psi = FacilityLocation().bind(sets), probabilities(sets)
    assert not kind(2).gradient(bound, psi).requires_grad
    with torch.no_grad():
        assert not kind(2).gradient(bound, psi.clone().requires_grad_()).requires_grad


def test_more_samples_come_nearer_to_the_truth():
    sets = draw_sets(SIZES)
    bound, psi, vector = wavy().bind(sets), probabilities(sets), direction(sets)
    exact = Exact().hessian_vector(bound, psi, vector)
    errors = [
        float((SecondDifference(m, ItemNoise(sets)).hessian_vector(bound, psi, vector) - exact).norm())
        for m in (8, 8192)
    ]
    assert errors[1] < errors[0] / 4
