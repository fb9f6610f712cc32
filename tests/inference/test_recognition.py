"""Recognition networks against enumeration, quadrature and the bivariate normal distribution."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import xlogy
from scipy.stats import multivariate_normal, norm
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
    SetFunction,
    multilinear_gradient,
)
from setgrad.inference.copula import CopulaRecognition
from setgrad.inference.recognition import IndependentRecognition, bernoulli_entropy
from setgrad.sets import Sets, segment_sum

NETWORKS = {
    "independent": lambda encoder, hidden: IndependentRecognition(encoder, hidden),
    "copula": lambda encoder, hidden: CopulaRecognition(encoder, hidden, rank=2),
    "copula, published entropy": lambda encoder, hidden: CopulaRecognition(encoder, hidden, 2, marginal_entropy=True),
    "copula as published": lambda encoder, hidden: CopulaRecognition(
        encoder, hidden, 2, marginal_entropy=True, free_variance=True
    ),
}
# Of torch's own forward mode, and of functions that it maps one by one.
TORCH = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning", "ignore:There is a performance drop:UserWarning"
)
ENCODERS = {"context": lambda: ContextItems(2, 8, heads=2), "linear": lambda: LinearItems(2, 8)}


class Pairs(SetFunction):
    """Scores of items and of pairs of items: multilinear, so its derivative at a subset is the gain."""

    def __init__(self, scores, pairs):
        self.scores, self.pairs = scores, pairs

    def bind(self, sets):
        return BoundPairs(self, sets)


class BoundPairs(BoundSetFunction):
    relaxed = True

    def __init__(self, function, sets):
        self.function, self.sets, self.seen = function, sets, []

    def value(self, masks):
        self.seen.append(masks.detach())
        s = masks.to(self.function.scores.dtype)
        return segment_sum((s * (self.function.scores + s @ self.function.pairs / 2)).T, self.sets).T


def draw(sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.randn(sum(sizes), 2, generator=generator, dtype=torch.float64), sizes)


def marked(sizes):
    """Items that name themselves, so that a linear head can give each its own numbers."""
    return Sets.from_lengths(torch.eye(sum(sizes), dtype=torch.float64), sizes)


def pairs(sizes, strength, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    table = torch.randn(n, n, generator=generator, dtype=torch.float64).triu(1) * strength
    ids = marked(sizes).layout.ids
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    return Pairs(scores, (table + table.T) * (ids[:, None] == ids))


def fixed(numbers, **options):
    """A network that gives item i the numbers of row i, whatever it is."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64)
    encoder = ItemWise(nn.Identity(), len(numbers))
    if numbers.dim() == 1:
        network = IndependentRecognition(encoder, (), **options)
        numbers = numbers[:, None]
    else:
        network = CopulaRecognition(encoder, (), rank=numbers.shape[1] - 2, **options)
    network.double()
    with torch.no_grad():
        network.head[0].weight.copy_(numbers.T)
        network.head[0].bias.zero_()
    return network


class LossOf(nn.Module):
    """The loss as a module, whose weights can be given."""

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
def make_fixed(seeded):
    def make(numbers, **options):
        with seeded(0):
            return fixed(numbers, **options)

    return make


@pytest.fixture
def function(seeded):
    with seeded(1):
        return DeepSetFunction(2, "mlp", dim=6, hidden=(8, 8)).double()


def exact_elbo(function, sets, logits):
    """Mean over the sets of E F + H for independent items, by enumeration."""
    value = Exact().value(function.bind(sets), torch.sigmoid(logits))
    p = torch.sigmoid(logits)
    entropy = segment_sum(-(p * p.log() + (1 - p) * (1 - p).log()), sets)
    return (value + entropy).mean()


def tables(function, sets):
    """For each set its subsets `(2^n, n)` and the values of F `(2^n,)`."""
    for number, n in enumerate(sets.lengths.tolist()):
        subsets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=torch.float64)
        masks = torch.zeros(len(subsets), sets.layout.total, dtype=torch.float64)
        masks[:, sets.layout.ids == number] = subsets
        yield subsets, function.bind(sets).value(masks)[:, number].detach()


