"""Recognition networks against enumeration and quadrature."""

import itertools
import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import nn

from setgrad.encoders import ContextItems, ItemWise, LinearItems
from setgrad.errors import OptionError
from setgrad.functions import (
    BoundSetFunction,
    DeepSetFunction,
    Exact,
    FreshNoise,
    FromCallable,
    ItemNoise,
    Modular,
    multilinear_gradient,
)
from setgrad.inference.copula import CopulaRecognition
from setgrad.inference.recognition import IndependentRecognition, bernoulli_entropy
from setgrad.sets import segment_sum
from tests.inference.oracle import draw
from tests.inference.recognition_oracle import (
    TORCH,
    best_mean_field,
    constant_network,
    mean_and_error,
    one_hot,
    pairs,
    train,
)

NETWORKS = {
    "independent": lambda encoder, hidden: IndependentRecognition(encoder, hidden),
    "copula": lambda encoder, hidden: CopulaRecognition(encoder, hidden, rank=2),
    "copula, published entropy": lambda encoder, hidden: CopulaRecognition(encoder, hidden, 2, marginal_entropy=True),
    "copula as published": lambda encoder, hidden: CopulaRecognition(
        encoder, hidden, 2, marginal_entropy=True, free_variance=True
    ),
}


ENCODERS = {"context": lambda: ContextItems(2, 8, heads=2), "linear": lambda: LinearItems(2, 8)}


class LossOf(nn.Module):
    """The loss as a module, so that the weights of the network can be replaced."""

    def __init__(self, network, bound):
        super().__init__()
        self.network, self.bound = network, bound

    def forward(self):
        return self.network.loss(self.bound, ItemNoise(self.bound.sets), 3)


@pytest.fixture(params=itertools.product(NETWORKS, ENCODERS), ids=" ".join)
def network(request, seeded):
    kind, encoder = request.param
    with seeded(0):
        return NETWORKS[kind](ENCODERS[encoder](), (7, 5)).double()


@pytest.fixture
def function(seeded):
    with seeded(1):
        return DeepSetFunction(2, "mlp", dim=6, hidden=(8, 8)).double()


def exact_elbo(function, sets, logits):
    """Return the mean over the sets of E F + H for independent items, by enumeration."""
    value = Exact().value(function.bind(sets), torch.sigmoid(logits))
    p = torch.sigmoid(logits)
    entropy = segment_sum(-(p * p.log() + (1 - p) * (1 - p).log()), sets)
    return (value + entropy).mean()


# ---- all networks


def test_logits_do_not_depend_on_batch_and_order(network):
    sets = draw([4, 0, 1, 3])
    logits = network.start(sets)
    assert logits.shape == (8,) and logits.dtype == torch.float64 and logits.requires_grad
    together = sets.with_values(logits)
    for number in range(len(sets)):
        torch.testing.assert_close(together[number], network.start(sets[number : number + 1]), rtol=1e-10, atol=1e-12)
    order = torch.tensor([2, 0, 3, 1, 4, 7, 5, 6])
    moved = network.start(sets.with_values(sets.values[order]))
    torch.testing.assert_close(moved, logits[order], rtol=1e-10, atol=1e-12)
    assert network.start(draw([0, 0])).shape == (0,)


def test_a_set_has_the_same_loss_in_any_batch_and_order(network, function):
    sets = draw([4, 0, 1, 3])

    def loss(batch):
        return network.loss(function.bind(batch), ItemNoise(batch), 6)

    alone = torch.stack([loss(sets[number : number + 1]) for number in range(len(sets))])
    torch.testing.assert_close(loss(sets), alone.mean(), rtol=1e-10, atol=1e-12)
    moved = sets.with_values(sets.values[torch.tensor([2, 0, 3, 1, 4, 7, 5, 6])])
    torch.testing.assert_close(loss(moved), loss(sets), rtol=1e-10, atol=1e-12)
    assert loss(sets).dtype == torch.float64


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1]])
def test_the_loss_of_empty_and_tiny_batches(network, function, sizes):
    sets = draw(sizes)
    loss = network.loss(function.bind(sets), FreshNoise(0), 3)
    loss.backward()
    assert loss.isfinite()
    if sizes and not sum(sizes):
        empty = function.value(sets, torch.zeros(1, 0, dtype=torch.bool)).mean()
        torch.testing.assert_close(loss, -empty)


def test_f_is_evaluated_on_whole_subsets(network):
    sets = draw([4, 2])
    bound = pairs([4, 2], 1.0).bind(sets)
    network.loss(bound, FreshNoise(0), 50)
    assert set(bound.evaluated[0].unique().tolist()) == {0.0, 1.0}


def test_one_bound_function_serves_both_steps(network, function):
    """All weights of the network get a gradient, F gets none, and the graph of F stays intact for its step."""
    sets = draw([4, 0, 3])
    masks = torch.ones(1, 7, dtype=torch.bool)
    (expected,) = torch.autograd.grad(function.value(sets, masks).sum(), function.phi.layers[0].weight)
    bound = function.bind(sets)
    network.loss(bound, FreshNoise(0), 4).backward()
    assert all(p.grad is None for p in function.parameters())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())
    assert sum(float(p.grad.abs().sum()) for p in network.parameters()) > 0
    bound.value(masks).sum().backward()
    torch.testing.assert_close(function.phi.layers[0].weight.grad, expected)


