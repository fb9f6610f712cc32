"""Encoders with several passes over a source, and the stream and state of a maximum."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from setgrad.encoders import DSMIL, ContextItems, DeepUMBC, DiffEM, MaxPool, MaxState, SlotSoftmax, State, stream
from setgrad.errors import DataError, FileFormatError, OptionError, ShapeError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, assert_close, gradients, random_sets, split_sets

# Each encoder, and how many of its passes are differentiated chunk by chunk: those that compute sums.
CASES = {
    "em": (lambda: DiffEM(DIM, _phi(2), components=3, mixtures=2, steps=2, head=nn.Linear(5, 2)), 2),
    "umbc, deep": (lambda: DeepUMBC(DIM, 8, 3, passes=2, activation=SlotSoftmax(), head=nn.Linear(8, 2)), 2),
    "ds-mil": (lambda: DSMIL(DIM, _phi(5), classes=2, hidden=4), 1),
    "max": (lambda: MaxPool(DIM, _phi(5), head=nn.Linear(5, 2)), 0),
}


def _phi(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, dim), nn.Tanh())


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, seeded: Any) -> tuple[Any, int]:
    make, passes = CASES[request.param]
    with seeded(0):
        return make().double().eval(), passes


def test_all_gradients_give_the_same_code_without_a_graph(case):
    encoder, _ = case
    with torch.no_grad():
        for gradient in ("full", "exact", "sample"):
            assert_close(encoder.stream(random_sets(), gradient=gradient, chunk_size=4), encoder(random_sets()))


def test_a_source_that_changes_is_detected(case):
    encoder, passes = case
    calls = itertools.count()

    def source():
        yield random_sets([5, 5], seed=next(calls))

    if passes:
        # Between the passes of the forward computation, with or without a gradient.
        with torch.no_grad(), pytest.raises(DataError, match="other chunks in a later pass"):
            stream(encoder, source)
    else:
        gradients(encoder, stream(encoder, source))
        # A maximum needs only one pass.
        assert next(calls) == 1


def test_passes_over_a_file(case, tmp_path):
    encoder, _ = case
    values = np.random.default_rng(0).normal(size=(70, DIM))
    np.save(tmp_path / "items.npy", values)
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    whole = encoder(Sets.from_list([torch.from_numpy(values)]))
    for gradient in ("full", "exact"):
        code = stream(encoder, mapped, chunk_size=16, gradient=gradient, prefetch=True)
        assert_close(code, whole)
        assert_close(gradients(encoder, code), gradients(encoder, whole))
        whole = encoder(Sets.from_list([torch.from_numpy(values)]))


@pytest.mark.parametrize("make", [partial(DiffEM, components=2), partial(DeepUMBC, dim=8, slots=3, passes=3)])
def test_dropout_is_the_same_in_every_pass(make, seeded):
    """All passes see the same features."""
    with seeded(0):
        encoder = make(DIM, phi=nn.Sequential(nn.Linear(DIM, 4), nn.Dropout(0.5))).double().train()
    sets = random_sets([6])
    with seeded(3):
        code = stream(encoder, sets, chunk_size=10)
        actual = gradients(encoder, code)
    # The same dropout mask, drawn as the stream draws it.
    with seeded(3):
        seed = int(torch.randint(2**62, ()))
    with seeded(seed):
        whole = encoder(sets)
        expected = gradients(encoder, whole)
    assert_close(code, whole)
    assert_close(actual, expected)


def test_a_phi_that_depends_on_other_items_reads_whole_sets_only(seeded):
    with seeded(0):
        encoder = DSMIL(DIM, ContextItems(DIM, 8, heads=2)).double().eval()
    assert encoder(random_sets()).shape == (4, 1)
    with pytest.raises(OptionError, match="phi must encode each item independently"):
        stream(encoder, random_sets())


# ---- the state of a maximum


@pytest.fixture
def pool(seeded) -> MaxPool:
    with seeded(0):
        return MaxPool(DIM, _phi(5), head=nn.Linear(5, 2)).double().eval()


def test_a_maximum_can_be_saved_and_resumed(pool, tmp_path):
    first, *rest = split_sets(random_sets())
    state = pool.update(pool.begin(4), first)
    state.save(tmp_path / "state")
    resumed = MaxState.load(tmp_path / "state")
    for name in ("value", "number", "items", "length"):
        assert torch.equal(getattr(resumed, name), getattr(state, name)) and not getattr(resumed, name).requires_grad
    for chunk in rest:
        resumed = pool.update(resumed, chunk)
    assert_close(pool.finish(resumed), pool(random_sets()))
    assert resumed.length.tolist() == [7, 0, 1, 12]


def test_files_of_another_kind_of_state_are_rejected(pool, tmp_path):
    pool.begin(1).save(tmp_path / "max")
    with pytest.raises(FileFormatError, match="holds setgrad max state 2, not setgrad encoder state 2"):
        State.load(tmp_path / "max")
    State((torch.ones(1, 2),), None, torch.ones(1), None).save(tmp_path / "sums")
    with pytest.raises(FileFormatError, match="holds setgrad encoder state 2, not setgrad max state 2"):
        MaxState.load(tmp_path / "sums")


def test_damaged_state_files_are_rejected(pool, tmp_path):
    """Truncated anywhere, or changed anywhere in the numbers."""
    state = pool.update(pool.begin(4), random_sets())
    state.save(tmp_path / "state")
    whole = (tmp_path / "state").read_bytes()
    start = len(whole) - sum(t.numel() * t.element_size() for t in (state.value, state.number, state.items)) - 4 * 8
    for cut in (0, 7, 30, start, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match="cannot be read as setgrad max state 2"):
            MaxState.load(tmp_path / "cut")
    for position in (start, start + 100, len(whole) - 1):
        altered = bytearray(whole)
        altered[position] ^= 1
        (tmp_path / "altered").write_bytes(bytes(altered))
        with pytest.raises(FileFormatError, match="was changed or damaged since it was written"):
            MaxState.load(tmp_path / "altered")
    with pytest.raises(FileFormatError, match="cannot be read as setgrad max state 2"):
        MaxState.load(tmp_path / "none")


def test_a_maximum_rejects_invalid_chunks(pool):
    with pytest.raises(DataError, match="NaN or infinity"):
        pool.update(pool.begin(1), Sets.from_list([torch.full((2, DIM), torch.nan, dtype=torch.float64)]))
    with pytest.raises(ShapeError, match=r"reads items of shape \(3,\)"):
        pool.update(pool.begin(1), Sets.from_list([torch.zeros(2, DIM + 1, dtype=torch.float64)]))


def test_a_phi_that_draws_from_another_generator_is_detected(seeded):
    """Its random numbers cannot be repeated."""
    generator = np.random.default_rng(0)

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(DIM, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + torch.from_numpy(generator.normal(size=(len(x), 4)))

    with seeded(0):
        encoder = DiffEM(DIM, Noise(), components=2).double().eval()
    code = stream(encoder, random_sets([9]), chunk_size=4)
    with pytest.raises(OptionError, match="other values for the same items in the second pass"):
        gradients(encoder, code)
