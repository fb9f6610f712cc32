"""`Bernoulli` is unbiased in every coordinate, by a check that turns biased variants away."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import pytest
import torch
from torch import Tensor

from setgrad.errors import OptionError
from setgrad.functions import (
    Bernoulli,
    Exact,
    FreshNoise,
    ItemNoise,
    LogDeterminant,
    NoiseSource,
    multilinear_gradient,
    multilinear_hessian_vector,
    multilinear_value,
)
from setgrad.sets import Layout, Sets
from tests.functions.contract import draw_sets
from tests.functions.enumeration import Truth, direction, enumerate_subsets, probabilities, wavy

SIZES = [10, 0, 1, 4]
REPEATS = 250
FUNCTIONS = {"wavy": wavy(), "log-determinant": LogDeterminant(ridge=0.2)}


def draws(name: str, sets: Sets, psi: Tensor, noise: NoiseSource) -> Truth:
    """Repeated estimates, one row for each: value, gradient and Hessian times a vector."""
    function, vector, estimator = FUNCTIONS[name], direction(sets), Bernoulli(32, noise)

    def repeat(ask: Callable[[], Tensor]) -> Tensor:
        return torch.stack([ask() for _ in range(REPEATS)])

    return Truth(
        repeat(lambda: multilinear_value(function, sets, psi, estimator=estimator)),
        repeat(lambda: multilinear_gradient(function, sets, psi, estimator=estimator)),
        repeat(lambda: multilinear_hessian_vector(function, sets, psi, vector, estimator=estimator)),
    )


def standard_errors_off(estimates: Tensor, truth: Tensor) -> float:
    """How far the mean is from the truth in standard errors, for the worst coordinate; rounding is forgiven."""
    error = (estimates.mean(0) - truth).abs() - 1e-12
    return float((error.clamp(min=0) / (estimates.std(0) / len(estimates) ** 0.5).clamp(min=1e-300)).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mean_of_many_draws(name):
    sets = draw_sets(SIZES)
    psi = probabilities(sets)
    assert {0.0, 1.0} < set(psi.tolist())
    truth = enumerate_subsets(FUNCTIONS[name], sets, psi, direction(sets))
    estimates = draws(name, sets, psi, FreshNoise(seed=3))
    assert standard_errors_off(estimates.value, truth.value) < 4
    assert standard_errors_off(estimates.gradient, truth.gradient) < 4
    assert standard_errors_off(estimates.product, truth.product) < 4
    # Something was random: otherwise the check would be empty.
    assert bool((estimates.gradient.std(0) > 1e-3).sum() >= 6)


@final
class _Tilted(NoiseSource):
    """Numbers that are a little too small: items are chosen too often."""

    def __init__(self) -> None:
        self.inner = FreshNoise(seed=3)

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        return self.inner.uniform(layout, samples) ** 1.1

    def symmetrise(self, x: Tensor) -> Tensor:
        return x


@final
class _Entangled(NoiseSource):
    """One number for all items of a set: the right law for each, the wrong one together."""

    def __init__(self) -> None:
        self.inner = FreshNoise(seed=3)

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        return self.inner.uniform(layout, samples)[:, layout.offsets[layout.ids]]

    def symmetrise(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("noise", [_Tilted, _Entangled])
def test_the_check_turns_biased_draws_away(noise):
    sets = draw_sets(SIZES)
    psi = probabilities(sets)
    truth = enumerate_subsets(FUNCTIONS["log-determinant"], sets, psi, direction(sets))
    estimates = draws("log-determinant", sets, psi, noise())
    assert standard_errors_off(estimates.value, truth.value) > 6
    assert standard_errors_off(estimates.gradient, truth.gradient) > 6
    assert standard_errors_off(estimates.product, truth.product) > 6


def test_more_samples_bring_it_closer():
    sets = draw_sets(SIZES)
    psi = probabilities(sets)
    truth = multilinear_gradient(wavy(), sets, psi, estimator=Exact())

    def error(samples: int) -> float:
        estimates = [
            multilinear_gradient(wavy(), sets, psi, estimator=Bernoulli(samples, FreshNoise(s))) for s in range(30)
        ]
        return float((torch.stack(estimates) - truth).square().mean() ** 0.5)

    # The root mean square error falls as one over the root of the number of samples.
    assert error(160) / error(10) == pytest.approx(0.25, rel=0.2)


def test_certain_items_leave_nothing_to_chance():
    sets = draw_sets([4, 0, 1])
    psi = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    vector = direction(sets)
    for ask in (multilinear_value, multilinear_gradient):
        exact = ask(wavy(), sets, psi, estimator=Exact())
        torch.testing.assert_close(ask(wavy(), sets, psi, estimator=Bernoulli(1)), exact, rtol=1e-14, atol=1e-14)
    product = multilinear_hessian_vector(wavy(), sets, psi, vector, estimator=Bernoulli(1))
    exact = multilinear_hessian_vector(wavy(), sets, psi, vector, estimator=Exact())
    torch.testing.assert_close(product, exact, rtol=1e-13, atol=1e-13)


def test_a_graph_to_psi_is_refused_unless_it_is_off():
    sets = draw_sets([3])
    psi = torch.full((3,), 0.5, dtype=torch.float64, requires_grad=True)
    estimator = Bernoulli(2)
    for ask in (multilinear_value, multilinear_gradient):
        with pytest.raises(OptionError, match="detach psi"):
            ask(wavy(), sets, psi, estimator=estimator)
    with pytest.raises(OptionError, match="detach psi"):
        multilinear_hessian_vector(wavy(), sets, psi, torch.ones(3).double(), estimator=estimator)
    with torch.no_grad():
        multilinear_gradient(wavy(), sets, psi, estimator=estimator)
    multilinear_gradient(wavy(), sets, psi.detach(), estimator=estimator)
    bound = wavy().bind(sets)
    for ask in (estimator.value, estimator.gradient):
        mapped = torch.func.vmap(lambda p, ask=ask: ask(bound, p), randomness="same")
        with pytest.raises(OptionError, match="detach psi"):
            torch.func.grad(lambda p, mapped=mapped: mapped(p).sum())(psi.detach()[None])


def test_item_noise_makes_a_set_independent_of_batch_and_order():
    sets = draw_sets([4, 0, 3])
    # A twin of the first item of the first set, at the end of that set.
    sets = Sets.from_lengths(torch.cat([sets.values[:4], sets.values[:1], sets.values[4:]]), [5, 0, 3])
    psi = torch.tensor([0.3, 0.6, 0.5, 0.9, 0.3, 0.2, 0.7, 0.4], dtype=torch.float64)

    def gradient(sets: Sets, psi: Tensor) -> Tensor:
        return multilinear_gradient(wavy(), sets, psi, estimator=Bernoulli(4, ItemNoise(sets, seed=2)))

    expected = gradient(sets, psi)
    assert expected[0] == expected[4]
    torch.testing.assert_close(gradient(sets[:1], psi[:5]), expected[:5], rtol=1e-13, atol=1e-13)
    shuffle = torch.tensor([4, 2, 0, 1, 3, 7, 5, 6])
    shuffled = gradient(sets.with_values(sets.values[shuffle]), psi[shuffle])
    torch.testing.assert_close(shuffled, expected[shuffle], rtol=1e-13, atol=1e-13)
