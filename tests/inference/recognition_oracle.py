"""Helpers of the tests of recognition networks: functions, networks with known outputs, and enumeration."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from setgrad.encoders import ItemWise
from setgrad.functions import BoundSetFunction, FreshNoise, SetFunction
from setgrad.inference import CopulaRecognition, IndependentRecognition, Recognition
from setgrad.inference.recognition import bernoulli_entropy
from setgrad.sets import Sets, segment_sum

# Warnings of torch's forward mode, and of functions without a rule for vmap.
TORCH = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script:DeprecationWarning", "ignore:There is a performance drop:UserWarning"
)


class Pairs(SetFunction):
    """Scores of items and of pairs of items: multilinear, so its derivative at a subset is the gain."""

    def __init__(self, scores, pairs):
        self.scores, self.pairs = scores, pairs

    def bind(self, sets):
        return BoundPairs(self, sets)


class BoundPairs(BoundSetFunction):
    relaxed = True

    def __init__(self, function, sets):
        self.function, self.sets, self.evaluated = function, sets, []

    def value(self, masks):
        self.evaluated.append(masks.detach())
        s = masks.to(self.function.scores.dtype)
        return segment_sum((s * (self.function.scores + s @ self.function.pairs / 2)).T, self.sets).T


def one_hot(sizes):
    """Return one-hot items, so that a linear head can give each item its numbers."""
    return Sets.from_lengths(torch.eye(sum(sizes), dtype=torch.float64), sizes)


def pairs(sizes, strength, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    table = torch.randn(n, n, generator=generator, dtype=torch.float64).triu(1) * strength
    ids = one_hot(sizes).layout.ids
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    return Pairs(scores, (table + table.T) * (ids[:, None] == ids))


def constant_network(numbers, **options):
    """Return a network that outputs row i of the numbers for item i."""
    numbers = torch.as_tensor(numbers, dtype=torch.float64)
    rows = numbers if numbers.dim() == 2 else numbers[:, None]
    encoder = ItemWise(nn.Identity(), len(numbers))
    # The random initial weights are overwritten.
    with torch.random.fork_rng(devices=[]):
        if numbers.dim() == 1:
            network: Recognition = IndependentRecognition(encoder, (), **options)
        else:
            network = CopulaRecognition(encoder, (), rank=rows.shape[1] - 2, **options)
    network.double()
    layer: Any = network.head[0]
    with torch.no_grad():
        layer.weight.copy_(rows.T)
        layer.bias.zero_()
    return network


def tables(function, sets):
    """Yield the subsets `(2^n, n)` of each set, and the values of F `(2^n,)`."""
    for number, n in enumerate(sets.lengths.tolist()):
        subsets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=torch.float64)
        masks = torch.zeros(len(subsets), sets.layout.total, dtype=torch.float64)
        masks[:, sets.layout.ids == number] = subsets
        yield subsets, function.bind(sets).value(masks)[:, number].detach()


def best_mean_field(function, sets, starts=20):
    """Return the largest ELBO of independent items, by damped iteration with enumeration from many starts."""
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
    """Train by Adam with a learning rate that falls to 0."""
    noise, optimiser = FreshNoise(3), torch.optim.Adam(network.parameters(), lr=rate)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - step / steps)
        optimiser.zero_grad()
        network.loss(bound, noise, samples).backward()
        optimiser.step()


def mean_bound(network, function, sets):
    """Return the mean of the bound on the log-partition function over 200 draws of noise."""
    with torch.no_grad():
        return -torch.stack([network.loss(function.bind(sets), FreshNoise(s), 16) for s in range(200)]).mean()


def mean_and_error(numbers):
    """Return the mean of repeated results, and its standard error."""
    stacked = torch.stack(numbers)
    return stacked.mean(0), stacked.std(0) / len(numbers) ** 0.5
