"""`Exact` against enumeration, its derivatives, and the errors of all estimators."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from setgrad.errors import OptionError, ShapeError
from setgrad.functions import (
    Bernoulli,
    Coverage,
    DeepSetFunction,
    Exact,
    ExtensionEstimator,
    FacilityLocation,
    FreshNoise,
    FromCallable,
    Gaussian,
    LogDeterminant,
    Modular,
    Pathwise,
    Relaxed,
    SecondDifference,
    multilinear_gradient,
    multilinear_hessian_vector,
    multilinear_value,
    rbf,
)
from setgrad.sets import Sets
from tests.functions.contract import DIM, draw_sets
from tests.functions.enumeration import (
    Truth,
    direction,
    enumerate_subsets,
    estimate,
    estimate_bound,
    probabilities,
    wavy,
)

ESTIMATORS: list[ExtensionEstimator] = [Exact(), Bernoulli(3), Gaussian(3)]
NAMES = ["Exact", "Bernoulli", "Gaussian"]
SAMPLED = (Gaussian, Pathwise, Bernoulli, SecondDifference)


@pytest.mark.parametrize("sizes", [[10], [4, 0, 7, 1], [3, 3], [0]], ids=str)
@pytest.mark.parametrize("function", [wavy(), FacilityLocation()], ids=["wavy", "facility"])
def test_exact_equals_the_sum_over_subsets(function, sizes):
    sets = draw_sets(sizes)
    psi, vector = probabilities(sets), direction(sets)
    truth = enumerate_subsets(function, sets, psi, vector)
    torch.testing.assert_close(estimate(function, sets, psi, vector, Exact()), truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("psi", [0.0, 1.0], ids=str)
def test_exact_at_a_corner_equals_the_function(psi):
    sets = draw_sets([4, 0, 1])
    corner = torch.full((5,), psi, dtype=torch.float64)
    value = multilinear_value(wavy(), sets, corner, estimator=Exact())
    torch.testing.assert_close(value, wavy().value(sets, corner[None].bool())[0], rtol=1e-15, atol=1e-15)
    gradient = multilinear_gradient(wavy(), sets, corner, estimator=Exact())
    torch.testing.assert_close(gradient, wavy().gains(sets, corner[None].bool())[0], rtol=1e-14, atol=1e-14)


# A warning of torch's forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("compute", [multilinear_value, multilinear_gradient])
@pytest.mark.parametrize(
    "estimator", [Exact(), Relaxed(), *(kind(3, FreshNoise(0)) for kind in SAMPLED)], ids=lambda e: type(e).__name__
)
def test_forward_mode_agrees_with_reverse_mode_or_raises(estimator, compute, seeded):
    sets = draw_sets([4, 0, 2])
    psi, vector = probabilities(sets), direction(sets)
    with seeded(0):
        function = DeepSetFunction(DIM, phi="mlp", dim=4, hidden=(5,)).double()
    frozen = estimator.frozen()

    def estimate(p: Tensor) -> Tensor:
        return compute(function, sets, p, estimator=frozen)

    if isinstance(estimator, Bernoulli | SecondDifference):
        with pytest.raises(OptionError, match="Gaussian"):
            torch.func.jvp(estimate, (psi,), (vector,))
        return
    forward = torch.func.jvp(estimate, (psi,), (vector,))[1]
    torch.testing.assert_close(forward, torch.func.jacrev(estimate)(psi) @ vector, rtol=1e-10, atol=1e-10)


def test_exact_can_be_differentiated_by_psi_twice():
    sets = draw_sets([3, 0, 1])
    bound, vector = wavy().bind(sets), direction(sets)
    psi = probabilities(sets).requires_grad_()
    weights = direction(sets, seed=9)
    assert torch.autograd.gradcheck(lambda p: estimate_bound(Exact(), bound, p, vector), psi)
    one = torch.ones((), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda p: Exact().gradient(bound, p) @ weights, psi, one)


def test_the_gradient_of_exact_is_the_derivative_of_its_value():
    sets = draw_sets([4, 0, 2])
    psi, vector = probabilities(sets).requires_grad_(), direction(sets)
    bound = wavy().bind(sets)
    (slope,) = torch.autograd.grad(Exact().value(bound, psi).sum(), psi)
    gradient = Exact().gradient(bound, psi)
    torch.testing.assert_close(gradient, slope, rtol=1e-14, atol=1e-14)
    (bend,) = torch.autograd.grad(gradient, psi, vector)
    torch.testing.assert_close(Exact().hessian_vector(bound, psi, vector), bend, rtol=1e-13, atol=1e-13)


def test_exact_can_be_differentiated_by_parameters_and_items():
    sets = draw_sets([3, 0, 1])
    psi, vector = probabilities(sets), direction(sets)

    def all_three(values: Tensor, gamma: Tensor) -> Truth:
        return estimate(LogDeterminant(rbf(gamma), ridge=0.5), sets.with_values(values), psi, vector, Exact())

    gamma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(all_three, (sets.values.clone().requires_grad_(), gamma))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_sampled_results_can_be_differentiated_by_parameters(estimator):
    sets = draw_sets([3, 0, 1])
    weights = torch.ones(2, dtype=torch.float64, requires_grad=True)
    gradient = multilinear_gradient(Coverage(weights), sets, probabilities(sets), estimator=estimator)
    (slope,) = torch.autograd.grad(gradient.sum(), weights)
    # The function is linear in its weights.
    torch.testing.assert_close(slope @ weights, gradient.sum())


@pytest.mark.parametrize("estimator", [Exact(), Bernoulli(3)], ids=["Exact", "Bernoulli"])
def test_any_callable_is_a_set_function(estimator):
    sets = draw_sets([3, 0, 1])
    psi, vector = probabilities(sets), direction(sets)

    def score(items: Tensor, masks: Tensor) -> Tensor:
        return (masks * items[:, 0]).sum(1)

    for function in (score, FromCallable(score)):
        gradient = multilinear_gradient(function, sets, psi, estimator=estimator)
        torch.testing.assert_close(gradient, sets.values[:, 0], rtol=1e-14, atol=1e-14)
        product = multilinear_hessian_vector(function, sets, psi, vector, estimator=estimator)
        torch.testing.assert_close(product, torch.zeros_like(psi), rtol=0, atol=1e-14)


def squared_size(items: Tensor, masks: Tensor, dtype: torch.dtype) -> Tensor:
    return (masks.sum(1) ** 2).to(dtype)


@pytest.mark.parametrize("estimator", [Exact(), Bernoulli(64), SecondDifference(64)], ids=lambda e: type(e).__name__)
def test_integer_functions_have_real_expectations(estimator):
    sets, psi = Sets.from_lengths(torch.zeros(5, 1), [3, 2]), torch.tensor([0.25, 0.5, 0.75, 0.5, 0.25])
    integer, real = (FromCallable(partial(squared_size, dtype=dtype)) for dtype in (torch.int64, torch.float32))
    estimator = estimator.frozen()
    result, truth = (estimate(f, sets, psi, torch.ones(5), estimator) for f in (integer, real))
    torch.testing.assert_close(result, truth, rtol=0, atol=0)
    assert truth.product.tolist() == pytest.approx([4.0, 4.0, 4.0, 2.0, 2.0])


def all_raise(message, function, sets, psi, estimator):
    """Assert that value, gradient and product raise an error."""
    for compute in (multilinear_value, multilinear_gradient):
        with pytest.raises(OptionError, match=message):
            compute(function, sets, psi, estimator=estimator)
    with pytest.raises(OptionError, match=message):
        multilinear_hessian_vector(function, sets, psi, direction(sets), estimator=estimator)


@pytest.mark.parametrize("estimator", [Gaussian(3), Pathwise(3), Relaxed()], ids=lambda e: type(e).__name__)
def test_functions_of_whole_subsets_cannot_be_relaxed(estimator):
    sets = draw_sets([3])
    all_raise("takes whole subsets only", wavy(), sets, probabilities(sets), estimator)


@pytest.mark.parametrize("make", [Exact, Relaxed, lambda: Bernoulli(3), lambda: Gaussian(3)])
def test_coordinates_select_entries_of_the_gradient(make):
    # Two new estimators, so that both draw the same numbers.
    sets, coordinates = draw_sets([4, 0, 2]), torch.tensor([5, 0, 0])
    bound, psi = LogDeterminant().bind(sets), probabilities(sets)
    entries = make().gradient(bound, psi, coordinates)
    torch.testing.assert_close(entries, make().gradient(bound, psi)[coordinates], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1]], ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_empty_and_tiny_batches(estimator, sizes):
    sets = draw_sets(sizes)
    psi, vector = probabilities(sets), direction(sets)
    for function in (Modular(), LogDeterminant()):
        result = estimate(function, sets, psi, vector, estimator)
        assert (result.value.shape, result.gradient.shape) == ((len(sizes),), psi.shape)
        torch.testing.assert_close(result.product, torch.zeros_like(psi), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")], ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_numbers_that_are_not_probabilities_raise(estimator, bad):
    psi = torch.tensor([0.5, bad], dtype=torch.float64)
    all_raise("between 0 and 1", Modular(), draw_sets([2]), psi, estimator)


@pytest.mark.parametrize(
    "estimator",
    [Exact(), Relaxed(), Bernoulli(4), Gaussian(4), Pathwise(4), SecondDifference(4)],
    ids=lambda e: type(e).__name__,
)
def test_psi_is_converted_to_the_type_of_the_items(estimator):
    for items, probabilities_type in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        sets, psi = draw_sets([3, 2]).to(items), torch.full((5,), 0.4, dtype=probabilities_type)
        assert {x.dtype for x in estimate(FacilityLocation(), sets, psi, psi, estimator)} == {items}


def test_shapes_are_checked():
    sets = draw_sets([2])
    with pytest.raises(ShapeError, match=r"psi must have shape \(2,\)"):
        multilinear_value(Modular(), sets, torch.rand(3, generator=torch.Generator()), estimator=Exact())
    with pytest.raises(ShapeError, match=r"the vector has shape \(1,\)"):
        multilinear_hessian_vector(Modular(), sets, torch.ones(2), torch.ones(1), estimator=Exact())


def test_a_callable_that_returns_a_wrong_shape_raises():
    with pytest.raises(ShapeError, match="one value for each of the 1 masks"):
        FromCallable(lambda items, masks: masks).value(draw_sets([2]), torch.ones(1, 2, dtype=torch.bool))


def test_exact_takes_up_to_20_items():
    def count(size: int) -> Tensor:
        sets = Sets.from_lengths(torch.ones(size, 1), [size])
        return multilinear_value(Modular(), sets, torch.full((size,), 0.5), estimator=Exact())

    # More subsets than are evaluated in one chunk.
    torch.testing.assert_close(count(16), torch.tensor([8.0]))
    with pytest.raises(OptionError, match=r"the largest set has 21.*\n?.*Bernoulli"):
        count(21)


@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize("samples", [0, -1, 2.5])
def test_estimators_need_at_least_one_sample(kind, samples):
    with pytest.raises(OptionError, match="a whole number of samples, at least 1"):
        kind(samples)


def test_a_prepared_function_has_the_same_values(seeded):
    """`Exact` tabulates F once, which changes neither values of subsets nor gradients of the extension."""
    with seeded(0):
        function = DeepSetFunction(DIM, "mlp", dim=8, hidden=(8, 8)).double()
    sets = draw_sets([3, 0, 4, 1])
    bound = function.bind(sets)
    table = Exact().prepare(bound)
    generator = torch.Generator().manual_seed(1)
    masks = torch.rand(7, sets.layout.total, generator=generator) < 0.5
    torch.testing.assert_close(table.value(masks), bound.value(masks), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(table.gains(masks), bound.gains(masks), rtol=1e-12, atol=1e-12)
    psi = torch.rand(sets.layout.total, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(Exact().gradient(table, psi), Exact().gradient(bound, psi), rtol=1e-12, atol=1e-12)
