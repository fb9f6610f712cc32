"""Encoders with a mergeable state: sampling of chunks, precision, random slots, removal, second derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from setgrad.encoders import UMBC, ContextItems, DeepSets, MergeableEncoder, State, stream
from setgrad.encoders.activations import ACTIVATIONS
from setgrad.encoders.streaming import draw_chunk_weights
from setgrad.errors import OptionError, StateError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, assert_close, gradients, random_sets, split_sets
from tests.encoders.test_set_encoders import DEEP_SETS_CASES, UMBC_CASES, build


@pytest.fixture(params=[*UMBC_CASES, *DEEP_SETS_CASES], ids=str)
def encoder(request: pytest.FixtureRequest, seeded) -> MergeableEncoder:
    return build(request.param, seeded)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_chunks_are_drawn_for_each_set_without_replacement(samples):
    filled = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=bool)
    generator = torch.Generator().manual_seed(0)
    draws = np.array([draw_chunk_weights(filled, samples, generator) for _ in range(2000)])
    taken = np.minimum(samples, filled.sum(0))
    assert ((draws > 0).sum(1) == taken).all()
    assert not draws[:, ~filled].any()
    # The mean weight of a chunk is 1, to five standard errors.
    spread = np.sqrt(np.clip(filled.sum(0) / np.clip(taken, 1, None) - 1, 0, None) / 2000)
    assert (abs(draws.mean(0) - 1) <= 5 * spread + 1e-12)[filled].all()


def test_sets_with_the_same_chunks_share_those_that_get_a_graph():
    weights = draw_chunk_weights(np.ones((50, 8), dtype=bool), 2, torch.Generator().manual_seed(1))
    assert (weights.any(1)).sum() == 2


def test_without_a_generator_chunks_are_drawn_with_a_random_seed():
    """And torch's global generator stays unchanged, which a fixture checks."""
    filled = np.ones((1000, 1), dtype=bool)
    first, second = (draw_chunk_weights(filled, 500, None) for _ in range(2))
    assert (first != second).any()


def shift_logits(encoder: UMBC, shift: float) -> None:
    """Shift every logit of the first slot, by a bias of the keys along its query."""
    with torch.no_grad():
        queries = encoder.queries().detach().unflatten(-1, (2, -1))
        size = queries.square().sum(-1, keepdim=True).clamp(min=1e-6)
        encoder.read_items.bias[:8] += shift * (queries / size).flatten(1)[0]


@pytest.mark.parametrize("shift", [-130.0, -200.0, -1000.0])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_a_slot_with_small_logits_still_reads_its_items(seeded, activation, shift):
    """Its weights underflow in float32, but code and gradient equal those of float64."""
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, activation=activation, residual=False).eval()
    shift_logits(encoder, shift)
    sets = random_sets([5, 1, 9]).to(torch.float32)
    code = stream(encoder, sets, chunk_size=3)
    actual = gradients(encoder, code)
    exact = encoder.double()(sets.to(torch.float64))
    assert_close(code.double(), exact, 1e-2)
    expected = gradients(encoder, exact)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-3 * scale)


def test_sums_of_half_precision_items_are_float32(encoder):
    """An encoder in float32 reads bfloat16 items like rounded float32 items."""
    encoder = encoder.float()
    half = random_sets([4000, 3], dtype=torch.bfloat16)
    state = encoder.update(encoder.begin(2), half)
    assert all(s.dtype == torch.float32 for s in state.sums)
    rounded = half.to(torch.float32)
    assert_close([encoder(half), encoder.finish(state)], [encoder(rounded)] * 2, 1e-5)
    code = stream(encoder, half, chunk_size=500)
    assert code.dtype == torch.float32
    assert_close(code, encoder(rounded), 1e-4)
    actual, expected = gradients(encoder, code), gradients(encoder, encoder(rounded))
    scale = max(float(g.abs().max()) for g in expected)
    assert_close([g / scale for g in actual], [g / scale for g in expected], 1e-4)


def test_sums_of_half_precision_encoders_are_float32(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).to(torch.bfloat16).eval()
    state = encoder.update(encoder.begin(4), random_sets().to(torch.bfloat16))
    assert all(s.dtype == torch.float32 for s in state.sums)
    assert encoder.finish(state).dtype == torch.bfloat16