def best_mean_field(function, sets, starts=20):
    """The largest ELBO of independent items: damped fixed points by enumeration, from many starts."""
    generator, best = torch.Generator().manual_seed(0), []
    for subsets, values in tables(function, sets):
        x = 4 * torch.randn(starts, subsets.shape[1], generator=generator, dtype=torch.float64)
        for _ in range(300):
            p = torch.sigmoid(x)
            weighted = torch.exp(p.log() @ subsets.T + (1 - p).log() @ (1 - subsets).T) * values
            x = 0.7 * x + 0.3 * (weighted @ subsets / p - weighted @ (1 - subsets) / (1 - p))
        p = torch.sigmoid(x)
        value = torch.exp(p.log() @ subsets.T + (1 - p).log() @ (1 - subsets).T) @ values
        best.append((value + bernoulli_entropy(x).sum(1)).max())
    return torch.stack(best).mean()


def log_partition(function, sets):
    return torch.stack([values.logsumexp(0) for _, values in tables(function, sets)]).mean()


def train(network, bound, steps, samples, rate=0.05):
    """Adam with a rate that falls to 0."""
    noise, optimiser = FreshNoise(3), torch.optim.Adam(network.parameters(), lr=rate)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimiser.zero_grad()
        network.loss(bound, noise, samples).backward()
        optimiser.step()


def mean_and_error(numbers):
    """Mean of repeated results, and its standard error."""
    stacked = torch.stack(numbers)
    return stacked.mean(0), stacked.std(0) / len(numbers) ** 0.5


# What every network owes.


def test_one_logit_for_each_item_whatever_the_batch(network):
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

    def loss(some):
        return network.loss(function.bind(some), ItemNoise(some), 6)

    alone = torch.stack([loss(sets[number : number + 1]) for number in range(len(sets))])
    torch.testing.assert_close(loss(sets), alone.mean(), rtol=1e-10, atol=1e-12)
    moved = sets.with_values(sets.values[torch.tensor([2, 0, 3, 1, 4, 7, 5, 6])])
    torch.testing.assert_close(loss(moved), loss(sets), rtol=1e-10, atol=1e-12)
    assert loss(sets).dtype == torch.float64


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1]])
def test_loss_without_items(network, function, sizes):
    sets = draw(sizes)
    loss = network.loss(function.bind(sets), FreshNoise(0), 3)
    loss.backward()
    assert loss.isfinite()
    if sizes and not sum(sizes):
        empty = function.value(sets, torch.zeros(1, 0, dtype=torch.bool)).mean()
        torch.testing.assert_close(loss, -empty)


def test_f_sees_whole_subsets(network):
    sets = draw([4, 2])
    bound = pairs([4, 2], 1.0).bind(sets)
    network.loss(bound, FreshNoise(0), 50)
    assert set(bound.seen[0].unique().tolist()) == {0.0, 1.0}


def test_one_bound_function_serves_both_steps(network, function):
    """The network gets a gradient everywhere, F none, and the graph of F is left whole for its own step."""
    sets = draw([4, 0, 3])
    masks = torch.ones(1, 7, dtype=torch.bool)
    (wanted,) = torch.autograd.grad(function.value(sets, masks).sum(), function.phi.layers[0].weight)
    bound = function.bind(sets)
    network.loss(bound, FreshNoise(0), 4).backward()
    assert all(p.grad is None for p in function.parameters())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())
    assert sum(float(p.grad.abs().sum()) for p in network.parameters()) > 0
    bound.value(masks).sum().backward()
    torch.testing.assert_close(function.phi.layers[0].weight.grad, wanted)


def test_without_gradients_the_loss_has_the_same_value(network, function):
    bound = function.bind(draw([4, 0, 3]))
    with torch.no_grad():
        value = network.loss(bound, FreshNoise(0), 4)
    assert not value.requires_grad
    torch.testing.assert_close(value, network.loss(bound, FreshNoise(0), 4).detach())


