"""Several passes over a source, and the stream of a maximum: what only they do."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from setgrad.encoders import DSMIL, ContextItems, DeepUMBC, DiffEM, MaxPool, MaxState, State, stream
from setgrad.errors import DataError, FileFormatError, OptionError, ShapeError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, draw, gradients, split

CUTS = [[3, 0, 4], [0, 0, 0], [0, 1, 0], [5, 5, 2]]
# Passes that are differentiated by chunks: those of sums. DSMIL finds its best items exactly.
CASES = {
    "em": (lambda: DiffEM(DIM, _phi(2), components=3, mixtures=2, steps=2, head=nn.Linear(5, 2)), 2),
    "umbc, deep": (lambda: DeepUMBC(DIM, 8, 3, passes=2, activation="slot-softmax", head=nn.Linear(8, 2)), 2),
    "ds-mil": (lambda: DSMIL(DIM, _phi(5), classes=2, hidden=4), 1),
    "max": (lambda: MaxPool(DIM, _phi(5), head=nn.Linear(5, 2)), 0),
}


def _phi(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, width), nn.Tanh())


def close(ours: Any, expected: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, seeded: Any) -> tuple[Any, int]:
    make, passes = CASES[request.param]
    with seeded(0):
        return make().double().eval(), passes


def test_items_get_a_gradient_from_the_full_graph(case):
    encoder, _ = case
    values = draw().values.clone().requires_grad_()
    sets = draw().with_values(values)
    streamed, whole = (
        torch.autograd.grad(code.square().sum(), values)[0]
        for code in (encoder.stream(sets, gradient="full", chunk_size=4), encoder(sets))
    )
    close(streamed, whole)
    with pytest.raises(OptionError, match="only differentiated with gradient='full'"):
        encoder.stream(sets)


def test_nothing_is_kept_without_a_graph(case):
    encoder, _ = case
    with torch.no_grad():
        for gradient in ("full", "exact", "sample"):
            close(encoder.stream(draw(), gradient=gradient, chunk_size=4), encoder(draw()))


def test_a_source_that_changes_is_noticed(case):
    encoder, passes = case
    turns = itertools.count()

    def source():
        yield draw([5, 5], seed=next(turns))

    if passes:
        # Already between the passes of the code itself, with a gradient or without.
        with torch.no_grad(), pytest.raises(DataError, match="other chunks in a later pass"):
            stream(encoder, source)
    else:
        gradients(encoder, stream(encoder, source))
        # One pass: a maximum needs no second.
        assert next(turns) == 1


def test_passes_over_a_file(case, tmp_path):
    encoder, _ = case
    values = np.random.default_rng(0).normal(size=(70, DIM))
    np.save(tmp_path / "items.npy", values)
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    whole = encoder(Sets.from_list([torch.from_numpy(values)]))
    for gradient in ("full", "exact"):
        value = stream(encoder, mapped, chunk_size=16, gradient=gradient, prefetch=True)
        close(value, whole)
        close(gradients(encoder, value), gradients(encoder, whole))
        whole = encoder(Sets.from_list([torch.from_numpy(values)]))


@pytest.mark.parametrize("make", [partial(DiffEM, components=2), partial(DeepUMBC, dim=8, slots=3, passes=3)])
def test_dropout_is_the_same_in_every_pass(make, seeded):
    """One mask for all passes: the first pass of features and the last see the same items."""
    with seeded(0):
        encoder = make(DIM, phi=nn.Sequential(nn.Linear(DIM, 4), nn.Dropout(0.5))).double().train()
    sets = draw([6])
    with seeded(3):
        one = stream(encoder, sets, chunk_size=10)
        found = gradients(encoder, one)
    # The same mask, drawn as the stream draws it.
    with seeded(3):
        seed = int(torch.randint(2**62, ()))
    with seeded(seed):
        whole = encoder(sets)
        expected = gradients(encoder, whole)
    close(one, whole)
    close(found, expected)


def test_a_phi_that_looks_at_others_reads_whole_sets_only(seeded):
    with seeded(0):
        encoder = DSMIL(DIM, ContextItems(DIM, 8, heads=2)).double().eval()
    assert encoder(draw()).shape == (4, 1)
    with pytest.raises(OptionError, match="one item at a time"):
        stream(encoder, draw())


# ---- the state of a maximum


@pytest.fixture
def pool(seeded) -> MaxPool:
    with seeded(0):
        return MaxPool(DIM, _phi(5), head=nn.Linear(5, 2)).double().eval()


def test_a_maximum_is_saved_and_gone_on_with(pool, tmp_path):
    first, *rest = split(draw(), CUTS)
    state = pool.update(pool.begin(4), first)
    state.save(tmp_path / "state")
    resumed = MaxState.load(tmp_path / "state")
    for name in ("value", "number", "items", "length"):
        assert torch.equal(getattr(resumed, name), getattr(state, name)) and not getattr(resumed, name).requires_grad
    for chunk in rest:
        resumed = pool.update(resumed, chunk)
    close(pool.finish(resumed), pool(draw()))
    assert resumed.length.tolist() == [7, 0, 1, 12]


def test_states_of_another_kind_are_refused(pool, tmp_path):
    pool.begin(1).save(tmp_path / "max")
    with pytest.raises(FileFormatError, match="'setgrad max state 1' and not 'setgrad encoder state 1'"):
        State.load(tmp_path / "max")
    State((torch.ones(1, 2),), None, torch.ones(1), None).save(tmp_path / "sums")
    with pytest.raises(FileFormatError, match="'setgrad encoder state 1' and not 'setgrad max state 1'"):
        MaxState.load(tmp_path / "sums")


def test_broken_state_files_are_named(pool, tmp_path):
    """Cut short at any place, or altered in any place of its numbers."""
    state = pool.update(pool.begin(4), draw())
    state.save(tmp_path / "state")
    whole = (tmp_path / "state").read_bytes()
    numbers = len(whole) - sum(t.numel() * t.element_size() for t in (state.value, state.number, state.items)) - 4 * 8
    for cut in (0, 7, 30, numbers, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match="cannot be read as a state"):
            MaxState.load(tmp_path / "cut")
    for place in (numbers, numbers + 100, len(whole) - 1):
        altered = bytearray(whole)
        altered[place] ^= 1
        (tmp_path / "altered").write_bytes(bytes(altered))
        with pytest.raises(FileFormatError, match="was altered since it was written"):
            MaxState.load(tmp_path / "altered")
    with pytest.raises(FileFormatError, match="cannot be read as a state"):
        MaxState.load(tmp_path / "none")


def test_a_maximum_refuses_bad_chunks(pool):
    with pytest.raises(DataError, match="NaN or infinity"):
        pool.update(pool.begin(1), Sets.from_list([torch.full((2, DIM), torch.nan, dtype=torch.float64)]))
    with pytest.raises(ShapeError, match=r"reads items of shape \(3,\)"):
        pool.update(pool.begin(1), Sets.from_list([torch.zeros(2, DIM + 1, dtype=torch.float64)]))


def test_a_phi_that_draws_from_elsewhere_is_noticed(seeded):
    """Numbers that torch's generator does not give cannot be given again."""
    generator = np.random.default_rng(0)

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(DIM, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + torch.from_numpy(generator.normal(size=(len(x), 4)))

    with seeded(0):
        encoder = DiffEM(DIM, Noise(), components=2).double().eval()
    value = stream(encoder, draw([9]), chunk_size=4)
    with pytest.raises(OptionError, match="other values for the same items in the second pass"):
        gradients(encoder, value)
