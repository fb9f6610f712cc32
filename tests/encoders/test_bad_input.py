"""Sources, chunks and state files that cannot be used: a clear error for each, whatever the encoder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from setgrad.encoders import UMBC, DeepSets, MergeableEncoder, State, stream
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
CHANGES += ["sets exchanged", "items exchanged", "flipped", "another layout", "items of two chunks exchanged"]


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
        "items of two chunks exchanged": [
            one.with_values(torch.cat([other.values[:1], one.values[1:]])) for one, other in (chunks, chunks[::-1])
        ],
        "flipped": [chunks[0].with_values(chunks[0].values.flip(-1)), chunks[1]],
        "another layout": [Sets.from_lengths(chunks[0].values, [4, 6]), chunks[1]],
        "drawn anew": [draw([5, 5], seed=2), draw([5, 5], seed=3)],
        "one more": [*chunks, draw([1, 0])],
        "one less": chunks[:1],
        "a piece missing": [Sets.from_list([*chunks[0].to_list()]), Sets.from_list([chunks[1][0], chunks[1][1][:0]])],
        "shuffled": chunks[::-1],
        "one number": [chunks[0].with_values(nudged), chunks[1]],
    }[change]

    # The first pass goes on with the call that looks at the source.
    value = stream(encoder, lambda: chunks if next(turns) < 1 else others, gradient=gradient)
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, value)


@pytest.mark.parametrize("gradient", ["exact", "sample"])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_a_column_of_large_numbers_hides_no_other(seeded, gradient, shape):
    """Three columns of four are drawn anew beside one of a thousand million."""
    turns = itertools.count()

    def source():
        generator = torch.Generator().manual_seed(next(turns))
        x = torch.randn(1000, 4, generator=generator, dtype=torch.float64)
        x[:, 0] = 1e9
        yield x.reshape(1000, *shape)

    with seeded(0):
        encoder = UMBC(shape, 8, 4, heads=2).double().eval()
    with torch.no_grad():
        encoder.read_items.weight[:, 0] = 0
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, stream(encoder, source, gradient=gradient))


def test_one_other_item_of_many_is_noticed(seeded):
    turns = itertools.count()
    with seeded(0):
        encoder = DeepSets(2, nn.Linear(2, 1)).double().eval()
    x = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = x.clone()
    other[777] += 0.5
    code = stream(encoder, lambda: iter((x if next(turns) < 2 else other).split(4096)))
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, code)


@pytest.mark.parametrize("noise", [0.0, 1e-6])
@pytest.mark.parametrize("items", [1, 1000])
def test_rounding_makes_no_other_chunks(seeded, noise, items):
    """As of a network on a GPU, which sums in another order at every call; columns may differ in scale."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(items, 4, generator=generator) * torch.tensor([1e6, 1.0, 1e-6, 0.0])
    with seeded(0):
        encoder = DeepSets(4, nn.Linear(4, 3)).eval()
    source = lambda: iter((x * (1 + noise * torch.randn(x.shape, generator=generator))).split(7))  # noqa: E731
    assert all(g.isfinite().all() for g in gradients(encoder, stream(encoder, source)))


class Read(nn.Module):
    """Numbers of any type as features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float().flatten(1)) if x.dim() > 1 else self.layer(x.float()[:, None])


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int8, torch.int64, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_items_of_any_type_and_shape_are_the_same_at_every_pass(seeded, kind, shape):
    lowest = {torch.int8: -128, torch.int64: -1000, torch.bool: 0}.get(kind, 2)
    items = torch.full((10, *shape), lowest, dtype=kind)
    with seeded(0):
        encoder = DeepSets(shape, Read(math.prod(shape))).eval()
    torch.testing.assert_close(stream(encoder, items, chunk_size=4), encoder(Sets.from_list([items])))
    assert all(g.isfinite().all() for g in gradients(encoder, stream(encoder, items, chunk_size=4)))
    items[7] = items[7] + 1 if kind != torch.bool else True
    with pytest.raises(DataError, match="other chunks in a later pass"):
        code = stream(encoder, items, chunk_size=4)
        items[7] = lowest
        gradients(encoder, code)


@pytest.mark.parametrize("gradient", ["full", "exact", "sample"])
def test_a_chunk_of_items_of_another_shape_is_named(seeded, gradient):
    with seeded(0):
        encoder = DeepSets(DIM, nn.Linear(DIM, 2)).eval()
    with pytest.raises(ShapeError, match=r"chunk 1 holds items of shape \(4,\), those before \(3,\)"):
        stream(encoder, [torch.zeros(2, DIM), torch.zeros(2, 4)], gradient=gradient)
