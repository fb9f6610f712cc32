"""`Bernoulli` is unbiased in every coordinate, by a test that rejects biased variants."""

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
from tests.functions.enumeration import Truth, direction, enumerate_subsets, estimate, probabilities, wavy

SIZES = [10, 0, 1, 4]
REPEATS = 250
FUNCTIONS = {"wavy": wavy(), "log-determinant": LogDeterminant(ridge=0.2)}


def draws(name: str, sets: Sets, psi: Tensor, noise: NoiseSource) -> Truth:
    """Return repeated estimates, one row each, of value, gradient and Hessian times a vector."""
    function, vector, estimator = FUNCTIONS[name], direction(sets), Bernoulli(32, noise)
    results = [estimate(function, sets, psi, vector, estimator) for _ in range(REPEATS)]
    return Truth(*(torch.stack(parts) for parts in zip(*results, strict=True)))


def standard_errors_off(estimates: Truth, truth: Truth) -> list[float]:
    """Return the largest errors of the means over all coordinates, in standard errors, beyond rounding."""
    errors = [(e.mean(0) - t).abs() - 1e-12 for e, t in zip(estimates, truth, strict=True)]
    spreads = [(e.std(0) / len(e) ** 0.5).clamp(min=1e-300) for e in estimates]
    return [float((error.clamp(min=0) / spread).max()) for error, spread in zip(errors, spreads, strict=True)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_mean_of_many_draws_is_the_truth(name):
    sets = draw_sets(SIZES)
    psi = probabilities(sets)
    assert {0.0, 1.0} < set(psi.tolist())
    truth = enumerate_subsets(FUNCTIONS[name], sets, psi, direction(sets))
    estimates = draws(name, sets, psi, FreshNoise(seed=3))
    assert max(standard_errors_off(estimates, truth)) < 4
    # The estimates are random; otherwise the test would be empty.
    assert bool((estimates.gradient.std(0) > 1e-3).sum() >= 6)


@final
class _Changed(NoiseSource):
    """Fresh numbers, changed."""

    def __init__(self, change: Callable[[Tensor, Layout], Tensor]) -> None:
        self.inner, self.change = FreshNoise(seed=3), change

    def uniform(self, layout: Layout, samples: int) -> Tensor:
        return self.change(self.inner.uniform(layout, samples), layout)


CHANGES: dict[str, Callable[[Tensor, Layout], Tensor]] = {
    # Numbers that are slightly too small, so that items are chosen too often.
    "biased": lambda u, layout: u**1.1,
    # One number for all items of a set: the right distribution of each, the wrong joint distribution.
    "correlated": lambda u, layout: u[:, layout.offsets[layout.ids]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_test_rejects_biased_draws(change):
    sets = draw_sets(SIZES)
    psi = probabilities(sets)
    truth = enumerate_subsets(FUNCTIONS["log-determinant"], sets, psi, direction(sets))
    estimates = draws("log-determinant", sets, psi, _Changed(CHANGES[change]))
    assert min(standard_errors_off(estimates, truth)) > 6


def test_error_falls_with_the_root_of_the_number_of_samples():
    sets = draw_sets(SIZES)
    psi = probabilities(sets)
    truth = multilinear_gradient(wavy(), sets, psi, estimator=Exact())

    def error(samples: int) -> float:
        estimates = [
            multilinear_gradient(wavy(), sets, psi, estimator=Bernoulli(samples, FreshNoise(s))) for s in range(30)
        ]
        return float((torch.stack(estimates) - truth).square().mean() ** 0.5)

    assert error(160) / error(10) == pytest.approx(0.25, rel=0.2)


def test_certain_items_give_the_exact_result():
    sets = draw_sets([4, 0, 1])
    psi = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    result, exact = (estimate(wavy(), sets, psi, direction(sets), kind) for kind in (Bernoulli(1), Exact()))
    torch.testing.assert_close(result[:2], exact[:2], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(result.product, exact.product, rtol=1e-13, atol=1e-13)


def test_differentiating_psi_raises_unless_gradients_are_off():
    sets = draw_sets([3])
    psi = torch.full((3,), 0.5, dtype=torch.float64, requires_grad=True)
    estimator = Bernoulli(2)
    for compute in (multilinear_value, multilinear_gradient):
        with pytest.raises(OptionError, match="detach psi"):
            compute(wavy(), sets, psi, estimator=estimator)
    with pytest.raises(OptionError, match="detach psi"):
        multilinear_hessian_vector(wavy(), sets, psi, torch.ones(3).double(), estimator=estimator)
    with torch.no_grad():
        multilinear_gradient(wavy(), sets, psi, estimator=estimator)
    multilinear_gradient(wavy(), sets, psi.detach(), estimator=estimator)
    bound = wavy().bind(sets)
    for method in (estimator.value, estimator.gradient):
        mapped = torch.func.vmap(lambda p, method=method: method(bound, p), randomness="same")
        with pytest.raises(OptionError, match="detach psi"):
            torch.func.grad(lambda p, mapped=mapped: mapped(p).sum())(psi.detach()[None])


def test_item_noise_makes_a_set_independent_of_batch_and_order():
    sets = draw_sets([4, 0, 3])
    # The first item of the first set again, at the end of that set.
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