@TORCH
def test_a_loss_whose_gradient_would_be_lost_is_refused(network, function):
    """Under `vmap` inside of `grad`, and in forward mode, bits do not say that they are followed."""
    bound, weights = function.bind(draw([4, 0, 3])), dict(network.named_parameters())

    def loss(weights):
        return torch.func.functional_call(LossOf(network, bound), {f"network.{k}": v for k, v in weights.items()}, ())

    ones = {name: torch.ones_like(value) for name, value in weights.items()}
    several = {name: value.detach()[None] for name, value in weights.items()}
    for ask in (
        lambda: torch.func.grad(loss)(weights),
        lambda: torch.func.grad(lambda w: torch.func.vmap(loss)(w).sum())(several),
        lambda: torch.func.jvp(loss, (weights,), (ones,)),
    ):
        with pytest.raises(OptionError, match="has a gradient by backward"):
            ask()
    alone = torch.func.vmap(loss)(several)
    torch.testing.assert_close(alone[0], network.loss(bound, ItemNoise(bound.sets), 3).detach())


def test_constant_functions_leave_the_entropy(make_fixed):
    class Nothing(BoundSetFunction):
        relaxed, sets = True, marked([3])

        def value(self, masks):
            return torch.zeros(len(masks), 1, dtype=torch.float64)

    network = make_fixed([0.5, -1.0, 2.0])
    network.loss(Nothing(), FreshNoise(0), 2).backward()
    x = network.start(marked([3]))
    (wanted,) = torch.autograd.grad(-bernoulli_entropy(x).sum(), network.head[0].weight)
    torch.testing.assert_close(network.head[0].weight.grad, wanted)


def test_bad_options(function, seeded):
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


# Entropy.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_of_one_bit(dtype):
    x = torch.tensor([-100.0, -20.0, -3.0, -0.1, 0.0, 0.7, 5.0, 30.0, 100.0], dtype=dtype, requires_grad=True)
    entropy = bernoulli_entropy(x)
    (slope,) = torch.autograd.grad(entropy.sum(), x)
    # with a small number of its own for the rarer outcome, which a plain 1 - p would round away
    rare = [math.exp(-abs(v)) / (1 + math.exp(-abs(v))) for v in x.tolist()]
    wanted = [-(p * math.log(p) + (1 - p) * math.log1p(-p)) for p in rare]
    assert entropy.tolist() == pytest.approx(wanted, rel=1e-5 if dtype == torch.float32 else 1e-13, abs=1e-40)
    wanted = [-v * p * (1 - p) for v, p in zip(x.tolist(), rare, strict=True)]
    assert slope.tolist() == pytest.approx(wanted, rel=1e-4 if dtype == torch.float32 else 1e-12, abs=1e-15)


