"""Mean field against enumeration, finite differences and its equation."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from setgrad.errors import OptionError
from setgrad.functions import (
    Bernoulli,
    DeepSetFunction,
    Exact,
    FreshNoise,
    FromCallable,
    Gaussian,
    GraphCut,
    ItemNoise,
    Modular,
)
from setgrad.inference import ImplicitMeanField, L2Scale, OneStepMeanField, UnrolledMeanField, mean_field
from setgrad.sets import Sets
from tests.inference.oracle import SCALES, Solve, draw

SIZES = [4, 0, 1, 3]


@pytest.fixture
def function(seeded):
    with seeded(0):
        return DeepSetFunction(2, "mlp", dim=6, hidden=(8, 8)).double()


def test_one_step_from_one_half_equals_the_formula():
    """With F = |S|^2, the gain of an item is 1 + 2 |S without it|, whose mean at 1/2 is n."""
    size = FromCallable(lambda items, masks: masks.double().sum(1) ** 2)
    result = mean_field(size, draw(SIZES), estimator=Exact())
    expected = [1 / (1 + math.exp(-n)) for n in SIZES for _ in range(n)]
    assert result.value.tolist() == pytest.approx(expected, rel=1e-12)
    assert result.residual.tolist() == pytest.approx(
        [max([0.0, *[w - 0.5 for w in expected[a:b]]]) for a, b in itertools.pairwise([0, 4, 4, 5, 8])]
    )


def test_many_steps_solve_the_equation(function):
    result = mean_field(function, draw(SIZES), estimator=Exact(), solver=OneStepMeanField(60))
    assert result.residual.max() < 1e-8
    logits = Exact().gradient(function.bind(draw(SIZES)), result.value.detach())
    torch.testing.assert_close(torch.sigmoid(logits), result.value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("estimator", [Exact(), "gaussian"], ids=str)
def test_the_unrolled_gradient_equals_finite_differences(function, estimator, seeded):
    sets = draw(SIZES)
    if estimator == "gaussian":
        estimator = Gaussian(3, ItemNoise(sets))
    weight = function.rho[2].weight

    def value(w):
        return Solve(function, sets, estimator, UnrolledMeanField(3)).at(["rho.2.weight"], [w])

    with seeded(0):
        assert torch.autograd.gradcheck(value, weight.detach().clone().requires_grad_(), fast_mode=True)


def test_the_one_step_gradient_is_the_gradient_of_the_last_step(function):
    sets = draw(SIZES)
    before = mean_field(function, sets, estimator=Exact(), solver=OneStepMeanField(3)).value.detach()
    whole = mean_field(function, sets, estimator=Exact(), solver=OneStepMeanField(4)).value.sum()
    last = torch.sigmoid(Exact().gradient(function.bind(sets), before)).sum()
    unrolled = mean_field(function, sets, estimator=Exact(), solver=UnrolledMeanField(4)).value.sum()
    slopes = [torch.autograd.grad(x, function.rho[0].weight)[0] for x in (whole, last, unrolled)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-10, atol=1e-12)
    assert (slopes[2] - slopes[0]).abs().max() > 1e-6


def test_unrolling_bernoulli_samples_raises(function):
    with pytest.raises(OptionError, match="OneStepMeanField"):
        mean_field(function, draw(SIZES), estimator=Bernoulli(2), solver=UnrolledMeanField(2))
    mean_field(function, draw(SIZES), estimator=Bernoulli(2), solver=UnrolledMeanField(1))
    with torch.no_grad():
        mean_field(function, draw(SIZES), estimator=Bernoulli(2), solver=UnrolledMeanField(2))


@pytest.mark.parametrize("scale", [None, L2Scale()], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_coordinates_select_logits(function, steps, scale):
    def logits(coordinates):
        options = {"solver": OneStepMeanField(steps), "scale": scale, "coordinates": coordinates}
        return mean_field(function, draw(SIZES), estimator=Bernoulli(5, FreshNoise(1)), **options).logits

    selected = torch.tensor([6, 0, 4])
    torch.testing.assert_close(logits(selected), logits(None)[selected], rtol=1e-10, atol=1e-12)


def test_scales_divide_the_gradient():
    sets = draw(SIZES)
    plain = mean_field(Modular(), sets, estimator=Exact()).logits
    for scale in SCALES[1:]:
        result = mean_field(Modular(), sets, estimator=Exact(), scale=scale).logits
        assert torch.equal(result, scale(plain, sets.layout)) and not torch.equal(result, plain)
    with pytest.raises(OptionError, match="unknown scale 'l3'"):
        mean_field(Modular(), sets, estimator=Exact(), scale="l3")


def test_invalid_steps_and_starts_raise():
    invalid: list[Any] = [0, 2.5, "3", True]
    for steps in invalid:
        with pytest.raises(OptionError, match="whole number of steps, at least 1"):
            OneStepMeanField(steps)
    with pytest.raises(OptionError, match="between 0 and 1"):
        mean_field(Modular(), draw(SIZES), estimator=Exact(), start=1.5)
    for bad in (-0.1, 1.1, math.nan):
        start = torch.tensor([0.5] * 3 + [bad] + [0.5] * 4, dtype=torch.float64)
        with pytest.raises(OptionError, match="between 0 and 1 everywhere"):
            mean_field(Modular(), draw(SIZES), estimator=Exact(), start=start)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("estimator", "exact"),
        ("solver", "implicit"),
        ("scale", 3.0),
        ("coordinates", torch.ones(8, dtype=torch.bool)),
        ("coordinates", torch.ones(2)),
    ],
)
def test_arguments_of_the_wrong_type_raise(option, wrong):
    with pytest.raises(OptionError, match=option):
        mean_field(Modular(), draw(SIZES), **{"estimator": Exact(), option: wrong})


def test_the_residual_is_the_remaining_change_of_a_probability():
    """From the logit 0, half a step ends at 0.005, and 0.01 solves the equation."""
    sets = Sets.from_lengths(torch.full((1, 1), 0.01, dtype=torch.float64), [1])
    solver = ImplicitMeanField(max_steps=1, on_failure="mask")
    result = mean_field(Modular(), sets, estimator=Exact(), solver=solver)
    left = torch.sigmoid(torch.tensor(0.01)) - result.value
    assert result.residual.item() == pytest.approx(left.item(), rel=1e-2)
    assert result.logits.item() == pytest.approx(0.005)


def test_small_logits_are_solved_for():
    """Under a scale, all logits may be tiny without being 0."""
    scores = torch.tensor([[5e-5], [-3e-5]], dtype=torch.float64)
    result = mean_field(Modular(), Sets.from_lengths(scores, [2]), estimator=Exact(), solver=ImplicitMeanField())
    torch.testing.assert_close(result.logits, scores[:, 0], rtol=1e-3, atol=0)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_one_step_differentiates_the_last_step_in_forward_mode_too():
    generator = torch.Generator().manual_seed(0)
    items, move = (torch.randn(4, 2, dtype=torch.float64, generator=generator) for _ in range(2))

    def total(values, solver):
        sets = Sets.from_lengths(values, [4])
        return mean_field(GraphCut(), sets, estimator=Exact(), solver=solver).value.sum()

    start = items.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(start, OneStepMeanField(3)), start)
    backward = (slope * move).sum()
    with forward_ad.dual_level():
        forward = forward_ad.unpack_dual(total(forward_ad.make_dual(items, move), OneStepMeanField(3))).tangent
        unrolled = forward_ad.unpack_dual(total(forward_ad.make_dual(items, move), UnrolledMeanField(3))).tangent
    torch.testing.assert_close(forward, backward)
    assert (unrolled - forward).abs() > 1e-4
