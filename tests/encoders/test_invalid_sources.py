"""Clear errors for sources, chunks and state files that cannot be used, for all encoders with sums."""

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
from tests.encoders.helpers import DIM, gradients, random_sets, split_sets
from tests.encoders.test_set_encoders import DEEP_SETS_CASES, UMBC_CASES, build


@pytest.fixture(params=[*UMBC_CASES, *DEEP_SETS_CASES], ids=str)
def encoder(request: pytest.FixtureRequest, seeded) -> MergeableEncoder:
    return build(request.param, seeded)


class SinglePass:
    """An iterable that returns the same iterator at every call."""

    def __init__(self, chunks: list[Sets]) -> None:
        self.iterator = iter(chunks)

    def __iter__(self) -> Iterator[Sets]:
        return self.iterator


def test_a_source_that_can_be_read_only_once_is_rejected(encoder):
    chunks = split_sets(random_sets())
    iterator = iter(chunks)
    for source in (iter(chunks), (chunk for chunk in chunks), lambda: iterator, SinglePass(chunks)):
        with pytest.raises(DataError, match="read only once"):
            stream(encoder, source)
    torch.testing.assert_close(stream(encoder, lambda: iter(chunks)), encoder(random_sets()), rtol=1e-12, atol=1e-12)


def test_invalid_sources_are_rejected(encoder):
    sets = random_sets([4])
    with pytest.raises(DataError, match="gave no chunk"):
        stream(encoder, [])
    with pytest.raises(DataError, match="cannot be read from int"):
        stream(encoder, 3)
    with pytest.raises(OptionError, match="unknown gradient 'magic'"):
        stream(encoder, sets, gradient="magic")
    nonfinite = sets.with_values(sets.values / 0)
    for gradient in ("full", "exact", "sample"):
        with pytest.raises(DataError, match="chunk 1 holds NaN or infinity"):
            stream(encoder, [sets, nonfinite, sets], gradient=gradient)
        with pytest.raises(ShapeError, match="items of 1 sets, another one of 2"):
            stream(encoder, [sets, random_sets([2, 2])], gradient=gradient)
    with pytest.raises(DataError, match="NaN or infinity"):
        encoder.update(encoder.begin(), nonfinite)
    with pytest.raises(ShapeError, match="a single number is not a set"):
        stream(encoder, torch.tensor(1.0))
    with pytest.raises(ShapeError, match=r"reads items of shape \(3,\), but the sets hold items of shape \(4,\)"):
        stream(encoder, torch.zeros(5, DIM + 1, dtype=torch.float64))
    with pytest.raises(OptionError, match="only differentiated with gradient='full'"):
        stream(encoder, sets.with_values(sets.values.clone().requires_grad_()))
    with pytest.raises(ShapeError, match="one part for each set"):
        encoder.update(encoder.begin(2), sets)


def test_damaged_state_files_are_rejected(encoder, tmp_path):
    """Truncated anywhere, changed anywhere in the numbers, or not a state at all."""
    state = encoder.update(encoder.begin(4), random_sets())
    state.save(tmp_path / "state")
    whole = (tmp_path / "state").read_bytes()
    for cut in (0, 7, 60, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match="cannot be read as setgrad encoder state 2"):
            State.load(tmp_path / "cut")
    for position in range(1, 4 * 8, 7):
        altered = bytearray(whole)
        altered[-position] ^= 16
        (tmp_path / "altered").write_bytes(bytes(altered))
        with pytest.raises(FileFormatError, match="was changed or damaged"):
            State.load(tmp_path / "altered")
    save_file({"sums.0": torch.ones(2)}, tmp_path / "other")
    with pytest.raises(FileFormatError, match="holds other tensors"):
        State.load(tmp_path / "other")
    loaded = State.load(tmp_path / "state")
    torch.testing.assert_close(encoder.finish(loaded), encoder.finish(state), rtol=0, atol=0)


def changed_chunks() -> tuple[list[Sets], dict[str, list[Sets]]]:
    """Return two chunks of two sets, and what a later pass may give instead of them."""
    chunks = [random_sets([5, 5], seed=0), random_sets([5, 5], seed=1)]
    first, second = chunks
    nudged = first.values.clone()
    nudged[3, 1] += 0.01
    return chunks, {
        "all items": [random_sets([5, 5], seed=2), random_sets([5, 5], seed=3)],
        "one number": [first.with_values(nudged), second],
        "one more chunk": [*chunks, random_sets([1, 0])],
        "one chunk less": [first],
        "a part missing": [first, Sets.from_list([second[0], second[1][:0]])],
        "chunks exchanged": [second, first],
        "sets exchanged": [Sets.from_list(first.to_list()[::-1]), second],
        "items exchanged": [first.with_values(first.values[[1, 0, *range(2, 10)]]), second],
        "items of two chunks exchanged": [
            a.with_values(torch.cat([b.values[:1], a.values[1:]])) for a, b in ((first, second), (second, first))
        ],
        "columns flipped": [first.with_values(first.values.flip(-1)), second],
        "other lengths": [Sets.from_lengths(first.values, [4, 6]), second],
    }


