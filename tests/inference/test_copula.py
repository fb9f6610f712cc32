"""The copula network against quadrature and the bivariate normal distribution.

There is one shared variable, so that every expectation is an integral over one number.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import xlogy
from scipy.stats import multivariate_normal, norm

from setgrad.errors import OptionError
from setgrad.functions import FreshNoise, ItemNoise
from setgrad.inference.recognition import bernoulli_entropy
from tests.inference.recognition_oracle import (
    TORCH,
    Pairs,
    best_mean_field,
    constant_network,
    log_partition,
    mean_and_error,
    mean_bound,
    one_hot,
    pairs,
    train,
)

NUMBERS = [[0.0, -0.5, 1.5], [-1.4, -1.0, 0.8], [0.9, 0.0, -2.0]]


def quantiles_and_weights(numbers):
    """Return quantiles and the weights d and w, by NumPy from the outputs of the head."""
    x = np.array(numbers)
    own, shared = np.log1p(np.exp(x[:, 1])) + 1e-3, np.tanh(x[:, 2])
    length = np.sqrt(own**2 + shared**2)
    return norm.ppf(1 / (1 + np.exp(-x[:, 0]))), own / length, shared / length


def joint(numbers):
    """Return the probability of every subset, and the entropy given z, by Gauss-Hermite quadrature."""
    quantile, own, shared = quantiles_and_weights(numbers)
    z, weight = np.polynomial.hermite_e.hermegauss(200)
    weight = weight / weight.sum()
    p = norm.cdf((quantile + np.outer(z, shared)) / own)
    subsets = np.array(list(itertools.product([0, 1], repeat=len(numbers))))
    given_z = np.where(subsets[:, None, :] == 1, p, 1 - p).prod(2)
    conditional = -xlogy(given_z, given_z).sum(0) @ weight
    return subsets, given_z @ weight, conditional


def test_the_copula_has_the_expected_probabilities_and_correlation():
    network, sets, draws = constant_network([*NUMBERS, *NUMBERS], marginal_entropy=True), one_hot([3, 3]), 60000
    bits = (network.draw(sets, FreshNoise(2), draws).scores > 0).double()
    p = torch.sigmoid(network.start(sets)).detach()
    assert bool(((bits.mean(0) - p).abs() < 4 * (p * (1 - p) / draws).sqrt()).all())

    quantile, own, shared = quantiles_and_weights(NUMBERS)
    correlation = network.correlation(sets)[0].detach().numpy()
    np.testing.assert_allclose(correlation, np.outer(shared, shared) + np.diag(own**2), rtol=1e-12)
    np.testing.assert_allclose(np.diag(correlation), 1.0, rtol=1e-12)
    for i, j in itertools.combinations(range(3), 2):
        both = multivariate_normal.cdf(quantile[[i, j]], cov=correlation[np.ix_([i, j], [i, j])])
        assert abs(both - p[i] * p[j]) > 0.03  # far enough from independence for the test to see it
        for set_number in range(2):
            frequency = (bits[:, 3 * set_number + i] * bits[:, 3 * set_number + j]).mean()
            assert abs(frequency - both) < 4 * math.sqrt(both * (1 - both) / draws)
        across = (bits[:, i] * bits[:, 3 + j]).mean()
        assert abs(across - p[i] * p[j]) < 4 * math.sqrt(p[i] * p[j] * (1 - p[i] * p[j]) / draws)


@pytest.mark.parametrize("samples", [1, 5, 150])
def test_the_copula_entropy_is_a_bound_that_tightens_with_samples(samples):
    network, sets, noise = constant_network(NUMBERS), one_hot([3]), FreshNoise(4)
    _, q, conditional = joint(NUMBERS)
    true = -(q * np.log(q)).sum()
    marginal = bernoulli_entropy(network.start(sets)).sum().item()
    assert conditional + 0.1 < true < marginal - 0.1
    repeats = 30000 // samples if samples < 150 else 400
    with torch.no_grad():
        # Many equal sets at once are many repeats.
        many = constant_network(NUMBERS * 100)
        wide = one_hot([3] * 100)
        entropies = torch.cat([many.draw(wide, noise, samples).entropy for _ in range(max(1, repeats // 100))])
    mean, error = entropies.mean().item(), entropies.std().item() / len(entropies) ** 0.5
    assert error < 0.01
    if samples == 1:
        assert abs(mean - conditional) < 4 * error
    else:
        assert conditional + 0.05 < mean < true + 4 * error
    if samples == 150:
        assert true - mean < 0.02


def test_other_draws_tighten_the_entropy_of_few_subsets():
    """Three subsets: with their own draws alone the estimate is too low, with 200 others it is the true entropy."""
    _, q, _ = joint(NUMBERS)
    true, sets = -(q * np.log(q)).sum(), one_hot([3] * 400)
    means, errors = [], []
    for draws in (0, 200):
        network = constant_network(NUMBERS * 400, entropy_draws=draws)
        with torch.no_grad():
            drawn = network.draw(sets, FreshNoise(3), 3)
        assert drawn.scores.shape == (3, 1200)
        means.append(drawn.entropy.mean().item())
        errors.append(drawn.entropy.std().item() / 20)
    assert means[0] + 5 * errors[0] < true < means[1] + 0.01 + 4 * errors[1]
    assert means[1] < true + 4 * errors[1]


def test_the_gradient_with_other_draws_is_that_of_the_true_entropy():
    many, wide, noise = constant_network(NUMBERS * 100, entropy_draws=60), one_hot([3] * 100), FreshNoise(8)
    weight, slopes = many.head[0].weight, []
    for _ in range(60):
        (slope,) = torch.autograd.grad(many.draw(wide, noise, 4).entropy.sum(), weight)
        slopes.append(slope.reshape(3, 100, 3).mean(1).T)
    mean, error = mean_and_error(slopes)
    steps = 1e-4 * np.eye(9).reshape(9, 3, 3)
    expected = torch.tensor([(true_entropy(h) - true_entropy(-h)) / 2e-4 for h in steps]).reshape(3, 3)
    assert ((mean - expected).abs() < 4 * error + 0.01).all()
    assert error.max() < 0.01 < expected.abs().max() / 10


def true_entropy(change):
    _, q, _ = joint(np.array(NUMBERS) + change)
    return -(q * np.log(q)).sum()


def test_the_gradient_of_the_copula_entropy(seeded):
    """With one z against finite differences; with many z against finite differences of the true entropy."""
    sets = one_hot([3])
    network = constant_network(NUMBERS)

    def conditional(weight):
        network.head[0]._parameters["weight"] = weight
        return network.draw(sets, ItemNoise(sets), 1).entropy

    with seeded(0):
        assert torch.autograd.gradcheck(conditional, network.head[0].weight.detach().clone().requires_grad_())

    many, wide, noise = constant_network(NUMBERS * 50), one_hot([3] * 50), FreshNoise(8)
    weight, slopes = many.head[0].weight, []
    for _ in range(40):
        (slope,) = torch.autograd.grad(many.draw(wide, noise, 64).entropy.sum(), weight)
        slopes.append(slope.reshape(3, 50, 3).mean(1).T)
    mean, error = mean_and_error(slopes)

    steps = 1e-4 * np.eye(9).reshape(9, 3, 3)
    expected = torch.tensor([(true_entropy(h) - true_entropy(-h)) / 2e-4 for h in steps]).reshape(3, 3)
    assert error.max() < 0.01
    assert (mean - expected).abs().max() < 0.01 < expected.abs().max() / 10


@TORCH
def test_the_copula_entropy_has_the_same_gradient_under_every_transform():
    sets, network = one_hot([3, 2]), constant_network(NUMBERS + NUMBERS[:2])
    weight = network.head[0].weight.detach().clone()

    def entropy(weight):
        network.head[0]._parameters["weight"] = weight
        return network.draw(sets, ItemNoise(sets), 3).entropy.sum()

    tracked = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(entropy(tracked), tracked)
    mapped = torch.func.grad(lambda w: torch.func.vmap(entropy)(w).sum())(weight[None])[0]
    along = torch.func.jvp(entropy, (weight,), (torch.cos(weight),))[1]
    torch.testing.assert_close(mapped, expected)
    torch.testing.assert_close(along, (expected * torch.cos(weight)).sum())


def test_the_copula_loss_is_the_negative_bound():
    function, sets, noise = pairs([3], 1.0), one_hot([3]), FreshNoise(6)
    subsets, q, _ = joint(NUMBERS)
    value = function.bind(sets).value(torch.tensor(subsets, dtype=torch.float64))[:, 0].numpy()
    published = constant_network(NUMBERS, marginal_entropy=True)
    with torch.no_grad():
        losses = [published.loss(function.bind(sets), noise, 2000) for _ in range(30)]
        marginal = bernoulli_entropy(published.start(sets)).sum().item()
    mean, error = mean_and_error(losses)
    assert abs(mean + float(q @ value) + marginal) < 4 * error < 0.05


def test_the_published_entropy_gives_no_bound():
    """For two items that should agree, correlation pays, and a bound must subtract its cost in entropy."""
    sets = one_hot([2])
    function = Pairs(torch.full((2,), -3.0, dtype=torch.float64), 6 * (1 - torch.eye(2, dtype=torch.float64)))
    top, independent = log_partition(function, sets).item(), best_mean_field(function, sets).item()
    result = {}
    for marginal in (True, False):
        network = constant_network([[0.1, 0.0, 0.3], [0.1, 0.0, 0.2]], marginal_entropy=marginal)
        train(network, function.bind(sets), 300, samples=16)
        result[marginal] = mean_bound(network, function, sets)
    assert result[True] > top + 0.3
    assert independent + 0.2 < result[False] < top + 0.02


def test_with_free_variance_the_network_sets_the_variance():
    network, sets, draws = constant_network(NUMBERS, marginal_entropy=True, free_variance=True), one_hot([3]), 60000
    numbers = torch.tensor(NUMBERS, dtype=torch.float64)
    own, shared = torch.nn.functional.softplus(numbers[:, 1]), torch.tanh(numbers[:, 2])
    torch.testing.assert_close(network.correlation(sets)[0].detach(), torch.outer(shared, shared) + own.square().diag())
    bits = (network.draw(sets, FreshNoise(2), draws).scores > 0).double()
    # An item is in where Phi(g) > 1 - psi, and g is normal with this deviation.
    deviation = (own.square() + shared.square()).sqrt()
    p = torch.special.ndtr(torch.special.ndtri(torch.sigmoid(numbers[:, 0])) / deviation)
    assert bool(((bits.mean(0) - p).abs() < 4 * (p * (1 - p) / draws).sqrt()).all())
    with pytest.raises(OptionError, match="marginal_entropy=True too"):
        constant_network(NUMBERS, free_variance=True)


def test_with_free_variance_psi_stays_near_a_half():
    """This is why the published copula scores better than a correct one: mean field starts near 1/2."""
    sets = one_hot([2])
    function = Pairs(torch.tensor([3.0, -3.0], dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    top = log_partition(function, sets).item()
    distance = {}
    for free in (True, False):
        network = constant_network([[0.1, 0.0, 0.3], [0.1, 0.0, 0.2]], marginal_entropy=True, free_variance=free)
        train(network, function.bind(sets), 600, samples=16)
        bound = mean_bound(network, function, sets)
        distance[free] = (torch.sigmoid(network.start(sets)) - 0.5).abs().max().item()
        assert bound > top + 0.3 if free else bound < top + 0.02
    assert distance[True] < 0.35 < 0.42 < distance[False]