def test_without_gradients_the_loss_has_the_same_value(network, function):
    bound = function.bind(draw([4, 0, 3]))
    with torch.no_grad():
        value = network.loss(bound, FreshNoise(0), 4)
    assert not value.requires_grad
    torch.testing.assert_close(value, network.loss(bound, FreshNoise(0), 4).detach())


@TORCH
def test_a_loss_whose_gradient_would_be_lost_raises(network, function):
    """Under `vmap` inside of `grad`, and in forward mode, bits do not show that they are tracked."""
    bound, weights = function.bind(draw([4, 0, 3])), dict(network.named_parameters())

    def loss(weights):
        return torch.func.functional_call(LossOf(network, bound), {f"network.{k}": v for k, v in weights.items()}, ())

    ones = {name: torch.ones_like(value) for name, value in weights.items()}
    several = {name: value.detach()[None] for name, value in weights.items()}
    for compute in (
        lambda: torch.func.grad(loss)(weights),
        lambda: torch.func.grad(lambda w: torch.func.vmap(loss)(w).sum())(several),
        lambda: torch.func.jvp(loss, (weights,), (ones,)),
    ):
        with pytest.raises(OptionError, match="has a gradient by backward"):
            compute()
    alone = torch.func.vmap(loss)(several)
    torch.testing.assert_close(alone[0], network.loss(bound, ItemNoise(bound.sets), 3).detach())


def test_the_loss_of_a_constant_function_is_the_entropy():
    class Zero(BoundSetFunction):
        relaxed, sets = True, one_hot([3])

        def value(self, masks):
            return torch.zeros(len(masks), 1, dtype=torch.float64)

    network = constant_network([0.5, -1.0, 2.0])
    network.loss(Zero(), FreshNoise(0), 2).backward()
    x = network.start(one_hot([3]))
    (expected,) = torch.autograd.grad(-bernoulli_entropy(x).sum(), network.head[0].weight)
    torch.testing.assert_close(network.head[0].weight.grad, expected)


def test_invalid_arguments_raise(function, seeded):
    with seeded(0):
        network = IndependentRecognition(LinearItems(2, 4), (3,)).double()
        plain = FromCallable(lambda items, masks: masks.double().sum(1)).bind(draw([2]))
        with pytest.raises(OptionError, match=r"_BoundCallable takes whole subsets only.*such as DeepSetFunction"):
            network.loss(plain, FreshNoise(0), 3)
        with pytest.raises(OptionError, match="at least 1 sample"):
            network.loss(function.bind(draw([2])), FreshNoise(0), 0)
        with pytest.raises(OptionError, match="tau must be positive"):
            IndependentRecognition(LinearItems(2, 4), tau=0.0)
        with pytest.raises(OptionError, match="at least 1 unit"):
            IndependentRecognition(LinearItems(2, 4), (3, 0))
        with pytest.raises(OptionError, match="rank of at least 1"):
            CopulaRecognition(LinearItems(2, 4), rank=0)


# ---- entropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_entropy_of_one_bit_is_precise(dtype):
    x = torch.tensor([-100.0, -20.0, -3.0, -0.1, 0.0, 0.7, 5.0, 30.0, 100.0], dtype=dtype, requires_grad=True)
    entropy = bernoulli_entropy(x)
    (slope,) = torch.autograd.grad(entropy.sum(), x)
    # From the probability of the rarer outcome, which 1 - p would round to 0.
    rare = [math.exp(-abs(v)) / (1 + math.exp(-abs(v))) for v in x.tolist()]
    expected = [-(p * math.log(p) + (1 - p) * math.log1p(-p)) for p in rare]
    assert entropy.tolist() == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-13, abs=1e-40)
    expected = [-v * p * (1 - p) for v, p in zip(x.tolist(), rare, strict=True)]
    assert slope.tolist() == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-12, abs=1e-15)