@pytest.mark.parametrize("gradient", ["exact", "sample"])
@pytest.mark.parametrize("change", changed_chunks()[1])
def test_chunks_that_change_between_the_passes_are_detected(encoder, gradient, change):
    calls, (chunks, changed) = itertools.count(), changed_chunks()
    # The first pass continues the call that looks at the first chunk.
    code = stream(encoder, lambda: chunks if next(calls) < 1 else changed[change], gradient=gradient)
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, code)


@pytest.mark.parametrize("gradient", ["exact", "sample"])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_a_column_of_large_numbers_does_not_hide_changes_of_others(seeded, gradient, shape):
    """Three columns of four are drawn again beside a constant one of 1e9."""
    calls = itertools.count()

    def source():
        generator = torch.Generator().manual_seed(next(calls))
        x = torch.randn(1000, 4, generator=generator, dtype=torch.float64)
        x[:, 0] = 1e9
        yield x.reshape(1000, *shape)

    with seeded(0):
        encoder = UMBC(shape, 8, 4, heads=2).double().eval()
    with torch.no_grad():
        encoder.read_items.weight[:, 0] = 0
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, stream(encoder, source, gradient=gradient))


def test_one_changed_item_of_many_is_detected(seeded):
    calls = itertools.count()
    with seeded(0):
        encoder = DeepSets(2, nn.Linear(2, 1)).double().eval()
    x = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    changed = x.clone()
    changed[777] += 0.5
    code = stream(encoder, lambda: iter((x if next(calls) < 2 else changed).split(4096)))
    with pytest.raises(DataError, match="other chunks in a later pass"):
        gradients(encoder, code)


@pytest.mark.parametrize("noise", [0.0, 1e-6])
@pytest.mark.parametrize("items", [1, 1000])
def test_rounding_errors_do_not_count_as_a_change(seeded, noise, items):
    """Such as those of a network on a GPU, which sums in another order at every call; columns differ in scale."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(items, 4, generator=generator) * torch.tensor([1e6, 1.0, 1e-6, 0.0])
    with seeded(0):
        encoder = DeepSets(4, nn.Linear(4, 3)).eval()
    source = lambda: iter((x * (1 + noise * torch.randn(x.shape, generator=generator))).split(7))  # noqa: E731
    assert all(g.isfinite().all() for g in gradients(encoder, stream(encoder, source)))


class AnyDtype(nn.Module):
    """A linear layer that reads numbers of any dtype."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float().flatten(1)) if x.dim() > 1 else self.layer(x.float()[:, None])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_items_of_any_dtype_and_shape_are_compared_between_passes(seeded, dtype, shape):
    lowest = {torch.int8: -128, torch.int64: -1000, torch.bool: 0}.get(dtype, 2)
    items = torch.full((10, *shape), lowest, dtype=dtype)
    with seeded(0):
        encoder = DeepSets(shape, AnyDtype(math.prod(shape))).eval()
    torch.testing.assert_close(stream(encoder, items, chunk_size=4), encoder(Sets.from_list([items])))
    assert all(g.isfinite().all() for g in gradients(encoder, stream(encoder, items, chunk_size=4)))
    items[7] = items[7] + 1 if dtype != torch.bool else True
    with pytest.raises(DataError, match="other chunks in a later pass"):
        code = stream(encoder, items, chunk_size=4)
        items[7] = lowest
        gradients(encoder, code)


@pytest.mark.parametrize("gradient", ["full", "exact", "sample"])
def test_a_chunk_with_items_of_another_shape_is_rejected(seeded, gradient):
    with seeded(0):
        encoder = DeepSets(DIM, nn.Linear(DIM, 2)).eval()
    with pytest.raises(ShapeError, match=r"chunk 1 holds items of shape \(4,\), earlier chunks of shape \(3,\)"):
        stream(encoder, [torch.zeros(2, DIM), torch.zeros(2, 4)], gradient=gradient)
