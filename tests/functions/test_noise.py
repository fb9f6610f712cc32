"""Random numbers from private generators, or from the items."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from setgrad.errors import ShapeError
from setgrad.functions import (
    Bernoulli,
    ExtensionEstimator,
    FreshNoise,
    FromCallable,
    Gaussian,
    ItemNoise,
    LogDeterminant,
    NoiseSource,
)
from setgrad.sets import Layout, Sets
from tests.functions.contract import draw_sets

MANY = 20_000


def make(kind: type[NoiseSource], sets: Sets, seed: int = 0) -> NoiseSource:
    return ItemNoise(sets, seed) if kind is ItemNoise else FreshNoise(seed)


def uniform_distance(u: Tensor) -> float:
    """Return the Kolmogorov-Smirnov distance from the uniform distribution, times the root of the count."""
    ordered = u.double().sort().values
    steps = torch.arange(len(u) + 1, dtype=torch.float64) / len(u)
    return float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max()) * math.sqrt(len(u))


# ---- both sources


@pytest.mark.parametrize("kind", [FreshNoise, ItemNoise])
def test_numbers_are_uniform(kind):
    sets = draw_sets([5, 0, 3])
    u = make(kind, sets).uniform(sets.layout, MANY)
    assert u.shape == (MANY, 8) and float(u.min()) >= 0 and float(u.max()) < 1
    # 1.95 is exceeded once in a thousand times, by each column and by all of them together.
    assert max(uniform_distance(column) for column in u.T) < 1.95
    assert uniform_distance(u.flatten()) < 1.95
    # Pairs of items fill the square evenly: chi-square with 99 degrees of freedom exceeds 161 once in ten thousand.
    cells = (10 * u[:, 0]).long() * 10 + (10 * u[:, 5]).long()
    counts = torch.bincount(cells, minlength=100).double()
    assert float(((counts - MANY / 100) ** 2 / (MANY / 100)).sum()) < 161


def test_the_test_of_uniformity_can_fail():
    u = FreshNoise(1).uniform(Layout.from_lengths([1]), MANY).flatten()
    assert uniform_distance(u**1.05) > 1.95 and uniform_distance(0.98 * u) > 1.95


@pytest.mark.parametrize("kind", [FreshNoise, ItemNoise])
def test_items_and_samples_are_uncorrelated(kind):
    sets = draw_sets([30])
    u = make(kind, sets).uniform(sets.layout, 4000).double()
    between_items = torch.corrcoef(u.T) - torch.eye(30)
    assert float(between_items.abs().max()) < 5 / math.sqrt(4000)
    # From one sample to the next, for each item: consecutive inputs of a hash must not be correlated.
    centred = u - 0.5
    lagged = (centred[1:] * centred[:-1]).mean(0) * 12
    assert float(lagged.abs().max()) < 5 / math.sqrt(4000)


def test_similar_items_have_independent_numbers():
    base = torch.zeros(1000, 3, dtype=torch.float64)
    base[:, 1] = 1 + torch.arange(1000) * 2.0**-52
    grid = torch.cartesian_prod(torch.arange(10.0), torch.arange(10.0), torch.arange(10.0)).double()
    for values in (base, grid):
        sets = Sets.from_lengths(values, [1000])
        u = ItemNoise(sets).uniform(sets.layout, 20)
        assert uniform_distance(u.flatten()) < 1.95
        assert max(uniform_distance(row) for row in u) < 2.1
        neighbours = torch.corrcoef(torch.stack([u[:, 1:].flatten(), u[:, :-1].flatten()]))[0, 1]
        assert abs(float(neighbours)) < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("kind", [FreshNoise, ItemNoise])
def test_normal_numbers_have_the_right_moments(kind):
    sets = draw_sets([5, 0, 3])
    z = make(kind, sets).normal(sets.layout, MANY).double()
    assert bool(z.isfinite().all())
    error = 5 / math.sqrt(z.numel())
    assert abs(float(z.mean())) < error
    assert abs(float((z**2).mean()) - 1) < error * math.sqrt(2)
    assert abs(float((z**3).mean())) < error * math.sqrt(15)
    assert abs(float((z**4).mean()) - 3) < error * math.sqrt(96)


@pytest.mark.parametrize("kind", [FreshNoise, ItemNoise])
def test_normal_numbers_are_finite_at_the_ends(kind, monkeypatch):
    sets = draw_sets([2])
    ends = torch.tensor([[0.0, 1 - 2**-24]])
    monkeypatch.setattr(kind, "uniform", lambda self, layout, samples: ends)
    z = make(kind, sets).normal(sets.layout, 1)
    assert bool(z.isfinite().all()) and z[0, 0] < -5 and z[0, 1] > 5


@pytest.mark.parametrize("kind", [FreshNoise, ItemNoise])
def test_numbers_depend_on_the_seed(kind):
    sets = draw_sets([5])
    first = make(kind, sets, 1).uniform(sets.layout, 10)
    assert torch.equal(make(kind, sets, 1).uniform(sets.layout, 10), first)
    other = make(kind, sets, 2).uniform(sets.layout, 10)
    assert not (other == first).any()


@pytest.mark.parametrize("kind", [FreshNoise, ItemNoise])
@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1]], ids=str)
def test_empty_and_tiny_batches(kind, sizes):
    sets = draw_sets(sizes)
    noise = make(kind, sets)
    assert noise.uniform(sets.layout, 3).shape == noise.normal(sets.layout, 3).shape == (3, sum(sizes))
    assert noise.symmetrise(torch.ones(sum(sizes))).tolist() == [1.0] * sum(sizes)


# ---- FreshNoise


def test_fresh_numbers_are_new_at_every_call_and_keep_the_global_state():
    before = torch.get_rng_state()
    noise, layout = FreshNoise(), Layout.from_lengths([4])
    assert not (noise.uniform(layout, 5) == noise.uniform(layout, 5)).any()
    assert torch.equal(torch.get_rng_state(), before)


# ---- ItemNoise


def test_items_keep_their_numbers_in_any_batch_and_order():
    sets = draw_sets([4, 0, 3, 1])
    u = ItemNoise(sets).uniform(sets.layout, 6)
    assert torch.equal(ItemNoise(sets).uniform(sets.layout, 6), u)
    # Fewer samples are the first of many samples.
    assert torch.equal(ItemNoise(sets).uniform(sets.layout, 2), u[:2])
    for number in range(len(sets)):
        alone = sets[number : number + 1]
        assert torch.equal(ItemNoise(alone).uniform(alone.layout, 6), u[:, sets.layout.ids == number])
    shuffle = torch.tensor([3, 1, 0, 2, 6, 4, 5, 7])
    shuffled = sets.with_values(sets.values[shuffle])
    assert torch.equal(ItemNoise(shuffled).uniform(sets.layout, 6), u[:, shuffle])
    reversed_sets = sets[::-1]
    expected = torch.cat([u[:, sets.layout.ids == number] for number in (3, 2, 1, 0)], 1)
    assert torch.equal(ItemNoise(reversed_sets).uniform(reversed_sets.layout, 6), expected)


def test_numbers_do_not_depend_on_how_features_are_stored():
    wide = Sets.from_lengths(torch.tensor([[1.0, 2.5], [-3.0, 0.0], [0.5, 8.0]]).double(), [2, 1])
    u = ItemNoise(wide).uniform(wide.layout, 4)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        narrow = wide.to(dtype)
        assert torch.equal(ItemNoise(narrow).uniform(narrow.layout, 4), u)
    signed = wide.with_values(torch.tensor([[1.0, 2.5], [-3.0, -0.0], [0.5, 8.0]]))
    assert torch.equal(ItemNoise(signed).uniform(signed.layout, 4), u)
    shaped = wide.with_values(wide.values.reshape(3, 2, 1))
    assert torch.equal(ItemNoise(shaped).uniform(shaped.layout, 4), u)
    whole = Sets.from_lengths(torch.tensor([[1, 0], [0, 1]]), [2])
    assert torch.equal(
        ItemNoise(whole).uniform(whole.layout, 4), ItemNoise(whole.to(torch.float64)).uniform(whole.layout, 4)
    )


def test_features_in_another_order_are_another_item():
    sets = Sets.from_list([[[1.0, 2.0], [2.0, 1.0]]])
    noise = ItemNoise(sets)
    u = noise.uniform(sets.layout, 8)
    assert not (u[:, 0] == u[:, 1]).any()
    assert noise.symmetrise(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_more_items_than_are_hashed_at_once():
    count = 2**15 + 3
    sets = Sets.from_lengths(torch.arange(count, dtype=torch.float64)[:, None], [count])
    u = ItemNoise(sets).uniform(sets.layout, 1)
    alone = Sets.from_lengths(sets.values[-5:], [5])
    assert torch.equal(ItemNoise(alone).uniform(alone.layout, 1), u[:, -5:])


def test_identical_items_draw_different_numbers_and_share_their_result():
    a, b = [1.0, 2.0], [3.0, 4.0]
    sets = Sets.from_list([[a, b, a, a], [a, b]])
    noise = ItemNoise(sets)
    u = noise.uniform(sets.layout, 50)
    for i, j in [(0, 2), (0, 3), (2, 3)]:
        assert not (u[:, i] == u[:, j]).any()
    # In another set, the same item is the first of its kind.
    assert torch.equal(u[:, 4], u[:, 0]) and torch.equal(u[:, 5], u[:, 1])
    result = torch.tensor([1.0, 10.0, 2.0, 6.0, 7.0, 8.0])
    assert noise.symmetrise(result).tolist() == [3.0, 10.0, 3.0, 3.0, 7.0, 8.0]
    shuffled = Sets.from_list([[a, a, b, a], [b, a]])
    together = ItemNoise(shuffled).uniform(shuffled.layout, 50)
    assert torch.equal(together[:, [0, 1, 3]].sort(1).values, u[:, [0, 2, 3]].sort(1).values)


def test_symmetrise_can_be_differentiated():
    sets = Sets.from_list([[[1.0], [2.0], [1.0]]])
    x = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ItemNoise(sets).symmetrise, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_many_identical_items_share_their_mean_in_half_precision(dtype):
    sets = Sets.from_lengths(torch.zeros(3000, 1), [3000])
    x = torch.cat([torch.full((1000,), 4.0), torch.ones(2000)]).to(dtype)
    assert torch.equal(ItemNoise(sets).symmetrise(x), torch.full((3000,), 2.0, dtype=dtype))


def test_item_noise_rejects_other_sets():
    sets = draw_sets([2, 3])
    with pytest.raises(ShapeError, match="make one for these sets"):
        ItemNoise(sets).uniform(Layout.from_lengths([3, 2]), 4)


def test_selected_items_have_the_same_gradient_as_among_all() -> None:
    sets = Sets.from_list([[[1.0], [2.0], [1.0], [1.0]], [[2.0]]])
    bound = FromCallable(lambda items, masks: (masks * items[:, 0]).sum(1) ** 2).bind(sets)
    psi, selected = torch.full((5,), 0.3), torch.tensor([4, 2, 0])
    estimator = Bernoulli(3, ItemNoise(sets))
    assert torch.equal(estimator.gradient(bound, psi, selected), estimator.gradient(bound, psi)[selected])


def test_a_checkpoint_repeats_frozen_noise_only():
    sets = draw_sets([4, 0, 2])
    bound, start = LogDeterminant().bind(sets), torch.full((6,), 0.4, dtype=torch.float64)

    def slope(estimator: ExtensionEstimator, *, checkpointed: bool) -> Tensor:
        psi = start.clone().requires_grad_()

        def loss(psi: Tensor) -> Tensor:
            return estimator.value(bound, psi).sum()

        (checkpoint(loss, psi, use_reentrant=False) if checkpointed else loss(psi)).backward()
        assert psi.grad is not None
        return psi.grad

    plain = slope(Gaussian(2, FreshNoise(3)), checkpointed=False)
    torch.testing.assert_close(slope(Gaussian(2, FreshNoise(3)).frozen(), checkpointed=True), plain)
    # The README warns of this; if it ever holds, the warning can go.
    assert not torch.allclose(slope(Gaussian(2, FreshNoise(3)), checkpointed=True), plain, rtol=1e-3)
    # If the noise is frozen again in every step, the steps still differ.
    estimator = Gaussian(2, FreshNoise(3))
    first, second = (slope(estimator.frozen(), checkpointed=True) for _ in range(2))
    assert not torch.allclose(first, second, rtol=1e-3)


def test_a_new_estimator_starts_with_the_same_numbers():
    layout = Layout.from_lengths([5])
    numbers = [Bernoulli(3).noise.uniform(layout, 3) for _ in range(2)]
    assert torch.equal(*numbers)
    noise = Bernoulli(3).noise
    assert not torch.equal(noise.uniform(layout, 3), noise.uniform(layout, 3))
