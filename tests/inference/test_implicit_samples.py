"""Sampled implicit gradients against the exact one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from setgrad.functions import (
    DeepSetFunction,
    Exact,
    ExtensionEstimator,
    Gaussian,
    HorseFunction,
    InsetFunction,
    ItemNoise,
    Pathwise,
    SecondDifference,
)
from setgrad.inference import ImplicitMeanField, L2Scale, OneStepMeanField, mean_field
from setgrad.sets import Sets
from tests.inference.oracle import TIGHT, amplify, cosine, draw, exact_gradient, gradient, relative_error

SETS = draw()


def exact_solution(function: DeepSetFunction) -> tuple[DeepSetFunction, Tensor, Tensor]:
    """Return the function with the exact psi and gradient."""
    psi = mean_field(function, SETS, estimator=Exact(), solver=TIGHT).value.detach()
    return function, psi, exact_gradient(function, SETS, psi)


def sampled(function: DeepSetFunction, kind: Callable[..., ExtensionEstimator], samples: int = 512) -> Tensor:
    return gradient(function, SETS, ImplicitMeanField(), kind(samples, ItemNoise(SETS)))


@pytest.mark.parametrize(
    ("estimator", "factor"),
    [(Gaussian, 3.0), (Pathwise, 3.0), (SecondDifference, 3.0), (Pathwise, 5.0), (SecondDifference, 5.0)],
)
def test_sampled_gradients_have_the_direction_of_the_exact_one(make, estimator, factor):
    function, psi, exact = exact_solution(make(factor))
    result = sampled(function, estimator)
    assert cosine(result, exact) > 0.999
    if factor == 5.0:
        one_step = gradient(function, SETS, OneStepMeanField(), start=psi)
        assert relative_error(result, exact) < 0.1 < 0.15 < relative_error(one_step, exact)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_of_weakly_coupled_items_in_context(make, seed):
    function, _, exact = exact_solution(make(1.0, "context", seed, dim=32, units=64))
    pathwise, gaussian = sampled(function, Pathwise), sampled(function, Gaussian)
    assert cosine(pathwise, exact) > 0.999 and relative_error(pathwise, exact) < 0.02
    assert cosine(gaussian, exact) > 0.999
    assert relative_error(gaussian, exact) > 1.5 * relative_error(pathwise, exact)


@pytest.mark.parametrize("seed", [0, 1])
def test_more_samples_do_not_reduce_the_bias_of_gaussian_masks(make, seed):
    # The last step has this bias too: at this factor, the gradient of one exact step has a cosine of 1.0000.
    function, psi, exact = exact_solution(make(1.0, "mlp", seed, dim=32, units=64))
    assert cosine(gradient(function, SETS, OneStepMeanField(), start=psi), exact) > 0.9999
    assert cosine(sampled(function, Pathwise), exact) > 0.999
    few, many = (relative_error(sampled(function, Gaussian, samples), exact) for samples in (512, 2048))
    assert min(few, many) > 0.06 and many > 0.8 * few


def test_pathwise_slopes_are_biased_for_strongly_coupled_items(make):
    # The relaxed F is curved between subsets, and second differences use subsets only.
    function, psi, exact = exact_solution(make(3.0, "context", 1, dim=32, units=64))
    pathwise, second = sampled(function, Pathwise), sampled(function, SecondDifference)
    one_step = gradient(function, SETS, OneStepMeanField(), start=psi)
    assert relative_error(second, exact) < 0.1 < relative_error(one_step, exact) < relative_error(pathwise, exact)
    assert torch.equal(psi, psi.clamp(0.01, 0.99)), "no item is certain"


@pytest.mark.parametrize("scale", [None, L2Scale()], ids=str)
@pytest.mark.parametrize("kind", [Gaussian, Pathwise])
@pytest.mark.parametrize("function", [DeepSetFunction, InsetFunction, HorseFunction])
def test_sets_that_have_converged_are_left_out(seeded, monkeypatch, function, kind, scale):
    drawn = draw(sizes=(5, 0, 12, 1, 3, 9, 9, 2), seed=1)
    # With identical items, because the noise that averages over them must be restricted too.
    sets = Sets.cat([drawn, Sets.from_lengths(drawn.values[[5, 6, 5, 5, 7, 6]], [6])])
    with seeded(3):
        network = function(2, "mlp", dim=16, hidden=(32, 32)).double()
    amplify(network.rho, 3.0)
    evaluated, bound = [], type(network.bind(sets))
    plain = bound.gains

    def count(self, *args):
        evaluated.append(len(self.sets))
        return plain(self, *args)

    monkeypatch.setattr(bound, "gains", count)

    def run():
        evaluated.clear()
        network.zero_grad()
        result = mean_field(
            network, sets, estimator=kind(4, ItemNoise(sets)), solver=ImplicitMeanField(tol=1e-9), scale=scale
        )
        result.logits.square().sum().backward()
        slopes = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        return result.logits.detach(), result.steps, slopes, sum(evaluated)

    *restricted, few = run()
    monkeypatch.setattr(bound, "restrict", lambda self, *args: None)
    *whole, many = run()
    # Whole subsets change in jumps, so all sets may converge in the same step.
    assert few < many or kind is Pathwise
    for a, b in zip(restricted, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
