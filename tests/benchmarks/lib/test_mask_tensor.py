"""The mask-tensor rival computes the same as setgrad."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.lib.mask_tensor import MaskTensorMeanField
from setgrad.functions import Bernoulli, DeepSetFunction, Exact, FreshNoise
from setgrad.inference import OneStepMeanField, SampledNegatives, mean_field
from setgrad.sets import Sets
from tests.benchmarks.helpers import Seeded


def _function(*, modular: bool) -> DeepSetFunction:
    function = DeepSetFunction(2, phi="paper", dim=8, hidden=(12, 12)).double()
    with torch.no_grad():
        # With the initial weights F is nearly modular; with larger ones items interact.
        first, second, last = (layer for layer in function.rho if isinstance(layer, nn.Linear))
        for layer in (first, second, last):
            layer.weight.mul_(3)
        if modular:
            # With these biases every unit stays active for every subset, so rho is affine.
            first.bias.fill_(100)
            second.bias.fill_(100)
            second.weight.mul_(0.03)
    return function


def _batch(sets: int = 2, items: int = 6) -> tuple[Sets, Sets]:
    generator = torch.Generator().manual_seed(3)
    values = Sets.from_lengths(torch.randn(sets * items, 2, generator=generator, dtype=torch.float64), [items] * sets)
    chosen = (torch.arange(items) < 2).repeat(sets)
    return values, values.with_values(chosen)


def test_gains_agree_with_enumeration_in_expectation(seeded: Seeded) -> None:
    with seeded():
        function = _function(modular=False)
    sets, _ = _batch()
    psi = torch.tensor([0.5, 0.1, 0.9, 0.0, 1.0, 0.3] * 2, dtype=torch.float64)
    rival = MaskTensorMeanField(function, samples=4000, seed=0)
    with torch.no_grad():
        features = function.phi(sets).reshape(2, 6, -1)
        gains = rival.gains(features, psi.reshape(2, 6)).transpose(1, 2).reshape(12, -1)
        exact = Exact().gradient(function.bind(sets), psi)
    error = gains.std(1) / gains.shape[1] ** 0.5
    assert (error > 1e-4).all(), "for a modular function this test would be empty"
    assert ((gains.mean(1) - exact).abs() < 4 * error).all()


def test_gradient_of_the_weights_agrees_in_expectation(seeded: Seeded) -> None:
    with seeded():
        function = _function(modular=False)
    sets, _ = _batch()
    rival = MaskTensorMeanField(function, samples=200, seed=1)
    weight = next(function.rho.parameters())

    def one_draw() -> torch.Tensor:
        return torch.autograd.grad(rival.logits(sets).sum(), weight)[0].flatten()

    draws = torch.stack([one_draw() for _ in range(60)])
    exact = Exact().gradient(function.bind(sets), torch.full((12,), 0.5, dtype=torch.float64))
    right = torch.autograd.grad(exact.sum(), weight)[0].flatten()
    error = draws.std(0) / len(draws) ** 0.5
    # 96 entries: the largest of 96 normal deviations exceeds 4.5 for one in 1500 seeds.
    assert ((draws.mean(0) - right).abs() <= 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_loss_and_gradients_are_equal_for_a_modular_function(seeded: Seeded, steps: int) -> None:
    with seeded():
        function = _function(modular=True)
    sets, subsets = _batch()
    rival = MaskTensorMeanField(function, samples=2, steps=steps, seed=0)
    loss = SampledNegatives(FreshNoise(5))
    coordinates = loss.coordinates(subsets, np.array([2, 2]))
    assert coordinates is not None
    negatives = coordinates[~subsets.values[coordinates]]
    assert len(negatives) == 4
    solver = OneStepMeanField(steps)
    found = mean_field(function, sets, estimator=Bernoulli(2), solver=solver, coordinates=coordinates)
    ours = loss(found.logits, subsets, coordinates, None)
    theirs = rival.loss(rival.logits(sets), subsets, negatives)
    torch.testing.assert_close(ours, theirs)
    pairs = zip(*(torch.autograd.grad(value, list(function.parameters())) for value in (ours, theirs)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b)


def test_steps_before_the_last_move_psi(seeded: Seeded) -> None:
    with seeded():
        function = _function(modular=False)
    sets, _ = _batch()
    with torch.no_grad():
        one, three = (MaskTensorMeanField(function, samples=4000, steps=k, seed=0).logits(sets) for k in (1, 3))
        solver = OneStepMeanField(3)
        right = mean_field(function, sets, estimator=Exact(), solver=solver).logits.reshape(2, 6)
    assert (one - right).abs().max() > 0.1
    assert (three - right).abs().max() < 0.1


def test_negatives_are_as_many_as_chosen_and_never_chosen(seeded: Seeded) -> None:
    with seeded():
        function = _function(modular=False)
    _, subsets = _batch(sets=3, items=7)
    rival = MaskTensorMeanField(function, samples=1)
    draws = [rival.draw_negatives(subsets, 2) for _ in range(50)]
    for negatives in draws:
        assert not subsets.values[negatives].any()
        assert subsets.layout.ids[negatives].tolist() == [0, 0, 1, 1, 2, 2]
    drawn = torch.cat(draws).unique()
    assert len(drawn) == 3 * 5, "every item outside S* is drawn"


def test_modular_term_is_an_error(seeded: Seeded) -> None:
    with seeded():
        function = DeepSetFunction(2, phi="paper", dim=4, hidden=(4,), skip=True)
    with pytest.raises(ValueError, match="skip=False"):
        MaskTensorMeanField(function, samples=1)