def test_items_are_converted_to_the_dtype_of_the_encoder(encoder):
    single = random_sets(dtype=torch.float32)
    code = encoder(single)
    assert code.dtype == torch.float64
    assert_close([code, stream(encoder, single, chunk_size=4)], [encoder(single.to(torch.float64))] * 2)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_phi_without_parameters(pooling):
    encoder = DeepSets(DIM, nn.Identity(), pooling=pooling).eval()
    sets = random_sets()
    expected = torch.stack([getattr(x, pooling)(0) if len(x) else torch.zeros(DIM).double() for x in sets.to_list()])
    codes = [encoder(sets), encoder.finish(encoder.update(encoder.begin(4), sets)), stream(encoder, sets, chunk_size=2)]
    assert_close(codes, [expected] * 3)


def test_unknown_poolings_are_rejected():
    with pytest.raises(OptionError, match="use MaxPool"):
        DeepSets(DIM, nn.Identity(), pooling="max")
    with pytest.raises(OptionError, match="unknown pooling 'median'; choose one of: sum, mean"):
        DeepSets(DIM, nn.Identity(), pooling="median")


def test_dropout_is_the_same_in_both_passes(seeded):
    """Compared with the graph of the same dropout masks, chunk by chunk."""
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, phi=nn.Sequential(nn.Linear(DIM, 16), nn.Dropout(0.5))).double().train()
    sets = random_sets([40])
    with seeded(3):
        code = stream(encoder, sets, gradient="exact", chunk_size=10)
    actual = gradients(encoder, code)
    with seeded(3):
        seed = int(torch.randint(2**62, ()))
    state = encoder.begin()
    for number, chunk in enumerate(split_sets(sets, [[10] * 4])):
        with seeded(seed + number):
            state = encoder.update(state, chunk)
    assert_close(code, encoder.finish(state))
    assert_close(actual, gradients(encoder, encoder.finish(state)))


def test_random_slots_are_drawn_once_and_kept_in_the_state(seeded, tmp_path):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, random=True).double().train()
    sets = random_sets()
    chunks = split_sets(sets)
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
    assert_close(encoder.finish(resumed), encoder.finish(first))
    assert torch.equal(encoder.eval().begin(1).slots, encoder.begin(1).slots)


def test_remove_is_the_inverse_of_merge(encoder):
    sets = random_sets([6, 3, 5])
    chunks = split_sets(sets, [[4, 2], [2, 1], [1, 4]])
    start = encoder.begin(3)
    first, second = (encoder.update(start, chunk) for chunk in chunks)
    rest = first.merge(second).remove(second)
    assert_close(encoder.finish(rest), encoder.finish(first), 1e-9)
    assert torch.equal(rest.count, first.count)


def test_removing_nearly_all_the_weight_is_rejected(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
        with torch.no_grad():
            encoder.read_items.weight.mul_(100)
    sets = random_sets([40]).to(torch.float32)
    first, second = (encoder.update(encoder.begin(1), chunk) for chunk in split_sets(sets, [[20, 20]]))
    with pytest.raises(StateError, match="nearly all of the weight"):
        first.merge(second).remove(first)


def test_batch_normalisation_is_rejected_while_training(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, phi=nn.Sequential(nn.Linear(DIM, 4), nn.BatchNorm1d(4)))
    with pytest.raises(OptionError, match="depend on the partition"):
        stream(encoder.train(), torch.zeros(4, DIM))
    assert stream(encoder.eval(), torch.zeros(4, DIM)).shape == (1, 4, 8)


def test_a_phi_that_depends_on_other_items_is_rejected(seeded):
    with seeded(0), pytest.raises(OptionError, match="phi must encode each item independently"):
        UMBC(DIM, 8, 4, heads=2, phi=ContextItems(DIM, 8, layers=0))


def test_arrays_on_disk_are_read_in_chunks(seeded, tmp_path):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    values = np.random.default_rng(0).normal(size=(1000, DIM)).astype(np.float32)
    np.save(tmp_path / "items.npy", values)
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    whole = encoder(Sets.from_list([torch.from_numpy(values)]))
    torch.testing.assert_close(stream(encoder, mapped, chunk_size=128), whole, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_correct_or_raises(encoder):
    sets = random_sets()

    def penalty(value: Tensor) -> Tensor:
        parameters = [p for p in encoder.parameters() if p.requires_grad]
        first = torch.autograd.grad(value.square().sum(), parameters, create_graph=True, allow_unused=True)
        return torch.stack([g.square().sum() for g in first if g is not None]).sum()

    whole = penalty(stream(encoder, sets, gradient="full", chunk_size=4))
    assert_close(gradients(encoder, whole), gradients(encoder, penalty(encoder(sets))), 1e-9)
    with pytest.raises(OptionError, match="gradient of a gradient"):
        penalty(stream(encoder, sets, gradient="exact", chunk_size=4))
