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
from setgrad.errors import DataError, FileFormatError, OptionError, ShapeError, StateError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, draw, gradients, split


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
        close(gradients(encoder, encoder.finish(state)), gradients(encoder, encoder(sets)), 1e-11)


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
    close(gradients(encoder, value), gradients(encoder, encoder(sets)), 1e-11)


@pytest.mark.parametrize("samples", [1, 2])
def test_the_mean_of_sampled_gradients_is_the_whole_gradient(encoder, samples, monkeypatch):
    """All choices of chunks, each as likely as the others; chunks of different sizes, some pieces empty."""
    sets = draw()
    chunks = split(sets, CUTS)
    exact = gradients(encoder, encoder(sets))
    choices = list(itertools.combinations(range(3), samples))
    total = [torch.zeros_like(g) for g in exact]
    for chosen in choices:
        fixed = np.random.default_rng(0)
        monkeypatch.setattr("setgrad.encoders.streaming.np.random.default_rng", lambda fixed=fixed: fixed)
        monkeypatch.setattr(
            "setgrad.encoders.streaming._choose", lambda count, plan, c=chosen: (set(c), count / len(c))
        )
        value = stream(encoder, chunks, gradient="sample", samples=samples)
        torch.testing.assert_close(value, encoder(sets), rtol=1e-12, atol=1e-12)
        total = [t + g / len(choices) for t, g in zip(total, gradients(encoder, value), strict=True)]
    close(total, exact, 1e-11)


def test_sampled_chunks_are_drawn_without_replacement(seeded):
    from setgrad.encoders.streaming import Plan, _choose

    plan = Plan(None, None, 1, 3, np.random.default_rng(0))  # type: ignore[arg-type]
    draws = [_choose(5, plan) for _ in range(200)]
    assert all(len(chosen) == 3 and weight == 5 / 3 for chosen, weight in draws)
    counts = np.bincount([number for chosen, _ in draws for number in chosen], minlength=5)
    assert (abs(counts - 120) < 5 * (200 * 0.6 * 0.4) ** 0.5).all()
    assert _choose(2, plan) == (range(2), 1.0)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_a_shift_of_all_logits_does_not_change_softmax(seeded, shift, dtype, tolerance):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).to(dtype).eval()
    sets = draw().to(dtype)
    plain = encoder(sets)
    with torch.no_grad():
        # A bias of the keys along the queries moves every logit of a slot alike.
        asked = encoder.queries().detach()
        size = asked.unflatten(-1, (2, -1)).square().sum(-1).clamp(min=1e-6)
        direction = (asked.unflatten(-1, (2, -1)) / size[..., None]).flatten(1)[0]
        encoder.read_items.bias[:8] += shift * direction
    moved = stream(encoder, sets, chunk_size=3)
    assert moved.isfinite().all()
    torch.testing.assert_close(moved[:, 0], plain[:, 0], rtol=tolerance, atol=tolerance)


def test_half_precision_items_have_wide_sums(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).to(torch.bfloat16).eval()
    state = encoder.update(encoder.begin(4), draw().to(torch.bfloat16))
    assert all(s.dtype == torch.float32 for s in state.sums)
    assert encoder.finish(state).dtype == torch.bfloat16


def test_dropout_is_the_same_in_both_passes(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2, phi=nn.Sequential(nn.Linear(DIM, 16), nn.Dropout(0.5))).double().train()
    sets = draw([40])
    with seeded(3):
        value = stream(encoder, sets, gradient="exact", chunk_size=10)
        # The second pass would raise if its sums were others.
        assert all(g.isfinite().all() for g in gradients(encoder, value))


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


def test_bad_sources_are_named(encoder, tmp_path):
    sets = draw([4])
    with pytest.raises(DataError, match="read only once"):
        stream(encoder, iter([sets]))
    with pytest.raises(DataError, match="gave no chunk"):
        stream(encoder, [])
    with pytest.raises(DataError, match="cannot be read from int"):
        stream(encoder, 3)
    with pytest.raises(OptionError, match="unknown gradient 'magic'"):
        stream(encoder, sets, gradient="magic")
    with pytest.raises(DataError, match="NaN or infinity"):
        stream(encoder, sets.with_values(sets.values / 0 * 0))
    with pytest.raises(OptionError, match="only differentiated with gradient='full'"):
        stream(encoder, sets.with_values(sets.values.clone().requires_grad_()))
    with pytest.raises(ShapeError, match="one piece for each set"):
        encoder.update(encoder.begin(2), sets)
    (tmp_path / "broken").write_bytes(b"\x00" * 40)
    with pytest.raises(FileFormatError, match="cannot be read as a state"):
        State.load(tmp_path / "broken")


def test_chunks_that_change_between_the_passes_are_noticed(encoder):
    draws = iter(range(100))

    def shuffled():
        yield draw([5, 5], seed=next(draws))
        yield draw([5, 5], seed=next(draws))

    value = stream(encoder, shuffled, gradient="exact")
    with pytest.raises(DataError, match="other chunks in the second pass"):
        gradients(encoder, value)


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
    torch.testing.assert_close(streamed, whole, rtol=1e-11, atol=1e-11)
