"""Removal from a state, weights and sizes at the edge: a right answer or a clear error."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from setgrad.encoders import ABMIL, SSE, UMBC, ContextItems, DeepSets, MaxPool, MLPItems, SetTransformer, State, stream
from setgrad.encoders._ranks import all_reduce
from setgrad.errors import DataError, LostRankError, OptionError, ShapeError, StateError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, draw


def one(*rows: float) -> Sets:
    return Sets.from_list([torch.tensor(rows)[:, None]])


def state_of(encoder, sets: Sets) -> State:
    return encoder.update(encoder.begin(len(sets)), sets)


@pytest.mark.parametrize("make", [lambda: DeepSets(1, nn.Identity()), lambda: ABMIL(1), lambda: SSE(1, 4, 2)])
def test_a_rest_that_is_rounding_is_refused(seeded, make):
    with seeded(0):
        encoder = make().eval()
    small, large = state_of(encoder, one(1.2345)), state_of(encoder, one(1e8))
    with pytest.raises(StateError, match="the rest would be rounding"):
        small.merge(large).remove(large)


def test_what_was_never_merged_cannot_be_removed():
    encoder = DeepSets(1, nn.Identity(), pooling="mean")
    with pytest.raises(StateError, match="never merged"):
        state_of(encoder, one(1.0)).remove(state_of(encoder, one(5.0, 6.0)))
    with pytest.raises(StateError, match="never merged"):
        state_of(encoder, one(1.0)).remove(state_of(encoder, one(5.0)))


@pytest.mark.parametrize("at_once", [False, True])
def test_without_any_items_the_state_is_that_of_the_beginning(seeded, at_once):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    parts = [draw([7, 3], seed=seed, dtype=torch.float32) for seed in range(4)]
    states = [state_of(encoder, part) for part in parts]
    whole = states[0].merge(states[1]).merge(states[2]).merge(states[3])
    if at_once:
        turned = Sets.from_list([torch.cat([p[i] for p in parts]).flip(0) for i in range(2)])
        left = whole.remove(state_of(encoder, turned))
    else:
        left = whole
        for state in states:
            left = left.remove(state)
    assert torch.equal(encoder.finish(left), encoder.finish(encoder.begin(2)))
    assert not left.count.any() and bool((left.level == -torch.inf).all())
    again = left.merge(states[2])
    torch.testing.assert_close(encoder.finish(again), encoder.finish(states[2]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("saved", [False, True])
def test_digits_that_removals_take_one_after_another_are_counted(saved, tmp_path):
    """Each step leaves a thousandth, which alone would do."""
    encoder = DeepSets(1, nn.Identity())
    parts = [state_of(encoder, one(x)) for x in (1.0, 1e3, 1e6)]
    state = parts[0].merge(parts[1]).merge(parts[2]).remove(parts[2])
    if saved:
        state.save(tmp_path / "state")
        state = State.load(tmp_path / "state")
    assert encoder.finish(state).item() == 1001.0
    with pytest.raises(StateError, match="the rest would be rounding"):
        state.merge(encoder.begin()).remove(parts[1])
    assert encoder.finish(parts[0].merge(parts[1]).remove(parts[1])).item() == 1.0


def test_a_window_moves_on_for_long(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).double().eval()
    states = [state_of(encoder, draw([5], seed=seed)) for seed in range(60)]
    with torch.no_grad():
        window = states[0].merge(states[1]).merge(states[2])
        for number in range(3, 60):
            window = window.merge(states[number]).remove(states[number - 3])
        expected = states[57].merge(states[58]).merge(states[59])
        torch.testing.assert_close(encoder.finish(window), encoder.finish(expected), rtol=1e-9, atol=1e-9)


# --- weights


@pytest.mark.parametrize("make", [lambda: UMBC(DIM, 8, 4, heads=2), lambda: ABMIL(DIM)])
@pytest.mark.parametrize("weight", [1e38, 3e38, 1e300, 1e-40, 1e-46])
def test_the_scale_of_weights_makes_no_difference_to_means(seeded, make, weight):
    with seeded(0):
        encoder = make().eval()
    sets = draw([4, 3], dtype=torch.float32)
    code = encoder(sets, torch.full((7,), weight, dtype=torch.float64))
    torch.testing.assert_close(code, encoder(sets), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weight", [1e38, 3e38])
def test_a_plain_mean_says_that_it_cannot_count_so_much(seeded, weight):
    with seeded(0):
        encoder = DeepSets(DIM, nn.Linear(DIM, 4), pooling="mean").eval()
    sets, weights = draw([4, 1], dtype=torch.float32), torch.tensor([weight] * 4 + [1.0])
    code = encoder(sets, weights)
    assert code[0].isnan().all()
    torch.testing.assert_close(code[1], encoder(sets)[1])
    torch.testing.assert_close(encoder(sets, weights / 100), encoder(sets))


@pytest.mark.parametrize("weight", [-1.0, torch.inf, torch.nan])
def test_weights_that_count_nothing_are_named(seeded, weight):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    with pytest.raises(DataError, match="negative, infinite or NaN"):
        encoder(draw([2], dtype=torch.float32), torch.tensor([1.0, weight]))


# --- options and items


def test_the_remedy_for_a_phi_that_looks_at_others_works(seeded):
    with seeded(0):
        with pytest.raises(OptionError, match=r"Use phi=MLPItems\(in_dim, width\)"):
            UMBC(DIM, phi=ContextItems(DIM, 8))
        assert UMBC(DIM, 8, 4, phi=MLPItems(DIM, 8)).eval()(draw([2], dtype=torch.float32)).shape == (1, 4, 8)
        with pytest.raises(OptionError, match="phi must be a module"):
            UMBC(DIM, phi="mlp")


@pytest.mark.parametrize("make", [UMBC, SSE, SetTransformer])
@pytest.mark.parametrize("heads", [0, -1])
def test_attention_needs_heads_and_slots(seeded, make, heads):
    with seeded(0), pytest.raises(OptionError, match="must be at least 1"):
        make(DIM, 8, heads=heads)
    with seeded(0), pytest.raises(OptionError, match="must be at least 1"):
        make(DIM, 8, outputs=0) if make is SetTransformer else make(DIM, 8, 0)


def test_things_of_another_kind_are_named(seeded, tmp_path):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    with pytest.raises(OptionError, match="drawn by a NumPy generator"):
        stream(encoder, torch.ones(2, DIM), gradient="sample", generator=torch.Generator())
    for path in (tmp_path / "items.npy", str(tmp_path / "items.npy")):
        with pytest.raises(DataError, match="a path is no source of chunks; give NpyChunks"):
            stream(encoder, path)
    for call in (encoder, lambda x: encoder.update(encoder.begin(), x)):
        with pytest.raises(DataError, match="encoders read Sets, not Tensor"):
            call(torch.ones(1, 2, DIM))


def test_a_state_of_another_type_is_named(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    with pytest.raises(StateError, match=r"slots of this state are of torch.float32, the encoder is of torch.float64"):
        copy.deepcopy(encoder).double().update(encoder.begin(4), draw())


def test_a_state_begun_in_mixed_precision_is_gone_on_with_in_it(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    sets = draw(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        state = encoder.begin(4)
        assert encoder.finish(encoder.update(state, sets)).isfinite().all()
    with pytest.raises(StateError, match=r"of torch.bfloat16, the encoder is of torch.float32.*same torch.autocast"):
        encoder.update(state, sets)
    with pytest.raises(StateError, match="different slots"):
        state.merge(encoder.begin(4))


READERS = {
    "umbc": lambda: UMBC(DIM, 8, 4, heads=2),
    "umbc, other slots": lambda: UMBC(DIM, 8, 5, heads=2),
    "sse": lambda: SSE(DIM, 8, 4),
    "sse, random": lambda: SSE(DIM, 6, 4, random=True),
    "deep sets": lambda: DeepSets(DIM, nn.Linear(DIM, 4), pooling="mean"),
    "ab-mil": lambda: ABMIL(DIM, nn.Linear(DIM, 4)),
    "max": lambda: MaxPool(DIM, nn.Linear(DIM, 4)),
    "max, wider": lambda: MaxPool(DIM, nn.Linear(DIM, 5)),
}


@pytest.mark.parametrize("name", READERS)
def test_the_state_of_another_encoder_is_named(seeded, name):
    with seeded(0):
        encoder, others = READERS[name]().eval(), {n: make().eval() for n, make in READERS.items() if n != name}
    sets = draw(dtype=torch.float32)
    assert encoder.finish(state_of(encoder, sets)).isfinite().all()
    for other in others.values():
        state = state_of(other, sets)
        with pytest.raises(StateError, match="give a state that its own begin began"):
            encoder.finish(state)
        if type(state) is not type(encoder.begin(4)):
            with pytest.raises(StateError):
                encoder.update(state, sets)
        with pytest.raises((StateError, ShapeError)):
            state_of(encoder, sets).merge(state)
        with pytest.raises((StateError, ShapeError)):
            state_of(encoder, sets).remove(state)


def test_nothing_can_be_removed_from_a_maximum(seeded):
    with seeded(0):
        encoder = MaxPool(DIM, nn.Linear(DIM, 4)).eval()
    state = state_of(encoder, draw(dtype=torch.float32))
    with pytest.raises(StateError, match="only the largest are kept"):
        state.remove(state)


def test_a_wrapped_encoder_is_named(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    for wrapper in (torch.compile(encoder, backend="eager"), nn.DataParallel(encoder)):
        with pytest.raises(OptionError, match=r"is a wrapper.*give the encoder inside it"):
            stream(wrapper, torch.ones(2, DIM))


def test_arrays_of_any_order_of_bytes_and_rows_are_read(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    x = np.random.default_rng(0).normal(size=(6, DIM)).astype(np.float32)
    whole = encoder(Sets.from_list([torch.from_numpy(x)]))
    for array in (x.astype(">f4"), x[::-1]):
        for source in (array, [array[:2], array[2:]]):
            torch.testing.assert_close(stream(encoder, source, chunk_size=4), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.uint16])
def test_whole_numbers_that_phi_cannot_read_are_named(seeded, kind):
    with seeded(0):
        encoders = UMBC(DIM, 8, 4, heads=2).eval(), DeepSets(DIM, nn.Linear(DIM, 4)).eval()
    for encoder in encoders:
        with pytest.raises(DataError, match="phi makes no features of items of torch"):
            stream(encoder, np.ones((2, DIM), kind))
    with pytest.raises(DataError, match="numbers of at most 64 bits"):
        stream(encoders[0], np.array([[1, 2, "a"]], dtype=object))


def test_only_a_lost_rank_is_reported_as_one(monkeypatch):
    def fails(message):
        def reduce(*_):
            raise RuntimeError(message)

        return reduce

    for name, value in (("is_initialized", True), ("get_backend", "gloo")):
        monkeypatch.setattr(dist, name, lambda *_, value=value: value)
    monkeypatch.setattr(dist, "all_reduce", fails("Invalid scalar type"))
    with pytest.raises(RuntimeError, match="Invalid scalar type") as found:
        all_reduce(torch.ones(1), None, None)
    assert not isinstance(found.value, LostRankError)
    monkeypatch.setattr(dist, "all_reduce", fails("[gloo/transport/tcp/pair.cc:5] Connection closed by peer"))
    with pytest.raises(LostRankError):
        all_reduce(torch.ones(1), None, None)
