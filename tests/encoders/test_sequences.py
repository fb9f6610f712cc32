"""The encoder of drug-target pairs: the contract of item encoders, and the published layers against plain torch."""

from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d, one_hot

from setgrad.datasets import pair_tokens
from setgrad.encoders import ContextItems, PairItems, Stacked
from setgrad.encoders.sequences import PROTEIN_ALPHABET, SMILES_ALPHABET, distinct_rows
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.sets import Sets

DRUGS = ["CCO", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O", "CN1CCC[C@H]1c2cccnc2"]
PROTEINS = ["MKKFFDSRREQGG", "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTT", "GIVEQCCTSICSLYQLENYCN"]


def random_pairs(sizes, seed=0):
    generator, total = torch.Generator().manual_seed(seed), sum(sizes)
    drugs = torch.randint(len(DRUGS), (total,), generator=generator).tolist()
    proteins = torch.randint(len(PROTEINS), (total,), generator=generator).tolist()
    return Sets.from_lengths(pair_tokens([DRUGS[i] for i in drugs], [PROTEINS[i] for i in proteins]), sizes)


@pytest.fixture
def encoder(seeded):
    with seeded(0):
        return PairItems(1100, 8).double()


def test_one_row_for_each_item(encoder):
    assert encoder(random_pairs([4, 0, 1])).shape == (5, 8)
    assert encoder(random_pairs([4, 0, 1])).dtype == torch.float64
    assert encoder(random_pairs([0, 0])).shape == (0, 8)
    assert encoder.out_dim == 8


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64])
def test_tokens_of_any_dtype_give_the_same_features(encoder, dtype):
    sets = random_pairs([5, 2])
    assert torch.equal(encoder(sets.to(dtype)), encoder(sets))


def test_the_layers_are_the_published_ones(encoder):
    """Item by item, as in table 4 of Özcan et al., 2024 (arXiv:2412.11239), without sharing sequences."""
    sets = random_pairs([6])
    features = encoder(sets)
    for tokens, row in zip(sets.values.long(), features, strict=True):
        parts = []
        for tower, part, letters in (
            (encoder.drug, tokens[:100], len(SMILES_ALPHABET)),
            (encoder.target, tokens[100:], len(PROTEIN_ALPHABET)),
        ):
            x = one_hot(part, letters + 2)[:, 1:].T.double()[None]
            for layer in tower.convolutions[::2]:
                x = conv1d(x, layer.weight, layer.bias).clamp(min=0)
            parts.append((tower.linear.weight @ x[0].amax(1) + tower.linear.bias).clamp(min=0))
        expected = encoder.join.weight @ torch.cat(parts) + encoder.join.bias
        torch.testing.assert_close(row, expected, rtol=1e-10, atol=1e-12)


def test_the_shapes_of_the_parameters_are_the_published_ones(seeded):
    with seeded(0):
        encoder: Any = PairItems((1100,))
    shapes = [tuple(layer.weight.shape) for layer in (*encoder.drug.convolutions[::2], encoder.drug.linear)]
    assert shapes == [(32, 65, 4), (64, 32, 6), (96, 64, 8), (256, 96)]
    shapes = [tuple(layer.weight.shape) for layer in (*encoder.target.convolutions[::2], encoder.target.linear)]
    assert shapes == [(32, 26, 4), (64, 32, 8), (96, 64, 12), (256, 96)]
    assert encoder.join.weight.shape == (256, 512)


def test_features_are_equivariant_and_independent_of_other_sets(encoder):
    sets = random_pairs([4, 0, 1, 3])
    together = sets.with_values(encoder(sets))
    for number in range(len(sets)):
        torch.testing.assert_close(together[number], encoder(sets[number : number + 1]), rtol=1e-10, atol=1e-12)
    order = torch.tensor([3, 1, 0, 2, 7, 4, 6, 5])
    moved = encoder(sets.with_values(sets.values[order]))
    torch.testing.assert_close(moved, together.values[order], rtol=1e-10, atol=1e-12)


def test_chunks_give_the_same_features_and_gradients(encoder):
    sets = random_pairs([9, 5])

    def run(chunk):
        encoder.drug.chunk = encoder.target.chunk = chunk
        encoder.zero_grad()
        out = encoder(sets)
        out.square().sum().backward()
        return [out.detach(), *[p.grad.clone() for p in encoder.parameters()]]

    whole = run(1000)
    assert all(bool(grad.any()) for grad in whole)
    for expected, actual in zip(whole, run(2), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_each_distinct_sequence_is_convolved_once(encoder):
    batch_sizes = []
    encoder.drug.convolutions.register_forward_hook(lambda module, args, out: batch_sizes.append(len(args[0])))
    encoder(Sets.from_list([pair_tokens(["CCO", "CCN", "CCO", "CCO"], PROTEINS[:1] * 4)]))
    assert batch_sizes == [2]


def test_distinct_rows_agree_with_torch_unique():
    rows = torch.randint(3, (200, 4), generator=torch.Generator().manual_seed(0))
    distinct, index = distinct_rows(rows)
    assert torch.equal(distinct[index], rows)
    assert len(distinct) == len(torch.unique(rows, dim=0))


def test_rows_that_share_a_sum_stay_distinct(monkeypatch):
    monkeypatch.setattr(torch, "randint", lambda *args, **kwargs: torch.ones(2, dtype=torch.int64))
    rows = torch.tensor([[1, 2], [2, 1], [0, 3], [1, 2]])
    distinct, index = distinct_rows(rows)
    assert len(distinct) == 3
    assert torch.equal(distinct[index], rows)


def test_attention_over_pairs(seeded):
    with seeded(0):
        encoder = Stacked(PairItems(1100, 8), ContextItems(8, 16))
    assert encoder(random_pairs([3, 0, 2])).shape == (5, 16)


def test_invalid_items_and_options_are_rejected(encoder):
    with pytest.raises(ShapeError, match=r"items of shape \(1100,\).*\(3,\)"):
        encoder(Sets.from_list([[[1, 2, 3]]]))
    for wrong in (-1.0, 0.5, 66.0):
        with pytest.raises(DataError, match=r"whole numbers from 0 to 65.*standardize=False"):
            encoder(Sets.from_list([torch.full((1, 1100), wrong)]))
    with pytest.raises(DataError, match="whole numbers from 0 to 26"):
        encoder(Sets.from_list([torch.full((1, 1100), 27)]))
    with pytest.raises(OptionError, match=r"22 tokens of a protein at a time.*leave 10"):
        PairItems(110)
    with pytest.raises(OptionError, match=r"16 tokens of a drug at a time.*pair_tokens"):
        PairItems(1100, smiles_length=10)
