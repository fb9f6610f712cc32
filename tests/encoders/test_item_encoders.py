"""The contract of item encoders, for every encoder in the table and both kinds of attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from setgrad.encoders import ITEM_ENCODERS, ContextItems, ImageItems, ItemWise, Stacked
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets import Sets

# Item shapes of encoders that do not read three numbers. Pairs are tokens: see test_sequences.py.
SHAPES = dict.fromkeys(("image", "pixel-cnn", "stacked"), (1, 3, 4))
CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(cls, SHAPES.get(name, 3), 16) for name, cls in ITEM_ENCODERS.items() if name != "pair"},
    "induced": lambda: ContextItems(3, 16, slots=4),
    "item-wise": lambda: ItemWise(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), 3),
    "stacked": lambda: Stacked(ImageItems((1, 3, 4), 6), ContextItems(6, 16)),
}


@pytest.fixture(params=CASES)
def name(request):
    return request.param


@pytest.fixture
def encoder(name, seeded):
    with seeded(0):
        return CASES[name]().double()


@pytest.fixture
def items(name):
    return partial(random_sets, shape=SHAPES.get(name, (3,)))


def random_sets(sizes, seed=0, shape=(3,)):
    generator = torch.Generator().manual_seed(seed)
    return Sets.from_lengths(torch.randn(sum(sizes), *shape, generator=generator, dtype=torch.float64), sizes)


def test_one_row_for_each_item(encoder, items):
    sets = items([4, 0, 1, 7, 0])
    assert encoder(sets).shape == (12, encoder.out_dim)
    assert encoder(sets).dtype == torch.float64
    assert encoder(items([0, 0])).shape == (0, encoder.out_dim)


def test_other_sets_of_the_batch_and_padding_make_no_difference(encoder, items):
    sets = items([4, 0, 1, 7, 4])
    together = sets.with_values(encoder(sets))
    for number in range(len(sets)):
        torch.testing.assert_close(together[number], encoder(sets[number : number + 1]), rtol=1e-10, atol=1e-12)


def test_features_are_permutation_equivariant(encoder, items):
    sets = items([6, 3])
    order = torch.tensor([5, 2, 0, 1, 4, 3, 8, 6, 7])
    moved = encoder(sets.with_values(sets.values[order]))
    torch.testing.assert_close(moved, encoder(sets)[order], rtol=1e-10, atol=1e-12)


def test_gradients_of_a_ragged_batch_are_finite_and_correct(encoder, items, seeded):
    sets = items([3, 0, 2])

    def features(values):
        return encoder(sets.with_values(values))

    with seeded(0):
        assert torch.autograd.gradcheck(features, sets.values.clone().requires_grad_())
    encoder(sets).sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in encoder.parameters())


def test_items_are_converted_to_the_dtype_of_the_encoder(encoder, items):
    sets = items([3, 0, 2])
    expected = encoder.float()(sets.to(torch.float32))
    assert torch.equal(encoder(sets), expected)
    assert expected.dtype == torch.float32


def test_integers_are_rejected_until_converted(name, encoder, items):
    if name == "item-wise":
        pytest.skip("a wrapped module may read tokens")
    sets = items([3]).to(torch.uint8)
    with pytest.raises(DataError, match=r"items are torch.uint8; .* pass sets.to\(torch.float32\)"):
        encoder(sets)
    assert encoder(sets.to(torch.float32)).shape == (3, encoder.out_dim)


@pytest.mark.parametrize("slots", [None, 4])
def test_context_features_depend_on_the_other_items(slots, seeded):
    with seeded(0):
        encoder = ContextItems(3, 16, slots=slots).double()
    sets = random_sets([4])
    changed = sets.values.clone()
    changed[3] += 1
    assert (encoder(sets)[0] - encoder(sets.with_values(changed))[0]).abs().max() > 1e-4


@pytest.mark.parametrize("slots", [None, 4])
def test_ragged_sets_in_float16(slots, seeded):
    with seeded(0):
        encoder: Any = ContextItems(3, 16, slots=slots)
    # Some of these chunks hold no item of the shorter set.
    for block in encoder.blocks:
        block.chunk = 2
    sets = random_sets([5, 1]).to(torch.float32)
    expected = encoder(sets)
    with torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(encoder(sets).float(), expected, rtol=0, atol=2e-2)
    torch.testing.assert_close(encoder.half()(sets.to(torch.float16)).float(), expected, rtol=0, atol=2e-2)


def test_chunks_of_a_long_set_give_the_same_features_and_gradients(seeded):
    with seeded(0):
        encoder = ContextItems(3, 16, slots=4).double()
    sets = random_sets([50, 31])

    def run(chunk):
        for block in encoder.blocks:
            block.chunk = chunk
        encoder.zero_grad()
        out = encoder(sets)
        out.square().sum().backward()
        return [out.detach(), *[p.grad.clone() for p in encoder.parameters()]]

    for whole, chunked in zip(run(1000), run(7), strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-9, atol=1e-11)


def test_items_of_any_shape(seeded):
    with seeded(0):
        encoder = ContextItems((2, 5), 16)
    generator = torch.Generator().manual_seed(0)
    assert encoder(Sets.from_lengths(torch.randn(6, 2, 5, generator=generator), [2, 4])).shape == (6, 16)
    with pytest.raises(ShapeError, match=r"items of shape \(2, 5\).*\(3,\)"):
        encoder(Sets.from_list([[[1.0, 2.0, 3.0]]]))


def test_invalid_options_are_rejected():
    with pytest.raises(OptionError, match="multiple of heads"):
        ContextItems(3, 10, heads=4)
    with pytest.raises(OptionError, match="at least one feature"):
        ContextItems(0, 16)
    with pytest.raises(ShapeError, match="phi must map items"):
        ItemWise(nn.Flatten(0), 3)


def test_wrapping_a_module_does_not_change_it(seeded):
    with seeded(0):
        module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout().eval()).double()
    encoder = ItemWise(module, 3)
    assert encoder.out_dim == 5
    assert [part.training for part in module] == [True, True, False]
    assert module[1].num_batches_tracked == 0


def test_a_module_that_does_not_fit_the_items_is_rejected(seeded):
    with seeded(0):
        phi = torch.nn.Linear(5, 8)
    with pytest.raises(ShapeError, match=r"phi cannot read items of shape \(3,\)"):
        ItemWise(phi, in_dim=3)
    assert phi.training
    with pytest.raises(ShapeError, match=r"reads items of shape \(5,\), but the sets hold items of shape \(3,\)"):
        ItemWise(phi, in_dim=5)(Sets.from_list([torch.zeros(2, 3)]))
