"""Losses against their definitions, and the items that they read."""

import math

import numpy as np
import pytest
import torch

from setgrad.functions import FreshNoise
from setgrad.inference import AllItems, SampledNegatives
from setgrad.sets import Sets, subset_sizes

SUBSETS = [[True, False, False, False, True], [], [False, False], [True, True, False]]


@pytest.fixture
def subsets():
    return Sets.from_list([torch.tensor(s, dtype=torch.bool) for s in SUBSETS])


@pytest.fixture
def logits(subsets):
    return torch.randn(subsets.layout.total, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def entropy(logit, chosen):
    p = 1 / (1 + math.exp(-logit))
    return -math.log(p if chosen else 1 - p)


@pytest.mark.parametrize("weights", [None, torch.arange(10.0, dtype=torch.float64)], ids=["equal", "weights"])
def test_all_items_weighs_all_sets_equally(subsets, logits, weights):
    rows = iter(zip(logits.tolist(), [1.0] * 10 if weights is None else weights.tolist(), strict=True))
    means = []
    for s in filter(None, SUBSETS):
        pairs = [(next(rows), c) for c in s]
        means.append(sum(w * entropy(x, c) for (x, w), c in pairs) / len(s))
    assert AllItems().coordinates(subsets, subset_sizes(subsets)) is None
    assert AllItems()(logits, subsets, None, weights).item() == pytest.approx(sum(means) / len(means))


def test_sampled_negatives_reads_chosen_items_and_as_many_others(subsets, logits):
    loss = SampledNegatives(FreshNoise(0))
    negatives = set()
    for _ in range(30):
        read = loss.coordinates(subsets, subset_sizes(subsets))
        chosen = subsets.values[read]
        counts = [
            int((subsets.layout.ids[read][chosen == kind] == b).sum()) for kind in (True, False) for b in range(4)
        ]
        assert counts == [2, 0, 0, 2, 2, 0, 0, 1]
        assert len(read.unique()) == len(read)
        negatives |= set(read[~chosen].tolist())
    # In the end, every unchosen item of a set with a chosen one has been drawn.
    assert negatives == {1, 2, 3, 9}
    target = subsets.values[read].tolist()
    total = sum(entropy(x, c) for x, c in zip(logits[read].tolist(), target, strict=True))
    assert loss(logits[read], subsets, read, None).item() == pytest.approx(total / 4)


def test_negatives_are_drawn_uniformly():
    subsets = Sets.from_list([torch.arange(10) < 2])
    loss, counts = SampledNegatives(FreshNoise(3)), np.zeros(10)
    for _ in range(2000):
        counts[loss.coordinates(subsets, subset_sizes(subsets)).numpy()] += 1
    assert (counts[:2] == 2000).all()
    # Each of 8 others is drawn with probability 1/4: mean 500, standard deviation 19.4.
    assert np.abs(counts[2:] - 500).max() < 4.5 * 19.4
