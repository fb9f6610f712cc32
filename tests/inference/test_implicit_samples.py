"""How near sampled implicit gradients come to the exact one, and where they do not."""

from __future__ import annotations

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
from tests.inference.oracle import amplify, by_the_theorem, cosine, draw, gradient, relative

SETS = draw()
TIGHT = ImplicitMeanField(tol=1e-12)


@pytest.fixture
def make(seeded):
    """A random model whose items interact the more, the larger `factor`, with the exact psi and gradient."""

    def build(
        phi: str, factor: float, seed: int = 0, dim: int = 32, units: int = 64
    ) -> tuple[DeepSetFunction, Tensor, Tensor]:
        with seeded(seed):
            function = DeepSetFunction(2, phi, dim=dim, hidden=(units, units)).double()
        amplify(function.rho, factor)
        psi = mean_field(function, SETS, estimator=Exact(), solver=TIGHT).value.detach()
        return function, psi, by_the_theorem(function, SETS, psi)

    return build


def sampled(function: DeepSetFunction, kind: type[ExtensionEstimator], samples: int = 512) -> Tensor:
    return gradient(function, SETS, ImplicitMeanField(), kind(samples, ItemNoise(SETS)))


@pytest.mark.parametrize(
    ("estimator", "factor"),
    [(Gaussian, 3.0), (Pathwise, 3.0), (SecondDifference, 3.0), (Pathwise, 5.0), (SecondDifference, 5.0)],
)
def test_sampled_gradients_point_the_same_way(make, estimator, factor):
    function, psi, exact = make("mlp", factor, dim=6, units=16)
    found = sampled(function, estimator)
    assert cosine(found, exact) > 0.999
    if factor == 5.0:
        one_step = gradient(function, SETS, OneStepMeanField(), start=psi)
        assert relative(found, exact) < 0.1 < 0.15 < relative(one_step, exact)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weakly_coupled_items_in_context(make, seed):
    function, _, exact = make("context", 1.0, seed)
    pathwise, gaussian = sampled(function, Pathwise), sampled(function, Gaussian)
    assert cosine(pathwise, exact) > 0.999 and relative(pathwise, exact) < 0.02
    assert cosine(gaussian, exact) > 0.999
    assert relative(gaussian, exact) > 1.5 * relative(pathwise, exact)


@pytest.mark.parametrize("seed", [0, 1])
def test_gaussian_masks_have_a_bias_that_samples_do_not_mend(make, seed):
    # It is one of the last step too: at these factors one exact step alone has a cosine of 1.0000.
    function, psi, exact = make("mlp", 1.0, seed)
    assert cosine(gradient(function, SETS, OneStepMeanField(), start=psi), exact) > 0.9999
    assert cosine(sampled(function, Pathwise), exact) > 0.999
    few, many = (relative(sampled(function, Gaussian, samples), exact) for samples in (512, 2048))
    assert min(few, many) > 0.06 and many > 0.8 * few


def test_slopes_lead_astray_where_items_are_strongly_coupled(make):
    # Relaxed F bends between its corners; second differences look at the corners alone.
    function, psi, exact = make("context", 3.0, seed=1)
    pathwise, second = sampled(function, Pathwise), sampled(function, SecondDifference)
    one_step = gradient(function, SETS, OneStepMeanField(), start=psi)
    assert relative(second, exact) < 0.1 < relative(one_step, exact) < relative(pathwise, exact)
    assert torch.equal(psi, psi.clamp(0.01, 0.99)), "nothing is sure"


@pytest.mark.parametrize("scale", [None, L2Scale()], ids=str)
@pytest.mark.parametrize("kind", [Gaussian, Pathwise])
@pytest.mark.parametrize("function", [DeepSetFunction, InsetFunction, HorseFunction])
def test_sets_that_have_settled_are_left_out(seeded, monkeypatch, function, kind, scale):
    drawn = draw(sizes=(5, 0, 12, 1, 3, 9, 9, 2), seed=1)
    # NoiseSource that knows of twins among the items must be divided too.
    sets = Sets.cat([drawn, Sets.from_lengths(drawn.values[[5, 6, 5, 5, 7, 6]], [6])])
    with seeded(3):
        made = function(2, "mlp", dim=16, hidden=(32, 32)).double()
    amplify(made.rho, 3.0)
    asked, bound = [], type(made.bind(sets))
    plain = bound.gains
    monkeypatch.setattr(bound, "gains", lambda self, *args: (asked.append(len(self.sets)), plain(self, *args))[1])

    def run():
        asked.clear()
        made.zero_grad()
        found = mean_field(
            made, sets, estimator=kind(4, ItemNoise(sets)), solver=ImplicitMeanField(tol=1e-9), scale=scale
        )
        found.logits.square().sum().backward()
        slopes = torch.cat([p.grad.flatten() for p in made.parameters() if p.grad is not None])
        return found.logits.detach(), found.steps, slopes, sum(asked)

    *divided, few = run()
    monkeypatch.setattr(bound, "take_sets", lambda self, *args: None)
    *whole, many = run()
    # Whole subsets follow psi in jumps, so all sets may settle at once.
    assert few < many or kind is Pathwise
    for a, b in zip(divided, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