@pytest.mark.parametrize("marginal", [None, False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sure_items_keep_everything_finite(make_fixed, marginal, dtype):
    logits = torch.tensor([100.0, -100.0, 0.0, 2000.0])
    if marginal is None:
        network = make_fixed(logits)
    else:
        # the own part of the noise nearly gone, half of the shared parts saturated
        extremes = torch.tensor([[-200.0, 100.0, -100.0], [-200.0, 0.0, 0.0], [50.0, 3.0, 1.0], [0.0, 50.0, 0.0]])
        network = make_fixed(torch.cat([logits[:, None], extremes], 1), marginal_entropy=marginal)
    sets = marked([4])
    network, sets = network.to(dtype), sets.with_values(sets.values.to(dtype))
    loss = network.loss(Modular().bind(sets), FreshNoise(0), 8)
    loss.backward()
    assert loss.isfinite() and bool(network.head[0].weight.grad.isfinite().all())
    bits = network.draw(sets, FreshNoise(0), 1000).scores > 0
    assert bits.double().mean(0)[[0, 1, 3]].tolist() == [1.0, 0.0, 1.0]


# Independent items.


def test_independent_loss_and_gradient(make_fixed):
    """Unbiased in value. The gradient is that of E F with each psi replaced by the mean of its relaxed bit."""
    sizes = [3, 0, 2]
    sets, function = marked(sizes), pairs([3, 0, 2], 1.0)
    logits = torch.tensor([0.3, -1.2, 2.0, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    network, bound, noise = make_fixed(logits.detach()), function.bind(sets), FreshNoise(5)
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
    # the bias of the relaxation, known without sampling: under 2 % of the part that comes from F
    assert bool(((factor / (p * (1 - p)) - 1).abs() < 0.02).all())


def relaxed_slope(logit, tau):
    """Derivative by the logit of the mean of sigmoid((logit + logistic noise) / tau), by quadrature."""

    # the density of the noise where the bit turns, averaged over where a logistic variable says that it turns
    def integrand(y):
        at = tau * y - logit
        return math.exp(-abs(at)) / (1 + math.exp(-abs(at))) ** 2 * math.exp(-abs(y)) / (1 + math.exp(-abs(y))) ** 2

    return quad(integrand, -40, 40, points=[0.0])[0]


@pytest.mark.parametrize("tau", [0.5, 0.1, 0.01])
def test_relaxed_bits_turn_into_bits(make_fixed, tau):
    scores = make_fixed([0.3, -1.0, 0.0]).draw(marked([3]), FreshNoise(0), 4000).scores
    distance = (torch.sigmoid(scores / tau) - (scores > 0).double()).abs().mean()
    # mean of sigmoid(-|score| / tau): at most 2 tau log 2 times the largest density of a score, which is 1/4
    assert distance < tau * math.log(2) / 2


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_training_reaches_the_mean_field_optimum(make_fixed, strength):
    sizes = [4, 3, 5]
    sets, function = marked(sizes), pairs(sizes, strength)
    network = make_fixed([0.0] * 12)
    before = exact_elbo(function, sets, network.start(sets)).item()
    train(network, function.bind(sets), 400, samples=8)
    after, best = exact_elbo(function, sets, network.start(sets)).item(), best_mean_field(function, sets).item()
    assert after <= best + 1e-9
    assert best - after < 0.03 * (best - before)


def test_training_on_a_neural_function(function, seeded):
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


# Correlated items: one common cause, so that everything is an integral over one number.

NUMBERS = [[0.0, -0.5, 1.5], [-1.4, -1.0, 0.8], [0.9, 0.0, -2.0]]


def parts(numbers):
    """Quantiles, own and shared weights, by NumPy from the raw numbers of the head."""
    x = np.array(numbers)
    own, shared = np.log1p(np.exp(x[:, 1])) + 1e-3, np.tanh(x[:, 2])
    length = np.sqrt(own**2 + shared**2)
    return norm.ppf(1 / (1 + np.exp(-x[:, 0]))), own / length, shared / length


def joint(numbers):
    """Probability of every subset, and the entropy given the common cause, by Gauss-Hermite quadrature."""
    quantile, own, shared = parts(numbers)
    z, weight = np.polynomial.hermite_e.hermegauss(200)
    weight = weight / weight.sum()
    p = norm.cdf((quantile + np.outer(z, shared)) / own)
    subsets = np.array(list(itertools.product([0, 1], repeat=len(numbers))))
    given = np.where(subsets[:, None, :] == 1, p, 1 - p).prod(2)
    conditional = -xlogy(given, given).sum(0) @ weight
    return subsets, given @ weight, conditional


def test_copula_keeps_the_probabilities_and_has_the_correlation(make_fixed):
    network, sets, draws = make_fixed([*NUMBERS, *NUMBERS], marginal_entropy=True), marked([3, 3]), 60000
    bits = (network.draw(sets, FreshNoise(2), draws).scores > 0).double()
    p = torch.sigmoid(network.start(sets)).detach()
    assert bool(((bits.mean(0) - p).abs() < 4 * (p * (1 - p) / draws).sqrt()).all())

    quantile, own, shared = parts(NUMBERS)
    correlation = network.correlation(sets)[0].detach().numpy()
    np.testing.assert_allclose(correlation, np.outer(shared, shared) + np.diag(own**2), rtol=1e-12)
    np.testing.assert_allclose(np.diag(correlation), 1.0, rtol=1e-12)
    for i, j in itertools.combinations(range(3), 2):
        both = multivariate_normal.cdf(quantile[[i, j]], cov=correlation[np.ix_([i, j], [i, j])])
        assert abs(both - p[i] * p[j]) > 0.03  # far enough from independence for the test to tell
        for set_number in range(2):
            seen = (bits[:, 3 * set_number + i] * bits[:, 3 * set_number + j]).mean()
            assert abs(seen - both) < 4 * math.sqrt(both * (1 - both) / draws)
        across = (bits[:, i] * bits[:, 3 + j]).mean()
        assert abs(across - p[i] * p[j]) < 4 * math.sqrt(p[i] * p[j] * (1 - p[i] * p[j]) / draws)


@pytest.mark.parametrize("samples", [1, 5, 150])
def test_copula_entropy_is_a_bound_that_tightens(make_fixed, samples):
    network, sets, noise = make_fixed(NUMBERS), marked([3]), FreshNoise(4)
    _, q, conditional = joint(NUMBERS)
    true = -(q * np.log(q)).sum()
    marginal = bernoulli_entropy(network.start(sets)).sum().item()
    assert conditional + 0.1 < true < marginal - 0.1
    repeats = 30000 // samples if samples < 150 else 400
    with torch.no_grad():
        # many sets at once are many repeats
        many = make_fixed(NUMBERS * 100)
        wide = marked([3] * 100)
        entropies = torch.cat([many.draw(wide, noise, samples).entropy for _ in range(max(1, repeats // 100))])
    mean, error = entropies.mean().item(), entropies.std().item() / len(entropies) ** 0.5
    assert error < 0.01
    if samples == 1:
        assert abs(mean - conditional) < 4 * error
    else:
        assert conditional + 0.05 < mean < true + 4 * error
    if samples == 150:
        assert true - mean < 0.02


def test_copula_entropy_has_the_right_gradient(make_fixed, seeded):
    """Given z against finite differences of itself; with many z against those of the true entropy."""
    sets = marked([3])
    network = make_fixed(NUMBERS)

    def conditional(weight):
        network.head[0]._parameters["weight"] = weight
        return network.draw(sets, ItemNoise(sets), 1).entropy

    with seeded(0):
        assert torch.autograd.gradcheck(conditional, network.head[0].weight.detach().clone().requires_grad_())

    many, wide, noise = make_fixed(NUMBERS * 50), marked([3] * 50), FreshNoise(8)
    weight, slopes = many.head[0].weight, []
    for _ in range(40):
        (slope,) = torch.autograd.grad(many.draw(wide, noise, 64).entropy.sum(), weight)
        slopes.append(slope.reshape(3, 50, 3).mean(1).T)
    mean, error = mean_and_error(slopes)

    def true(change):
        _, q, _ = joint(np.array(NUMBERS) + change)
        return -(q * np.log(q)).sum()

    steps = 1e-4 * np.eye(9).reshape(9, 3, 3)
    wanted = torch.tensor([(true(h) - true(-h)) / 2e-4 for h in steps]).reshape(3, 3)
    assert error.max() < 0.01
    assert (mean - wanted).abs().max() < 0.01 < wanted.abs().max() / 10


@TORCH
def test_copula_entropy_has_the_same_gradient_under_every_transform(make_fixed):
    sets, network = marked([3, 2]), make_fixed(NUMBERS + NUMBERS[:2])
    weight = network.head[0].weight.detach().clone()

    def entropy(weight):
        network.head[0]._parameters["weight"] = weight
        return network.draw(sets, ItemNoise(sets), 3).entropy.sum()

    given = weight.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(entropy(given), given)
    mapped = torch.func.grad(lambda w: torch.func.vmap(entropy)(w).sum())(weight[None])[0]
    _, along = torch.func.jvp(entropy, (weight,), (torch.cos(weight),))
    torch.testing.assert_close(mapped, wanted)
    torch.testing.assert_close(along, (wanted * torch.cos(weight)).sum())


def test_copula_loss_is_the_negative_bound(make_fixed):
    function, sets, noise = pairs([3], 1.0), marked([3]), FreshNoise(6)
    subsets, q, _ = joint(NUMBERS)
    value = function.bind(sets).value(torch.tensor(subsets, dtype=torch.float64))[:, 0].numpy()
    published = make_fixed(NUMBERS, marginal_entropy=True)
    with torch.no_grad():
        losses = [published.loss(function.bind(sets), noise, 2000) for _ in range(30)]
        marginal = bernoulli_entropy(published.start(sets)).sum().item()
    mean, error = mean_and_error(losses)
    assert abs(mean + float(q @ value) + marginal) < 4 * error < 0.05


def test_the_published_entropy_is_no_bound(make_fixed):
    """Two items that want to agree: correlation is worth it, and honest only if its price is paid."""
    sets = marked([2])
    function = Pairs(torch.full((2,), -3.0, dtype=torch.float64), 6 * (1 - torch.eye(2, dtype=torch.float64)))
    top, independent = log_partition(function, sets).item(), best_mean_field(function, sets).item()
    found = {}
    for marginal in (True, False):
        network = make_fixed([[0.1, 0.0, 0.3], [0.1, 0.0, 0.2]], marginal_entropy=marginal)
        train(network, function.bind(sets), 300, samples=16)
        with torch.no_grad():
            found[marginal] = -torch.stack(
                [network.loss(function.bind(sets), FreshNoise(s), 16) for s in range(200)]
            ).mean()
    assert found[True] > top + 0.3
    assert independent + 0.2 < found[False] < top + 0.02


def test_free_variance_is_what_the_network_says(make_fixed):
    network, sets, draws = make_fixed(NUMBERS, marginal_entropy=True, free_variance=True), marked([3]), 60000
    numbers = torch.tensor(NUMBERS, dtype=torch.float64)
    own, shared = torch.nn.functional.softplus(numbers[:, 1]), torch.tanh(numbers[:, 2])
    torch.testing.assert_close(network.correlation(sets)[0].detach(), torch.outer(shared, shared) + own.square().diag())
    bits = (network.draw(sets, FreshNoise(2), draws).scores > 0).double()
    # In where Phi(g) > 1 - psi, and g is a normal number of this deviation.
    deviation = (own.square() + shared.square()).sqrt()
    p = torch.special.ndtr(torch.special.ndtri(torch.sigmoid(numbers[:, 0])) / deviation)
    assert bool(((bits.mean(0) - p).abs() < 4 * (p * (1 - p) / draws).sqrt()).all())
    with pytest.raises(OptionError, match="marginal_entropy=True too"):
        make_fixed(NUMBERS, free_variance=True)


def test_with_free_variance_psi_stays_near_a_half(make_fixed):
    """Why the published copula scores better than a correct one: mean field then starts from next to nothing."""
    sets = marked([2])
    function = Pairs(torch.tensor([3.0, -3.0], dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    top = log_partition(function, sets).item()
    distance = {}
    for free in (True, False):
        network = make_fixed([[0.1, 0.0, 0.3], [0.1, 0.0, 0.2]], marginal_entropy=True, free_variance=free)
        train(network, function.bind(sets), 600, samples=16)
        with torch.no_grad():
            bound = -torch.stack([network.loss(function.bind(sets), FreshNoise(s), 16) for s in range(200)]).mean()
        distance[free] = (torch.sigmoid(network.start(sets)) - 0.5).abs().max().item()
        assert bound > top + 0.3 if free else bound < top + 0.02
    assert distance[True] < 0.35 < 0.42 < distance[False]


@pytest.mark.parametrize("name", NETWORKS)
def test_entropy_in_half_precision_counts_all_items(name, seeded):
    sizes = [1000, 10]
    with seeded(0):
        network = NETWORKS[name](ItemWise(nn.Identity(), 2), ())
    nn.init.zeros_(network.head[0].weight)
    nn.init.zeros_(network.head[0].bias)
    sets = draw(sizes).to(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draw_of_all = network.draw(sets, FreshNoise(0), 2)
        network.loss(Modular().bind(sets), FreshNoise(0), 2).backward()
    assert draw_of_all.scores.dtype == torch.bfloat16
    assert bool(network.head[0].weight.grad.isfinite().all())
    most = math.log(2) * torch.tensor(sizes).float()
    if name == "copula":
        # Correlation takes its share, which single precision tells.
        most = network.draw(sets, FreshNoise(0), 2).entropy
    torch.testing.assert_close(draw_of_all.entropy.float(), most, rtol=0.01, atol=0)
