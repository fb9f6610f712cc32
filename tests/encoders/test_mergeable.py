"""Encoders that read sets in pieces: any partition, any gradient, the same result."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from setgrad.encoders import UMBC, ContextItems, DeepSets, MergeableEncoder, State, stream
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.encoders.streaming import draw_pieces
from setgrad.errors import OptionError, ShapeError, StateError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, Orders, draw, gradients, split


@dataclass(frozen=True)
class Case:
    """An encoder and what its code is, written down for one whole set; None if there is no plain definition."""

    name: str
    make: Callable[[], MergeableEncoder]

    def __str__(self) -> str:
        return self.name


def _deep(pooling: str) -> Callable[[], MergeableEncoder]:
    return lambda: DeepSets(DIM, nn.Sequential(nn.Linear(DIM, 6), nn.Tanh()), pooling=pooling, head=nn.Linear(6, 2))


def _umbc(activation: str, **options: object) -> Callable[[], MergeableEncoder]:
    head = nn.Sequential(nn.Flatten(1), nn.Linear(4 * 8, 5))
    return lambda: UMBC(DIM, 8, 4, heads=2, activation=activation, head=head, **options)


CASES = [
    *(Case(f"umbc, {name}", _umbc(name)) for name in ACTIVATIONS),
    Case("umbc, no residual", _umbc("softmax", residual=False)),
    Case("umbc, own phi", _umbc("softmax", phi=nn.Sequential(nn.Linear(DIM, 7), nn.ReLU()))),
    Case("slot set encoder", _umbc("slot-sigmoid", normalize="none")),
    Case("deep sets, sum", _deep("sum")),
    Case("deep sets, mean", _deep("mean")),
]


@pytest.fixture(params=CASES, ids=str)
def encoder(request: pytest.FixtureRequest, seeded) -> MergeableEncoder:
    with seeded(0):
        return request.param.make().double().eval()


CUTS = [[3, 0, 4], [0, 0, 0], [0, 1, 0], [5, 5, 2]]


def close(ours, expected, tolerance: float = 1e-12) -> None:
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_any_partition_in_any_order_gives_the_whole(encoder):
    sets = draw()
    chunks, whole = split(sets, CUTS), encoder(sets)
    for order in itertools.permutations(range(3)):
        state = encoder.begin(len(sets))
        for number in order:
            state = encoder.update(state, chunks[number])
        torch.testing.assert_close(encoder.finish(state), whole, rtol=1e-12, atol=1e-12)
        close(gradients(encoder, encoder.finish(state)), gradients(encoder, encoder(sets)))


def test_merge_is_associative_with_begin_as_identity(encoder):
    sets = draw()
    start = encoder.begin(len(sets))
    a, b, c = (encoder.update(start, chunk) for chunk in split(sets, CUTS))
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    for one, other in zip(left.sums, right.sums, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(encoder.finish(start.merge(a)), encoder.finish(a), rtol=0, atol=0)


def test_batch_mates_and_order_make_no_difference(encoder):
    sets = draw()
    together = encoder(sets)
    for number in range(len(sets)):
        alone = sets[number : number + 1]
        torch.testing.assert_close(encoder(alone)[0], together[number], rtol=1e-12, atol=1e-12)
        turned = Sets.from_list([sets[number].flip(0)])
        torch.testing.assert_close(encoder(turned)[0], together[number], rtol=1e-12, atol=1e-12)


def test_a_weight_counts_an_item_that_often(encoder):
    sets = draw([4, 2])
    weights = torch.tensor([2.0, 0.0, 1.0, 3.0, 1.0, 1.0])
    repeated = Sets.from_list([sets[0][[0, 0, 2, 3, 3, 3]], sets[1]])
    torch.testing.assert_close(encoder(sets, weights), encoder(repeated), rtol=1e-12, atol=1e-12)
    with pytest.raises(ShapeError, match="one number of at least 0 for each of 6 items"):
        encoder(sets, weights[:-1])


def test_nothing_has_a_code_and_gradients(encoder):
    empty = Sets.from_lengths(torch.zeros(0, DIM, dtype=torch.float64), [0, 0])
    value = encoder(empty)
    assert value.isfinite().all() and torch.equal(value[0], value[1])
    assert all(g.isfinite().all() for g in gradients(encoder, value))


@pytest.mark.parametrize("gradient", ["full", "exact"])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_streams_give_value_and_gradient_of_the_whole(encoder, gradient, size):
    sets = draw()
    value = stream(encoder, sets, gradient=gradient, chunk_size=size)
    torch.testing.assert_close(value, encoder(sets), rtol=1e-12, atol=1e-12)
    close(gradients(encoder, value), gradients(encoder, encoder(sets)))


@pytest.mark.parametrize("samples", [1, 2])
def test_the_mean_of_sampled_gradients_is_the_whole_gradient(encoder, samples):
    """All orders of the chunks, each as likely as the others; chunks of different sizes, some pieces empty."""
    sets = draw()
    chunks = split(sets, CUTS)
    exact = gradients(encoder, encoder(sets))
    orders = list(itertools.permutations(range(len(chunks))))
    total = [torch.zeros_like(g) for g in exact]
    for order in orders:
        value = stream(encoder, chunks, gradient="sample", samples=samples, generator=Orders([order]))
        torch.testing.assert_close(value, encoder(sets), rtol=1e-12, atol=1e-12)
        total = [t + g / len(orders) for t, g in zip(total, gradients(encoder, value), strict=True)]
    close(total, exact)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_pieces_are_drawn_for_each_set_without_replacement(samples):
    filled = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=bool)
    generator = np.random.default_rng(0)
    draws = np.array([draw_pieces(filled, samples, generator) for _ in range(2000)])
    taken = np.minimum(samples, filled.sum(0))
    assert ((draws > 0).sum(1) == taken).all()
    assert not draws[:, ~filled].any()
    # The mean weight of a piece is 1, to five standard errors.
    spread = np.sqrt(np.clip(filled.sum(0) / np.clip(taken, 1, None) - 1, 0, None) / 2000)
    assert (abs(draws.mean(0) - 1) <= 5 * spread + 1e-12)[filled].all()


def test_sets_with_the_same_pieces_share_the_chunks_that_get_a_graph():
    weights = draw_pieces(np.ones((50, 8), dtype=bool), 2, np.random.default_rng(1))
    assert (weights.any(1)).sum() == 2


def move_logits(encoder: UMBC, shift: float) -> None:
    """Move every logit of the first slot by as much: a bias of the keys along the query does that."""
    with torch.no_grad():
        asked = encoder.queries().detach().unflatten(-1, (2, -1))
        size = asked.square().sum(-1, keepdim=True).clamp(min=1e-6)
        encoder.read_items.bias[:8] += shift * (asked / size).flatten(1)[0]


@pytest.mark.parametrize("shift", [-130.0, -200.0, -1000.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_slot_that_likes_no_item_still_reads_them(seeded, activation, shift):
    """Its weights are too small for float32; value and gradient are those of float64 all the same."""
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, activation=activation, residual=False).eval()
    move_logits(encoder, shift)
    sets = draw([5, 1, 9]).to(torch.float32)
    value = stream(encoder, sets, chunk_size=3)
    found = gradients(encoder, value)
    exact = encoder.double()(sets.to(torch.float64))
    torch.testing.assert_close(value.double(), exact, rtol=1e-2, atol=1e-2)
    expected = gradients(encoder, exact)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-2, atol=1e-3 * scale)


def test_half_precision_items_have_wide_sums(encoder):
    """Weights in float32 read items in bfloat16 as if they had been rounded and then read in float32."""
    encoder = encoder.float()
    half = draw([4000, 3], dtype=torch.bfloat16)
    state = encoder.update(encoder.begin(2), half)
    assert all(s.dtype == torch.float32 for s in state.sums)
    rounded = half.to(torch.float32)
    close([encoder(half), encoder.finish(state)], [encoder(rounded)] * 2, 1e-5)
    value = stream(encoder, half, chunk_size=500)
    assert value.dtype == torch.float32
    close([value], [encoder(rounded)], 1e-4)
    ours, expected = gradients(encoder, value), gradients(encoder, encoder(rounded))
    scale = max(float(g.abs().max()) for g in expected)
    close([g / scale for g in ours], [g / scale for g in expected], 1e-4)


def test_half_precision_weights_have_wide_sums(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).to(torch.bfloat16).eval()
    state = encoder.update(encoder.begin(4), draw().to(torch.bfloat16))
    assert all(s.dtype == torch.float32 for s in state.sums)
    assert encoder.finish(state).dtype == torch.bfloat16


def test_items_of_another_type_are_read_in_that_of_the_weights(encoder):
    single = draw(dtype=torch.float32)
    code = encoder(single)
    assert code.dtype == torch.float64
    close([code, stream(encoder, single, chunk_size=4)], [encoder(single.to(torch.float64))] * 2)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_phi_without_parameters(pooling):
    encoder = DeepSets(DIM, nn.Identity(), pooling=pooling).eval()
    sets = draw()
    expected = torch.stack([getattr(x, pooling)(0) if len(x) else torch.zeros(DIM).double() for x in sets.to_list()])
    found = [encoder(sets), encoder.finish(encoder.update(encoder.begin(4), sets)), stream(encoder, sets, chunk_size=2)]
    close(found, [expected] * 3)


def test_the_maximum_is_another_encoder(seeded):
    with pytest.raises(OptionError, match="use MaxPool"):
        DeepSets(DIM, nn.Identity(), pooling="max")
    with pytest.raises(OptionError, match="unknown pooling 'median'; choose one of: sum, mean"):
        DeepSets(DIM, nn.Identity(), pooling="median")


def test_dropout_is_the_same_in_both_passes(seeded):
    """Against the graph of the same masks, chunk by chunk."""
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, phi=nn.Sequential(nn.Linear(DIM, 16), nn.Dropout(0.5))).double().train()
    sets = draw([40])
    with seeded(3):
        value = stream(encoder, sets, gradient="exact", chunk_size=10)
    found = gradients(encoder, value)
    with seeded(3):
        seed = int(torch.randint(2**62, ()))
    state = encoder.begin()
    for number, chunk in enumerate(split(sets, [[10] * 4])):
        with seeded(seed + number):
            state = encoder.update(state, chunk)
    close([value], [encoder.finish(state)])
    close(found, gradients(encoder, encoder.finish(state)))


def test_random_slots_are_drawn_once_and_travel_with_the_state(seeded, tmp_path):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, random=True).double().train()
    sets = draw()
    chunks = split(sets, CUTS)
    start = encoder.begin(4, generator=torch.Generator().manual_seed(1))
    other = encoder.begin(4, generator=torch.Generator().manual_seed(2))
    assert not torch.equal(start.slots, other.slots)
    with pytest.raises(StateError, match="different slots"):
        start.merge(other)
    first = encoder.update(start, chunks[0])
    first.save(tmp_path / "state.safetensors")
    resumed = State.load(tmp_path / "state.safetensors")
    for chunk in chunks[1:]:
        first, resumed = encoder.update(first, chunk), encoder.update(resumed, chunk)
    torch.testing.assert_close(encoder.finish(resumed), encoder.finish(first), rtol=1e-12, atol=1e-12)
    assert torch.equal(encoder.eval().begin(1).slots, encoder.begin(1).slots)


def test_remove_undoes_merge_or_refuses(encoder):
    sets = draw([6, 3, 5])
    chunks = split(sets, [[4, 2], [2, 1], [1, 4]])
    start = encoder.begin(3)
    first, second = (encoder.update(start, chunk) for chunk in chunks)
    left = first.merge(second).remove(second)
    torch.testing.assert_close(encoder.finish(left), encoder.finish(first), rtol=1e-9, atol=1e-9)
    assert torch.equal(left.count, first.count)


def test_removing_nearly_all_the_weight_is_refused(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
        with torch.no_grad():
            encoder.read_items.weight.mul_(100)
    sets = draw([40]).to(torch.float32)
    first, second = (encoder.update(encoder.begin(1), chunk) for chunk in split(sets, [[20, 20]]))
    with pytest.raises(StateError, match="nearly all of the weight"):
        first.merge(second).remove(first)


def test_batch_normalisation_is_refused_while_training(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, phi=nn.Sequential(nn.Linear(DIM, 4), nn.BatchNorm1d(4)))
    with pytest.raises(OptionError, match="depend on the partition"):
        stream(encoder.train(), torch.zeros(4, DIM))
    assert stream(encoder.eval(), torch.zeros(4, DIM)).shape == (1, 4, 8)


def test_an_encoder_that_looks_at_other_items_is_refused(seeded):
    with seeded(0), pytest.raises(OptionError, match="one item at a time"):
        UMBC(DIM, 8, 4, heads=2, phi=ContextItems(DIM, 8, layers=0))


def test_arrays_on_disk_are_read_in_pieces(seeded, tmp_path):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    values = np.random.default_rng(0).normal(size=(1000, DIM)).astype(np.float32)
    np.save(tmp_path / "items.npy", values)
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    whole = encoder(Sets.from_list([torch.from_numpy(values)]))
    torch.testing.assert_close(stream(encoder, mapped, chunk_size=128), whole, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_right_or_raises(encoder):
    sets = draw()

    def penalty(value: Tensor) -> Tensor:
        parameters = [p for p in encoder.parameters() if p.requires_grad]
        first = torch.autograd.grad(value.square().sum(), parameters, create_graph=True, allow_unused=True)
        return torch.stack([g.square().sum() for g in first if g is not None]).sum()

    whole = penalty(stream(encoder, sets, gradient="full", chunk_size=4))
    close(gradients(encoder, whole), gradients(encoder, penalty(encoder(sets))), 1e-9)
    with pytest.raises(OptionError, match="gradient of a gradient"):
        penalty(stream(encoder, sets, gradient="exact", chunk_size=4))


def test_items_get_a_gradient_from_the_full_graph(encoder):
    sets = draw()
    values = sets.values.clone().requires_grad_()
    (streamed,) = torch.autograd.grad(stream(encoder, sets.with_values(values), gradient="full").square().sum(), values)
    (whole,) = torch.autograd.grad(encoder(sets.with_values(values)).square().sum(), values)
    torch.testing.assert_close(streamed, whole, rtol=1e-12, atol=1e-12)