@pytest.mark.parametrize("marginal", [None, False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_finite_for_certain_items(marginal, dtype):
    logits = torch.tensor([100.0, -100.0, 0.0, 2000.0])
    if marginal is None:
        network = constant_network(logits)
    else:
        # With almost no noise of the item alone, and half of the shared weights saturated.
        extremes = torch.tensor([[-200.0, 100.0, -100.0], [-200.0, 0.0, 0.0], [50.0, 3.0, 1.0], [0.0, 50.0, 0.0]])
        network = constant_network(torch.cat([logits[:, None], extremes], 1), marginal_entropy=marginal)
    sets = one_hot([4])
    network, sets = network.to(dtype), sets.with_values(sets.values.to(dtype))
    loss = network.loss(Modular().bind(sets), FreshNoise(0), 8)
    loss.backward()
    assert loss.isfinite() and bool(network.head[0].weight.grad.isfinite().all())
    bits = network.draw(sets, FreshNoise(0), 1000).scores > 0
    assert bits.double().mean(0)[[0, 1, 3]].tolist() == [1.0, 0.0, 1.0]


# ---- independent items


def test_the_independent_loss_is_unbiased_and_its_gradient_known():
    """The gradient is the gradient of E F with each psi replaced by the mean of its relaxed bit."""
    sizes = [3, 0, 2]
    sets, function = one_hot(sizes), pairs([3, 0, 2], 1.0)
    logits = torch.tensor([0.3, -1.2, 2.0, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    network, bound, noise = constant_network(logits.detach()), function.bind(sets), FreshNoise(5)
    weight = network.head[0].weight
    losses, slopes = [], []
    for _ in range(60):
        loss = network.loss(bound, noise, 1000)
        losses.append(loss.detach())
        slopes.append(torch.autograd.grad(loss, weight)[0][0])
    elbo = exact_elbo(function, sets, logits)
    mean, error = mean_and_error(losses)
    assert abs(mean + elbo) < 4 * error < 0.02

    (true,) = torch.autograd.grad(elbo, logits)
    gain = multilinear_gradient(function, sets, torch.sigmoid(logits), estimator=Exact()).detach() / len(sizes)
    factor = torch.tensor([relaxed_slope(x, 0.1) for x in logits.tolist()], dtype=torch.float64)
    p = torch.sigmoid(logits).detach()
    expected = true + gain * (factor - p * (1 - p))
    mean, error = mean_and_error(slopes)
    assert bool(((mean + expected).abs() < 4 * error).all()) and error.max() < 0.02
    # The bias of the relaxation, computed without sampling, is below 2 % of the term that comes from F.
    assert bool(((factor / (p * (1 - p)) - 1).abs() < 0.02).all())


def relaxed_slope(logit, tau):
    """Return the derivative by the logit of the mean of sigmoid((logit + logistic noise) / tau), by quadrature."""

    # The density of the noise at the point where the bit flips, averaged over a logistic distribution of that point.
    def integrand(y):
        at = tau * y - logit
        return math.exp(-abs(at)) / (1 + math.exp(-abs(at))) ** 2 * math.exp(-abs(y)) / (1 + math.exp(-abs(y))) ** 2

    return quad(integrand, -40, 40, points=[0.0])[0]


@pytest.mark.parametrize("tau", [0.5, 0.1, 0.01])
def test_relaxed_bits_approach_bits_for_small_tau(tau):
    scores = constant_network([0.3, -1.0, 0.0]).draw(one_hot([3]), FreshNoise(0), 4000).scores
    distance = (torch.sigmoid(scores / tau) - (scores > 0).double()).abs().mean()
    # The mean of sigmoid(-|score| / tau) is at most 2 tau log 2 times the largest density of a score, which is 1/4.
    assert distance < tau * math.log(2) / 2


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_training_reaches_the_mean_field_optimum(strength):
    sizes = [4, 3, 5]
    sets, function = one_hot(sizes), pairs(sizes, strength)
    network = constant_network([0.0] * 12)
    before = exact_elbo(function, sets, network.start(sets)).item()
    train(network, function.bind(sets), 400, samples=8)
    after, best = exact_elbo(function, sets, network.start(sets)).item(), best_mean_field(function, sets).item()
    assert after <= best + 1e-9
    assert best - after < 0.03 * (best - before)


def test_training_on_a_neural_function_approaches_the_optimum(function, seeded):
    """The network reads real features, and F is not multilinear, so that the straight-through gradient is biased."""
    sets = draw([5, 4, 6], seed=2)
    with torch.no_grad():
        function.rho[-1].weight.mul_(12)
    with seeded(0):
        network = IndependentRecognition(ContextItems(2, 8, heads=2), (16,)).double()
    with torch.no_grad():
        bound = function.bind(sets)
    before = exact_elbo(function, sets, network.start(sets)).item()
    train(network, bound, 300, samples=8, rate=0.01)
    after, best = exact_elbo(function, sets, network.start(sets)).item(), best_mean_field(function, sets).item()
    assert best - before > 0.3
    assert best - after < 0.1 * (best - before)


@pytest.mark.parametrize("name", NETWORKS)
def test_entropy_in_half_precision_counts_all_items(name, seeded):
    sizes = [1000, 10]
    with seeded(0):
        network = NETWORKS[name](ItemWise(nn.Identity(), 2), ())
    layer: Any = network.head[0]
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    sets = draw(sizes).to(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draw_of_all = network.draw(sets, FreshNoise(0), 2)
        network.loss(Modular().bind(sets), FreshNoise(0), 2).backward()
    assert draw_of_all.scores.dtype == torch.bfloat16
    assert bool(layer.weight.grad.isfinite().all())
    expected = math.log(2) * torch.tensor(sizes).float()
    if name == "copula":
        # Correlation lowers the entropy, by an amount that single precision gives.
        expected = network.draw(sets, FreshNoise(0), 2).entropy
    torch.testing.assert_close(draw_of_all.entropy.float(), expected, rtol=0.01, atol=0)
