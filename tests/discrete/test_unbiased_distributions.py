"""Score functions of every distribution, and perturbed means, against exact gradients within 4 standard errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from setgrad.discrete.estimators import Perturbed, ScoreFunction
from setgrad.discrete.noise import Antithetic, Gumbel, Logistic, Noise, Normal, Tempered
from setgrad.discrete.solvers import Assignment, Threshold, TopK, WorkerPool
from tests.discrete.distributions import DISTRIBUTIONS, DistributionCase, k_subset
from tests.discrete.oracles import assert_unbiased, draws, generator, plackett_luce

# A distribution of a single point always has a gradient of 0.
UNCERTAIN = [*(case for case in DISTRIBUTIONS if len(case.points) > 1), k_subset(8, 3)]


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("case", UNCERTAIN, ids=str)
def test_score_functions(case: DistributionCase, baseline: bool) -> None:
    theta = case.draw()

    def nonlinear_loss(z: Tensor) -> Tensor:
        """A loss with interactions of all orders."""
        flat = z.flatten(z.ndim - case.dims)
        return 2 + torch.sin(3 * (flat @ draws(flat.shape[-1], seed=7))) + flat @ draws(flat.shape[-1], seed=8)

    layer = ScoreFunction(case.build, samples=3, baseline=baseline, generator=generator())
    losses = nonlinear_loss(case.points)
    assert_unbiased(lambda t: layer(t, nonlinear_loss), theta, lambda t: case.log_probs(t).exp() @ losses)


@pytest.mark.parametrize("noise", [Gumbel(), Tempered(Antithetic(Gumbel()), 0.7)], ids=str)
@pytest.mark.parametrize("k", [1, 2])
def test_perturbed_top_k_of_eight(noise: Noise, k: int) -> None:
    theta, slope = draws(8), draws(8, seed=1)
    scale = noise.scale if isinstance(noise, Tempered) else 1.0
    layer = Perturbed(TopK(k), noise=noise, samples=16, generator=generator())
    assert_unbiased(lambda t: layer(t) @ slope, theta, lambda t: plackett_luce(t / scale, k) @ slope)


@pytest.mark.parametrize("noise", [Logistic(), Antithetic(Logistic()), Tempered(Logistic(), 2.0)], ids=str)
@pytest.mark.parametrize("reduce", [True, False])
def test_perturbed_thresholds_with_logistic_noise_are_sigmoids(noise: Noise, reduce: bool) -> None:
    theta, slope = draws(8), draws(8, seed=1)
    scale = noise.scale if isinstance(noise, Tempered) else 1.0
    layer = Perturbed(Threshold(), noise=noise, samples=4, reduce=reduce, generator=generator())
    assert_unbiased(lambda t: layer(t) @ slope, theta, lambda t: torch.sigmoid(t / scale) @ slope)


@pytest.mark.parametrize("noise", [Normal(), Antithetic(Normal())], ids=str)
def test_perturbed_assignments_of_two_are_normal_cdfs(noise: Noise) -> None:
    """The diagonal matching wins if a sum of four entries, of signs +--+ and standard deviation 2, is above 0."""
    # Far from a tie the gradient is smaller than its standard error.
    theta, slope = 0.3 * draws(2, 2), draws(2, 2, seed=1)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    layer = Perturbed(Assignment(pool=WorkerPool(1)), noise=noise, samples=8, generator=generator())
    straight, crossed = slope.trace(), slope.fliplr().trace()

    def truth(theta: Tensor) -> Tensor:
        chance = torch.special.ndtr((theta * signs).sum() / 2)
        return chance * straight + (1 - chance) * crossed

    assert_unbiased(lambda t: (layer(t) * slope).sum((-2, -1)), theta, truth)
