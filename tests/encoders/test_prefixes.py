"""States of all beginnings of a set, against the state of each beginning computed alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from setgrad.encoders import DiffEM, chunk_prefixes, item_prefixes
from setgrad.errors import DataError, OptionError
from setgrad.sets import Sets
from tests.encoders.pieces import DIM, draw, gradients, split
from tests.encoders.test_set_encoders import PIECES, build, close

CUTS = [[3, 0, 4], [0, 0, 0], [0, 1, 0], [5, 5, 2]]


@pytest.fixture(params=PIECES, ids=str)
def reader(request: pytest.FixtureRequest, seeded: Any) -> Any:
    return build(request.param, seeded)


def test_after_each_chunk(reader):
    chunks = split(draw(), CUTS)
    # Also from an iterator: a stream passes once.
    for source in (chunks, iter(chunks)):
        codes = torch.cat([reader.finish(state) for state in chunk_prefixes(reader, source)])
        pieces = [chunk.to_list() for chunk in chunks]
        begun = Sets.from_list([torch.cat([p[i] for p in pieces[: n + 1]]) for n in range(3) for i in range(4)])
        close(codes, reader(begun))
        close(gradients(reader, codes), gradients(reader, reader(begun)), 1e-11)


def test_after_each_item(reader):
    sets = draw()
    codes = sets.with_values(reader.finish(item_prefixes(reader, sets)))
    beginnings = Sets.from_list([x[: n + 1] for x in sets.to_list() for n in range(len(x))])
    close(codes.values, reader(beginnings))
    close(gradients(reader, codes.values), gradients(reader, reader(beginnings)), 1e-11)
    assert len(item_prefixes(reader, draw([0, 0]))) == 0


def test_after_each_item_by_weight(reader):
    sets = draw([5])
    weights = torch.tensor([0.0, 2.0, 1.0, 0.0, 3.0])
    found = reader.finish(item_prefixes(reader, sets, weights))
    for n in range(5):
        close(found[n], reader(Sets.from_list([sets.values[: n + 1]]), weights[: n + 1])[0])


def test_prefixes_with_logits_that_only_grow(seeded):
    """Each item has an exponent far above all before it: sums of plain exponentials would overflow."""
    (umbc,) = (case for case in PIECES if case.name == "umbc")
    encoder = build(umbc, seeded)
    with torch.no_grad():
        encoder.read_items.weight.mul_(1e3)
    sets = draw([9])
    found = encoder.finish(item_prefixes(encoder, sets))
    close(found, encoder(Sets.from_list([sets.values[: n + 1] for n in range(9)])))


def test_bad_prefixes_are_refused(reader, seeded):
    def spoilt(x: Tensor) -> Tensor:
        return torch.where(torch.arange(len(x))[:, None] == 2, torch.nan, x)

    sets = draw([4])
    with pytest.raises(DataError, match="NaN or infinity"):
        item_prefixes(reader, sets.with_values(spoilt(sets.values)))
    with pytest.raises(DataError, match="NaN or infinity"):
        list(chunk_prefixes(reader, spoilt(sets.values), chunk_size=3))
    with pytest.raises(OptionError, match="chunk_size must be at least 1"):
        chunk_prefixes(reader, sets, chunk_size=0)
    with seeded(0):
        several = DiffEM(DIM, components=2)
    with pytest.raises(OptionError, match="DiffEM keeps no state"):
        item_prefixes(several, sets)
