"""Sets that are read in chunks, with phi="umbc": the same results and gradients as for whole sets."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import setgrad as sg
from setgrad.errors import OptionError
from setgrad.functions import FreshNoise
from setgrad.inference import WeightedSum, draw_partial_subsets
from setgrad.selector import _rounds
from setgrad.selector._chunked import Chunks
from setgrad.sets import Choices, Sets

SIZE = 50


def make_choices(count, seed=0, size=SIZE):
    """Sets in which the items above the mean of their set are chosen, if their second feature agrees."""
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(count, size, 2, generator=generator) + torch.randn(count, 1, 2, generator=generator)
    chosen = (items[..., 0] > items[..., 0].mean(1, keepdim=True)) & (items[..., 1] > 0)
    sets = Sets.from_lengths(items.flatten(0, 1), [size] * count)
    return Choices(sets, sets.with_values(chosen.flatten()))


def fit(choices, **options):
    usual: dict[str, Any] = {"dim": 8, "layers": 1, "heads": 2, "hidden": (16,), "max_epochs": 2, "random_state": 0}
    return sg.SubsetSelector(phi="umbc", verbose=0, **{**usual, **options}).fit(*choices)


def with_chunks(selector, size, gradient="exact"):
    """Return a copy that reads sets in chunks of this size; None for whole sets."""
    other = copy.deepcopy(selector)
    other._exact_model = None
    config = selector.model_.config.with_options(chunk_size=10**6 if size is None else size, chunk_gradient=gradient)
    other.model_.config = config
    return other


@pytest.fixture(scope="module")
def choices():
    return make_choices(12)


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "with pairs"])
def selector(request, choices):
    return fit(choices, pairs=request.param, max_epochs=10, learning_rate=1e-2)


@pytest.mark.parametrize("size", [1, 7, 49])
def test_every_partition_gives_the_same_predictions(selector, choices, size):
    chunked, sets = with_chunks(selector, size), choices.sets.to(torch.float64)
    given = [[3, 8]] * len(sets)
    for kwargs in ({}, {"given": given}, {"given": given, "excluded": [[0]] * len(sets)}):
        expected, found = (s.decision_function(sets, **kwargs).values for s in (selector, chunked))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        for size_ in (None, 30):
            picks, others = (s.predict(sets, size=size_, **kwargs).values for s in (selector, chunked))
            assert torch.equal(picks, others)
    subsets = [list(range(5))] * len(sets)
    torch.testing.assert_close(chunked.gains(sets, subsets).values, selector.gains(sets, subsets).values)
    torch.testing.assert_close(chunked.value(sets, subsets), selector.value(sets, subsets))


def loss_gradients(selector, choices, generator=None):
    """Return the gradient of the training loss of one set, for all weights."""
    model = copy.deepcopy(selector.model_).double()
    model.config = selector.model_.config
    sets, subsets = choices.sets[:1].to(torch.float64), choices.subsets[:1]
    (member,) = model.each()
    if model.config.reads_in_chunks(sets):
        bound = model.bind_chunks(member, sets, generator)
    else:
        bound = member.bind(model.standardised(sets))
    partial = draw_partial_subsets(subsets, 4, FreshNoise(1), half=True)
    loss = WeightedSum()(bound.gains(partial), partial, subsets, None)
    return [loss.detach(), *torch.autograd.grad(loss, list(member.parameters()), materialize_grads=True)]


@pytest.mark.parametrize("size", [1, 7, 49])
def test_the_gradient_of_chunks_is_that_of_the_whole_set(selector, choices, size):
    found, expected = (loss_gradients(with_chunks(selector, n), choices) for n in (size, None))
    assert sum(bool(g.abs().max() > 1e-6) for g in expected) > 0.8 * len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_the_expectation_of_the_sampled_gradient_is_the_exact_one(selector, choices, monkeypatch):
    """Over all draws of a chunk in each of the three passes."""
    # The passes have two or three chunks, so that six numbers stand for all draws of each.
    sampled, size = with_chunks(selector, 17, "sample"), 6
    draws: list[int] = []
    monkeypatch.setattr(Chunks, "_draw", lambda chunks, count: draws.pop() % count)
    gradients = []
    for number in range(size**3):
        draws[:] = [number % size, number // size % size, number // size**2]
        gradients.append(loss_gradients(sampled, choices))
        assert not draws
    draws_of = [torch.stack(parts) for parts in zip(*gradients, strict=True)]
    exact = loss_gradients(with_chunks(selector, None), choices)
    for draw, expected in zip(draws_of, exact, strict=True):
        torch.testing.assert_close(draw.mean(0), expected, rtol=1e-9, atol=1e-11)
    spread, size_of = (sum(float(x.square().sum()) for x in xs) for xs in ([d.std(0) for d in draws_of], exact[1:]))
    assert spread > 0.1 * size_of
    # The loss itself is not sampled.
    assert float(draws_of[0].std()) < 1e-12
