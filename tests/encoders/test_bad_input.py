"""Sources, chunks and state files that cannot be used: a clear error for each, whatever the encoder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save_file

from setgrad.encoders import MergeableEncoder, State, stream
from setgrad.errors import DataError, FileFormatError, OptionError, ShapeError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, draw, gradients, split
from tests.encoders.test_mergeable import CASES, CUTS


@pytest.fixture(params=CASES, ids=str)
def encoder(request: pytest.FixtureRequest, seeded) -> MergeableEncoder:
    with seeded(0):
        return request.param.make().double().eval()


class Spent:
    """Something that looks as if one could go through it again."""

    def __init__(self, chunks: list[Sets]) -> None:
        self.begun = iter(chunks)

    def __iter__(self) -> Iterator[Sets]:
        return self.begun


def test_a_source_that_begins_only_once_is_refused(encoder):
    """It would give its first chunk to whoever looks how many sets there are, and the rest to the first pass."""
    chunks = split(draw(), CUTS)
    begun = iter(chunks)
    for source in (iter(chunks), (chunk for chunk in chunks), lambda: begun, Spent(chunks)):
        with pytest.raises(DataError, match="read only once"):
            stream(encoder, source)
    torch.testing.assert_close(stream(encoder, lambda: iter(chunks)), encoder(draw()), rtol=1e-12, atol=1e-12)


def test_bad_sources_are_named(encoder, tmp_path):
    sets = draw([4])
    with pytest.raises(DataError, match="gave no chunk"):
        stream(encoder, [])
    with pytest.raises(DataError, match="cannot be read from int"):
        stream(encoder, 3)
    with pytest.raises(OptionError, match="unknown gradient 'magic'"):
        stream(encoder, sets, gradient="magic")
    spoilt = sets.with_values(sets.values / 0)
    for gradient in ("full", "exact", "sample"):
        with pytest.raises(DataError, match="chunk 1 holds NaN or infinity"):
            stream(encoder, [sets, spoilt, sets], gradient=gradient)
        with pytest.raises(ShapeError, match="pieces of 1 sets, another one of 2"):
            stream(encoder, [sets, draw([2, 2])], gradient=gradient)
    with pytest.raises(DataError, match="NaN or infinity"):
        encoder.update(encoder.begin(), spoilt)
    with pytest.raises(ShapeError, match="a single number is no set"):
        stream(encoder, torch.tensor(1.0))
    with pytest.raises(ShapeError, match=r"reads items of shape \(3,\), but the sets hold items of \(4,\)"):
        stream(encoder, torch.zeros(5, DIM + 1, dtype=torch.float64))
    with pytest.raises(OptionError, match="only differentiated with gradient='full'"):
        stream(encoder, sets.with_values(sets.values.clone().requires_grad_()))
    with pytest.raises(ShapeError, match="one piece for each set"):
        encoder.update(encoder.begin(2), sets)


def test_broken_state_files_are_named(encoder, tmp_path):
    """Cut short anywhere, altered anywhere in its numbers, or something else."""
    state = encoder.update(encoder.begin(4), draw())
    state.save(tmp_path / "state")
    whole = (tmp_path / "state").read_bytes()
    for cut in (0, 7, 60, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match="cannot be read as a state"):
            State.load(tmp_path / "cut")
    for place in range(1, 4 * 8, 7):
        altered = bytearray(whole)
        altered[-place] ^= 16
        (tmp_path / "altered").write_bytes(bytes(altered))
        with pytest.raises(FileFormatError, match="was altered"):
            State.load(tmp_path / "altered")
    save_file({"sums.0": torch.ones(2)}, tmp_path / "other")
    with pytest.raises(FileFormatError, match="tensors that are no state"):
        State.load(tmp_path / "other")
    again = State.load(tmp_path / "state")
    torch.testing.assert_close(encoder.finish(again), encoder.finish(state), rtol=0, atol=0)


CHANGES = ["drawn anew", "one more", "one less", "a piece missing", "shuffled", "one number"]
CHANGES += ["sets exchanged", "items exchanged", "flipped", "another layout"]


@pytest.mark.parametrize("gradient", ["exact", "sample"])
@pytest.mark.parametrize("change", [*CHANGES])
def test_chunks_that_change_between_the_passes_are_noticed(encoder, gradient, change):
    turns = itertools.count()
    chunks = [draw([5, 5], seed=0), draw([5, 5], seed=1)]
    nudged = chunks[0].values.clone()
    nudged[3, 1] += 0.01
    others = {
        "sets exchanged": [Sets.from_list(chunks[0].to_list()[::-1]), chunks[1]],
        "items exchanged": [chunks[0].with_values(chunks[0].values[[1, 0, *range(2, 10)]]), chunks[1]],
        "flipped": [chunks[0].with_values(chunks[0].values.flip(-1)), chunks[1]],
        "another layout": [Sets.from_lengths(chunks[0].values, [4, 6]), chunks[1]],
        "drawn anew": [draw([5, 5], seed=2), draw([5, 5], seed=3)],
        "one more": [*chunks, draw([1, 0])],
        "one less": chunks[:1],
        "a piece missing": [Sets.from_list([*chunks[0].to_list()]), Sets.from_list([chunks[1][0], chunks[1][1][:0]])],
        "shuffled": chunks[::-1],
        "one number": [chunks[0].with_values(nudged), chunks[1]],
    }[change]

    # The first two calls look at the source, and the first pass goes on with one of them.
    value = stream(encoder, lambda: chunks if next(turns) < 2 else others, gradient=gradient)
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, value)
