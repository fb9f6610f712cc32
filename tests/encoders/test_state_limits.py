"""Limits of states, counts, options and items: a correct result or a clear error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from setgrad.encoders import ABMIL, SSE, UMBC, ContextItems, DeepSets, MaxPool, MLPItems, SetTransformer, State, stream
from setgrad.encoders._ranks import all_reduce
from setgrad.errors import DataError, LostRankError, OptionError, ShapeError, StateError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, random_sets


def single_set(*rows: float) -> Sets:
    return Sets.from_list([torch.tensor(rows)[:, None]])


def state_of(encoder, sets: Sets) -> State:
    return encoder.update(encoder.begin(len(sets)), sets)


@pytest.mark.parametrize("make", [lambda: DeepSets(1, nn.Identity()), lambda: ABMIL(1), lambda: SSE(1, 4, 2)])
def test_a_remainder_of_rounding_errors_is_rejected(seeded, make):
    with seeded(0):
        encoder = make().eval()
    small, large = state_of(encoder, single_set(1.2345)), state_of(encoder, single_set(1e8))
    with pytest.raises(StateError, match="the rest would be rounding errors"):
        small.merge(large).remove(large)


def test_a_state_that_was_never_merged_cannot_be_removed():
    encoder = DeepSets(1, nn.Identity(), pooling="mean")
    with pytest.raises(StateError, match="never merged"):
        state_of(encoder, single_set(1.0)).remove(state_of(encoder, single_set(5.0, 6.0)))
    with pytest.raises(StateError, match="never merged"):
        state_of(encoder, single_set(1.0)).remove(state_of(encoder, single_set(5.0)))


@pytest.mark.parametrize("at_once", [False, True])
def test_removing_all_items_gives_the_state_of_an_empty_set(seeded, at_once):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    parts = [random_sets([7, 3], seed=seed, dtype=torch.float32) for seed in range(4)]
    states = [state_of(encoder, part) for part in parts]
    whole = states[0].merge(states[1]).merge(states[2]).merge(states[3])
    if at_once:
        flipped = Sets.from_list([torch.cat([p[i] for p in parts]).flip(0) for i in range(2)])
        rest = whole.remove(state_of(encoder, flipped))
    else:
        rest = whole
        for state in states:
            rest = rest.remove(state)
    assert torch.equal(encoder.finish(rest), encoder.finish(encoder.begin(2)))
    assert not rest.count.any() and bool((rest.level == -torch.inf).all())
    refilled = rest.merge(states[2])
    torch.testing.assert_close(encoder.finish(refilled), encoder.finish(states[2]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("saved", [False, True])
def test_lost_digits_add_up_over_removals(saved, tmp_path):
    """Each step leaves a thousandth, which would be allowed once."""
    encoder = DeepSets(1, nn.Identity())
    parts = [state_of(encoder, single_set(x)) for x in (1.0, 1e3, 1e6)]
    state = parts[0].merge(parts[1]).merge(parts[2]).remove(parts[2])
    if saved:
        state.save(tmp_path / "state")
        state = State.load(tmp_path / "state")
    assert encoder.finish(state).item() == 1001.0
    with pytest.raises(StateError, match="the rest would be rounding errors"):
        state.merge(encoder.begin()).remove(parts[1])
    assert encoder.finish(parts[0].merge(parts[1]).remove(parts[1])).item() == 1.0


def test_a_sliding_window_stays_accurate(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).double().eval()
    states = [state_of(encoder, random_sets([5], seed=seed)) for seed in range(60)]
    with torch.no_grad():
        window = states[0].merge(states[1]).merge(states[2])
        for number in range(3, 60):
            window = window.merge(states[number]).remove(states[number - 3])
        expected = states[57].merge(states[58]).merge(states[59])
        torch.testing.assert_close(encoder.finish(window), encoder.finish(expected), rtol=1e-9, atol=1e-9)


# --- counts


@pytest.mark.parametrize("make", [lambda: UMBC(DIM, 8, 4, heads=2), lambda: ABMIL(DIM)])
@pytest.mark.parametrize("count", [1e38, 3e38, 1e300, 1e-40, 1e-46])
def test_the_scale_of_counts_makes_no_difference_to_weighted_means(seeded, make, count):
    with seeded(0):
        encoder = make().eval()
    sets = random_sets([4, 3], dtype=torch.float32)
    code = encoder(sets, torch.full((7,), count, dtype=torch.float64))
    torch.testing.assert_close(code, encoder(sets), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1e38, 3e38])
def test_a_mean_is_nan_if_the_sum_of_counts_overflows(seeded, count):
    with seeded(0):
        encoder = DeepSets(DIM, nn.Linear(DIM, 4), pooling="mean").eval()
    sets, counts = random_sets([4, 1], dtype=torch.float32), torch.tensor([count] * 4 + [1.0])
    code = encoder(sets, counts)
    assert code[0].isnan().all()
    torch.testing.assert_close(code[1], encoder(sets)[1])
    torch.testing.assert_close(encoder(sets, counts / 100), encoder(sets))


@pytest.mark.parametrize("count", [-1.0, torch.inf, torch.nan])
def test_negative_and_nonfinite_counts_are_rejected(seeded, count):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    with pytest.raises(DataError, match="negative, infinite or NaN"):
        encoder(random_sets([2], dtype=torch.float32), torch.tensor([1.0, count]))


# --- options and items


def test_the_remedy_for_a_phi_that_depends_on_other_items_works(seeded):
    with seeded(0):
        with pytest.raises(OptionError, match=r"Use phi=MLPItems\(in_dim, dim\)"):
            UMBC(DIM, phi=ContextItems(DIM, 8))
        assert UMBC(DIM, 8, 4, phi=MLPItems(DIM, 8)).eval()(random_sets([2], dtype=torch.float32)).shape == (1, 4, 8)
        with pytest.raises(OptionError, match="phi must be a module"):
            UMBC(DIM, phi="mlp")  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match=r"phi reads items of shape \(4,\), but in_dim is 3"):
            UMBC(DIM, phi=MLPItems(4, 8))


@pytest.mark.parametrize("make", [UMBC, SSE, SetTransformer])
@pytest.mark.parametrize("heads", [0, -1])
def test_attention_needs_heads_and_slots(seeded, make, heads):
    with seeded(0), pytest.raises(OptionError, match="must be at least 1"):
        make(DIM, 8, heads=heads)
    with seeded(0), pytest.raises(OptionError, match="must be at least 1"):
        make(DIM, 8, outputs=0) if make is SetTransformer else make(DIM, 8, 0)


def test_arguments_of_another_type_are_rejected(seeded, tmp_path):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    generator: Any = np.random.default_rng(0)
    with pytest.raises(OptionError, match=r"generator must be a torch.Generator .* not numpy.random.*Generator"):
        stream(encoder, torch.ones(2, DIM), gradient="sample", generator=generator)
    for path in (tmp_path / "items.npy", str(tmp_path / "items.npy")):
        with pytest.raises(DataError, match="a path is not a source of chunks; pass NpyChunks"):
            stream(encoder, path)
    for call in (encoder, lambda x: encoder.update(encoder.begin(), x)):
        with pytest.raises(DataError, match="encoders read Sets, not Tensor"):
            call(torch.ones(1, 2, DIM))


def test_a_state_of_another_dtype_is_rejected(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    with pytest.raises(StateError, match=r"slots of this state are torch.float32, but the encoder is torch.float64"):
        copy.deepcopy(encoder).double().update(encoder.begin(4), random_sets())


def test_a_state_of_mixed_precision_is_resumed_in_mixed_precision(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    sets = random_sets(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        state = encoder.begin(4)
        assert encoder.finish(encoder.update(state, sets)).isfinite().all()
    with pytest.raises(StateError, match=r"are torch.bfloat16, but the encoder is torch.float32.*same torch.autocast"):
        encoder.update(state, sets)
    with pytest.raises(StateError, match="different slots"):
        state.merge(encoder.begin(4))


ENCODERS: dict[str, Callable[[], Any]] = {
    "umbc": lambda: UMBC(DIM, 8, 4, heads=2),
    "umbc, other slots": lambda: UMBC(DIM, 8, 5, heads=2),
    "sse": lambda: SSE(DIM, 8, 4),
    "sse, random": lambda: SSE(DIM, 6, 4, random=True),
    "deep sets": lambda: DeepSets(DIM, nn.Linear(DIM, 4), pooling="mean"),
    "ab-mil": lambda: ABMIL(DIM, nn.Linear(DIM, 4)),
    "max": lambda: MaxPool(DIM, nn.Linear(DIM, 4)),
    "max, wider": lambda: MaxPool(DIM, nn.Linear(DIM, 5)),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_the_state_of_another_encoder_is_rejected(seeded, name):
    with seeded(0):
        encoder, others = ENCODERS[name]().eval(), {n: make().eval() for n, make in ENCODERS.items() if n != name}
    sets = random_sets(dtype=torch.float32)
    assert encoder.finish(state_of(encoder, sets)).isfinite().all()
    for other in others.values():
        state = state_of(other, sets)
        with pytest.raises(StateError, match="pass a state that started with its own begin"):
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
    state = state_of(encoder, random_sets(dtype=torch.float32))
    with pytest.raises(StateError, match="only the largest are kept"):
        state.remove(state)


def test_a_wrapped_encoder_is_rejected(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    wrappers: list[Any] = [torch.compile(encoder, backend="eager"), nn.DataParallel(encoder)]
    for wrapper in wrappers:
        with pytest.raises(OptionError, match=r"is a wrapper.*pass the encoder inside it"):
            stream(wrapper, torch.ones(2, DIM))


def test_arrays_of_any_byte_order_and_stride_are_read(seeded):
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    x = np.random.default_rng(0).normal(size=(6, DIM)).astype(np.float32)
    whole = encoder(Sets.from_list([torch.from_numpy(x)]))
    for array in (x.astype(">f4"), x[::-1]):
        for source in (array, [array[:2], array[2:]]):
            torch.testing.assert_close(stream(encoder, source, chunk_size=4), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint16])
def test_integers_that_phi_cannot_read_are_rejected(seeded, dtype):
    with seeded(0):
        encoders = UMBC(DIM, 8, 4, heads=2).eval(), DeepSets(DIM, nn.Linear(DIM, 4)).eval()
    for encoder in encoders:
        with pytest.raises(DataError, match="phi cannot compute features of torch"):
            stream(encoder, np.ones((2, DIM), dtype))
    with pytest.raises(DataError, match="numbers of at most 64 bits"):
        stream(encoders[0], np.array([[1, 2, "a"]], dtype=object))


def test_only_a_lost_rank_is_reported_as_one(monkeypatch):
    def failing(message):
        def reduce(*_):
            raise RuntimeError(message)

        return reduce

    for name, value in (("is_initialized", True), ("get_backend", "gloo")):
        monkeypatch.setattr(dist, name, lambda *_, value=value: value)
    monkeypatch.setattr(dist, "all_reduce", failing("Invalid scalar type"))
    with pytest.raises(RuntimeError, match="Invalid scalar type") as error:
        all_reduce(torch.ones(1), None, None)
    assert not isinstance(error.value, LostRankError)
    monkeypatch.setattr(dist, "all_reduce", failing("[gloo/transport/tcp/pair.cc:5] Connection closed by peer"))
    with pytest.raises(LostRankError):
        all_reduce(torch.ones(1), None, None)
