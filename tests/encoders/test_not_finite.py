"""NaN and infinity, of items or made of them: seen in the code or an error, and never the code of something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setgrad.encoders import ABMIL, DSMIL, SSE, UMBC, DeepSets, DeepUMBC, DiffEM, MaxPool, stream
from setgrad.errors import DataError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, draw
from tests.encoders.test_set_encoders import CASES, STREAMS, Case, build

GRADIENTS = ("full", "exact", "sample")


class Root(nn.Module):
    """NaN for items with a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sqrt())


ROOTS = {
    "umbc": lambda: UMBC(DIM, 8, 4, heads=2, phi=Root()),
    "umbc, deep": lambda: DeepUMBC(DIM, 8, 4, passes=2, phi=Root()),
    "sse": lambda: SSE(DIM, 8, 4, phi=Root()),
    "deep sets": lambda: DeepSets(DIM, Root(), pooling="mean"),
    "max": lambda: MaxPool(DIM, Root()),
    "em": lambda: DiffEM(DIM, Root(), components=2),
    "ab-mil": lambda: ABMIL(DIM, Root()),
    "ds-mil": lambda: DSMIL(DIM, Root()),
}


def spoilt(number: float) -> Sets:
    """A set with such a number in its second item, and one without."""
    values = draw([5, 4]).values.clone()
    values[1, 0] = number
    return Sets.from_lengths(values, [5, 4])


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_item_that_is_no_number_is_seen(seeded, case: Case, number: float):
    encoder = build(case, seeded)
    code = encoder(spoilt(number))
    # Of infinity tanh makes 1, and that is right.
    bounded = any(isinstance(part, nn.Tanh) for part in encoder.phi.modules())
    assert bool(code[0].isfinite().all()) == (bounded and number == number)
    torch.testing.assert_close(code[1], encoder(draw([5, 4]))[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_items_that_are_no_numbers_are_named(seeded, case: Case, gradient: str):
    with pytest.raises(DataError, match="chunk 0 holds NaN or infinity"):
        stream(build(case, seeded), spoilt(torch.nan), gradient=gradient, chunk_size=3)


@pytest.fixture(params=ROOTS)
def encoder(request: pytest.FixtureRequest, seeded: Any) -> Any:
    with seeded(0):
        return ROOTS[request.param]().eval()


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_phi_that_makes_nan_of_an_item_is_named(encoder, gradient):
    sets = spoilt(-1.0).to(torch.float32)
    fine = sets.with_values(sets.values.abs())
    assert stream(encoder, fine, gradient=gradient, chunk_size=3).isfinite().all()
    with pytest.raises(DataError, match="phi, or what is summed of it, gave NaN or infinity"):
        stream(encoder, sets, gradient=gradient, chunk_size=3)
    with torch.no_grad(), pytest.raises(DataError, match="phi, or what is summed of it, gave NaN or infinity"):
        stream(encoder, sets, gradient=gradient, chunk_size=3)
    assert bool(encoder(sets)[0].isnan().any())


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_items_too_large_for_the_type_of_the_encoder_are_named(encoder, gradient):
    fine = draw([5, 4])
    fine = fine.with_values(fine.values.abs())
    large = fine.values.clone()
    large[1, 0] = 1e300
    with pytest.raises(DataError, match="too large for the type of the encoder: scale them"):
        stream(encoder, fine.with_values(large), gradient=gradient, chunk_size=3)
    if hasattr(encoder, "begin"):
        state = encoder.update(encoder.begin(2), fine.with_values(large))
        assert not bool(encoder.finish(state)[0].isfinite().all())


@pytest.mark.parametrize("case", STREAMS, ids=str)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_an_item_of_weight_0_may_hold_anything(seeded, case: Case, number: float):
    encoder, sets = build(case, seeded), spoilt(number)
    weights = torch.tensor([1.0, 0, 1, 1, 1, 1, 1, 1, 1])
    without = Sets.from_list([sets[0][[0, 2, 3, 4]], sets[1]])
    torch.testing.assert_close(encoder(sets, weights), encoder(without), rtol=1e-10, atol=1e-10)
    if case.pieces:
        state = encoder.update(encoder.begin(2), sets, weights)
        torch.testing.assert_close(encoder.finish(state), encoder(without), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("place", [0, 1])
def test_nan_of_either_state_stays_in_a_maximum(seeded, place):
    with seeded(0):
        encoder = MaxPool(DIM, Root()).eval()
    sets = [Sets.from_list([torch.full((2, DIM), -1.0 if number == place else 1.0)]) for number in (0, 1)]
    first, second = (encoder.update(encoder.begin(), part) for part in sets)
    merged = first.merge(second)
    assert bool(encoder.finish(merged).isnan().all()) and set(merged.number.flatten().tolist()) == {2 * place}


class Log(nn.Module):
    """-inf for zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log()


def test_a_maximum_of_minus_infinity_is_not_that_of_nothing():
    encoder, sets = (
        MaxPool(DIM, Log()).eval(),
        Sets.from_list([torch.zeros(3, DIM), torch.zeros(0, DIM), torch.ones(2, DIM)]),
    )
    expected = torch.tensor([-torch.inf, 0.0, 0.0])[:, None].expand(3, DIM)
    assert torch.equal(encoder(sets), expected)
    assert torch.equal(encoder.finish(encoder.update(encoder.begin(3), sets)), expected)
    # An item of weight 0 is none.
    assert torch.equal(encoder(sets, torch.tensor([0.0, 0, 0, 1, 1])), torch.zeros(3, DIM))
    for gradient in GRADIENTS:
        with pytest.raises(DataError, match="gave NaN or infinity"):
            stream(encoder, sets, gradient=gradient, chunk_size=2)
