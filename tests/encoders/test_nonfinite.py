"""NaN and infinity, in items or computed from them: visible in the code or an error, never silently lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setgrad.encoders import ABMIL, DSMIL, SSE, UMBC, DeepSets, DeepUMBC, DiffEM, MaxPool, stream
from setgrad.errors import DataError
from setgrad.sets import Sets
from tests.encoders.helpers import DIM, random_sets
from tests.encoders.test_set_encoders import CASES, STREAMS, Case, build

GRADIENTS = ("full", "exact", "sample")


class SquareRoot(nn.Module):
    """Gives NaN for items with a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sqrt())


SQUARE_ROOTS = {
    "umbc": lambda: UMBC(DIM, 8, 4, heads=2, phi=SquareRoot()),
    "umbc, deep": lambda: DeepUMBC(DIM, 8, 4, passes=2, phi=SquareRoot()),
    "sse": lambda: SSE(DIM, 8, 4, phi=SquareRoot()),
    "deep sets": lambda: DeepSets(DIM, SquareRoot(), pooling="mean"),
    "max": lambda: MaxPool(DIM, SquareRoot()),
    "em": lambda: DiffEM(DIM, SquareRoot(), components=2),
    "ab-mil": lambda: ABMIL(DIM, SquareRoot()),
    "ds-mil": lambda: DSMIL(DIM, SquareRoot()),
}


def sets_with(number: float) -> Sets:
    """Return a set with this number in its second item, and a set without."""
    values = random_sets([5, 4]).values.clone()
    values[1, 0] = number
    return Sets.from_lengths(values, [5, 4])


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_item_that_is_not_finite_shows_in_the_code(seeded, case: Case, number: float):
    encoder = build(case, seeded)
    code = encoder(sets_with(number))
    # The tanh of infinity is 1, which is correct.
    bounded = any(isinstance(part, nn.Tanh) for part in encoder.phi.modules())
    assert bool(code[0].isfinite().all()) == (bounded and number == number)
    torch.testing.assert_close(code[1], encoder(random_sets([5, 4]))[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_streams_reject_items_that_are_not_finite(seeded, case: Case, gradient: str):
    with pytest.raises(DataError, match="chunk 0 holds NaN or infinity"):
        stream(build(case, seeded), sets_with(torch.nan), gradient=gradient, chunk_size=3)


@pytest.fixture(params=SQUARE_ROOTS)
def encoder(request: pytest.FixtureRequest, seeded: Any) -> Any:
    with seeded(0):
        return SQUARE_ROOTS[request.param]().eval()


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_streams_reject_a_phi_that_gives_nan(encoder, gradient):
    sets = sets_with(-1.0).to(torch.float32)
    positive = sets.with_values(sets.values.abs())
    assert stream(encoder, positive, gradient=gradient, chunk_size=3).isfinite().all()
    with pytest.raises(DataError, match="phi, or a sum of its features, is NaN or infinite"):
        stream(encoder, sets, gradient=gradient, chunk_size=3)
    with torch.no_grad(), pytest.raises(DataError, match="phi, or a sum of its features, is NaN or infinite"):
        stream(encoder, sets, gradient=gradient, chunk_size=3)
    assert bool(encoder(sets)[0].isnan().any())


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_streams_reject_items_too_large_for_the_dtype_of_the_encoder(encoder, gradient):
    positive = random_sets([5, 4])
    positive = positive.with_values(positive.values.abs())
    large = positive.values.clone()
    large[1, 0] = 1e300
    with pytest.raises(DataError, match="too large for the dtype of the encoder: scale them"):
        stream(encoder, positive.with_values(large), gradient=gradient, chunk_size=3)
    if hasattr(encoder, "begin"):
        state = encoder.update(encoder.begin(2), positive.with_values(large))
        assert not bool(encoder.finish(state)[0].isfinite().all())


@pytest.mark.parametrize("case", STREAMS, ids=str)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_an_item_of_count_0_may_hold_anything(seeded, case: Case, number: float):
    encoder, sets = build(case, seeded), sets_with(number)
    counts = torch.tensor([1.0, 0, 1, 1, 1, 1, 1, 1, 1])
    without = Sets.from_list([sets[0][[0, 2, 3, 4]], sets[1]])
    torch.testing.assert_close(encoder(sets, counts), encoder(without), rtol=1e-10, atol=1e-10)
    if case.mergeable:
        state = encoder.update(encoder.begin(2), sets, counts)
        torch.testing.assert_close(encoder.finish(state), encoder(without), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nan_state", [0, 1])
def test_nan_of_either_state_stays_in_a_maximum(seeded, nan_state):
    with seeded(0):
        encoder = MaxPool(DIM, SquareRoot()).eval()
    sets = [Sets.from_list([torch.full((2, DIM), -1.0 if number == nan_state else 1.0)]) for number in (0, 1)]
    first, second = (encoder.update(encoder.begin(), part) for part in sets)
    merged = first.merge(second)
    assert bool(encoder.finish(merged).isnan().all()) and set(merged.number.flatten().tolist()) == {2 * nan_state}


class Log(nn.Module):
    """Gives -inf for zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log()


def test_a_maximum_of_minus_infinity_differs_from_that_of_an_empty_set():
    encoder, sets = (
        MaxPool(DIM, Log()).eval(),
        Sets.from_list([torch.zeros(3, DIM), torch.zeros(0, DIM), torch.ones(2, DIM)]),
    )
    expected = torch.tensor([-torch.inf, 0.0, 0.0])[:, None].expand(3, DIM)
    assert torch.equal(encoder(sets), expected)
    assert torch.equal(encoder.finish(encoder.update(encoder.begin(3), sets)), expected)
    # An item of count 0 is ignored.
    assert torch.equal(encoder(sets, torch.tensor([0.0, 0, 0, 1, 1])), torch.zeros(3, DIM))
    for gradient in GRADIENTS:
        with pytest.raises(DataError, match="is NaN or infinite"):
            stream(encoder, sets, gradient=gradient, chunk_size=2)


@pytest.mark.parametrize("size", [1e10, 1e18, 1e30, 1e37])
def test_huge_finite_items_have_a_finite_code(seeded, size: float):
    """In float64 no square overflows."""
    with seeded(0):
        encoder = UMBC(DIM, 8, 4, heads=2).eval()
    sets = random_sets([5, 4, 0])
    sets = sets.with_values(sets.values.clamp(-1, 1) * size)
    code = encoder(sets.to(torch.float32))
    torch.testing.assert_close(code.double(), encoder.double()(sets), rtol=1e-4, atol=1e-4)
