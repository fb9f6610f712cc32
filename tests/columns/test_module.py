"""Learned vectors of codes against a sum in plain Python."""

import math

import numpy as np
import pytest
import torch

from setgrad.columns._module import CodeVectors, ColumnItems, hashed
from setgrad.columns._part import HASHED, Part, compared_scales, count_features


@pytest.mark.parametrize("codes", [2, 5, 9, 40])
def test_an_item_has_the_sum_of_its_vectors(seeded, codes):
    with seeded(0):
        module = CodeVectors(Part(3, codes, 8))
    rng = np.random.default_rng(0)
    items = rng.integers(0, codes, (20, 3))
    items[0] = 0
    for row, vector in zip(items, module(torch.tensor(items, dtype=torch.float32)), strict=True):
        known = [int(code) for code in row if code]
        total = sum((module.weight[code - 1] for code in known), torch.zeros(8))
        torch.testing.assert_close(vector, total / math.sqrt(max(1, len(known))))


def test_few_codes_start_as_one_hot_features_and_many_have_about_their_length(seeded):
    with seeded(0):
        few, many = CodeVectors(Part(1, 6, 5)), CodeVectors(Part(1, 400, 32))
    assert few.weight.equal(2 * torch.eye(5))
    assert many.weight.detach().norm(dim=1).square().mean().sqrt().item() == pytest.approx(2, rel=0.1)


def test_scales_are_the_lengths_before_training(seeded):
    scales = np.array([9.0, 1.0, 0.5, 3.0])
    with seeded(0):
        module = CodeVectors(Part(2, 4, 3, scales=scales))
    assert module.weight.norm(dim=1).tolist() == pytest.approx([2.0, 1.0, 6.0])


def test_quantities_pass_and_codes_become_vectors(seeded):
    parts = (Part(2, compared=1), Part(1, 4, 3), Part.vector(2), Part(2, 50, 8))
    with seeded(0):
        module = ColumnItems(parts)
    assert module.out_dim == count_features(parts) == 2 + 3 + 2 + 8
    items = torch.tensor([[0.5, 1, 3, 7, 8, 1, 49], [1.5, 0, 0, 9, 6, 0, 0]])
    features = module(items)
    assert features[:, :2].equal(items[:, :2]) and features[:, 5:7].equal(items[:, 3:5])
    assert features[:, 2:5].equal(module.tables[1](items[:, 2:3]))
    assert features[:, 7:].equal(module.tables[3](items[:, 5:]))
    # Unknown of everything is zero, and each row is computed by itself.
    assert not features[1, 2:5].any() and not features[1, 7:].any()
    assert module(items[1:]).equal(features[1:])


def test_gradients_reach_the_vectors_of_the_codes_that_occur(seeded):
    with seeded(0):
        module = CodeVectors(Part(2, 6, 5))
    module(torch.tensor([[1.0, 3.0], [0.0, 3.0]])).sum().backward()
    assert module.weight.grad is not None
    assert module.weight.grad.any(1).tolist() == [True, False, True, False, False]


def test_context_is_not_compared_and_vectors_count_fully():
    parts = (Part(2, compared=1), Part(1, 4, 3), Part(1, context=True, compared=1), Part(2, compared=2))
    scales = torch.tensor([0.5, 0.25, 9.0, 7.0, 3.0])
    expected = [0.5, 0.25, 1.0, 1.0, 1.0, 0.0, 3.0, 1.0]
    assert compared_scales(parts, scales).tolist() == [*expected[:6], 1.0, 1.0]
    assert compared_scales(parts, torch.cat([scales, torch.tensor([1.0])])).tolist() == expected


def test_texts_are_compared_by_the_words_that_they_share(seeded):
    with seeded(0):
        module = ColumnItems((Part(1, compared=1), Part(4, 500, 8, words=4)))
    items = torch.tensor([[0.5, 3, 7, 300, 0], [1.5, 300, 3, 0, 0], [2.5, 9, 11, 0, 0], [3.5, 0, 0, 0, 0]])
    features = module(items)
    compared = module.compared(items, features)
    assert compared.shape == (4, 1 + HASHED) and compared[:, :1].equal(features[:, :1])
    words = compared[:, 1:] / 2
    # Words that two texts share, over the root of the product of their numbers.
    torch.testing.assert_close(words @ words[0], torch.tensor([1, 2 / 6**0.5, 0, 0]))
    assert not words[3].any()
    assert words[:1].equal(hashed(items[:1, [4, 3, 2, 1]]) / 2)


def test_collisions_of_words_cancel_on_average():
    rng = np.random.default_rng(0)
    codes = torch.tensor(rng.permutation(20_000)[:16_000] + 1).reshape(1000, 2, 8).double()
    products = (hashed(codes[:, 0]) * hashed(codes[:, 1])).sum(1) / 4
    assert products.count_nonzero() > 100 and abs(float(products.mean())) < 3 * float(products.std()) / 1000**0.5
