"""Features relative to the set against loops over sets, columns and items."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from setgrad.columns import _relative
from setgrad.columns._part import Part
from setgrad.columns._relative import RelativeFeatures, compare_within
from setgrad.sets import Sets

QUANTITY, CODE, CONTEXT = Part(1, compared=1), Part(1, 6, 4), Part(1, context=True, compared=1)
TEXT = Part(4, 9, 4, words=3)
PARTS = (Part(2, compared=1), CODE, CONTEXT, TEXT, QUANTITY, Part(1, 5, 4, context=True))
SMALL = st.sampled_from([-1.0, 0.0, 0.5, 2.0])


def make_sets(lengths, seed=0):
    """Sets with numbers as `PARTS` describe them, with many ties."""
    rng, total = np.random.default_rng(seed), sum(lengths)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    columns = [
        rng.integers(0, 4, total) / 2,
        rng.integers(0, 2, total),
        rng.integers(0, 6, total),
        rng.normal(size=len(lengths))[ids],
        *(rng.integers(0, 9, total) for _ in range(4)),
        rng.normal(size=total),
        rng.integers(0, 5, len(lengths))[ids],
    ]
    return Sets.from_lengths(torch.tensor(np.stack(columns, 1), dtype=torch.float32), lengths)


def ranks_by_hand(values):
    if len(values) == 1:
        return np.zeros(1)
    return ((rankdata(values) - 1) / (len(values) - 1) - 0.5) * math.sqrt(12)


def distances_by_hand(values):
    deviation = values.std()
    if deviation <= 1e-12 * np.abs(values).max():
        return np.zeros(len(values))
    return np.clip((values - values.mean()) / deviation, -4, 4)


def features_by_hand(sets, training):
    """The features of `PARTS`: quantities 0 and 8, codes 2 and 4 to 6 (three words), the group is code 2."""
    items = sets.values.double().numpy()
    rates = {}
    numbers = training.values.long().numpy()
    for name, places in (("code", [2]), ("text", [4, 5, 6])):
        for code in range(1, 9):
            rates[name, code] = (numbers[:, places] == code).sum() / max(1, len(numbers))
    rows = []
    for start, length in zip(sets.layout.host_offsets[:-1], sets.layout.host_lengths, strict=True):
        own = items[start : start + length]
        largest = {}
        for name, places in (("code", [2]), ("text", [4, 5, 6])):
            block = own[:, places].astype(int)
            excess = np.zeros(block.shape)
            for row, column in np.ndindex(block.shape):
                code = block[row, column]
                if code:
                    rate = rates[name, code]
                    expected = (length - 1) * rate
                    others = (block == code).sum() - 1
                    excess[row, column] = (others - expected) / math.sqrt(expected * (1 - rate) + 1)
            largest[name] = -np.sort(-excess, axis=1)
        for row in range(length):
            features = [math.log(length)]
            for group in (np.full(length, True), own[:, 2] == own[row, 2]):
                among = own[group][:, [0, 8]]
                position = int(group[:row].sum())
                features += [ranks_by_hand(among[:, 0])[position], ranks_by_hand(among[:, 1])[position]]
                features += [distances_by_hand(among[:, 0])[position], distances_by_hand(among[:, 1])[position]]
            for found in (largest["code"], largest["text"], np.maximum(largest["code"], largest["text"])[:, :1]):
                features += [*found[row], found[row, 0] - found[:, 0].max(), found[:, 0].max()]
            rows.append(features)
    return torch.tensor(np.array(rows), dtype=torch.float32).reshape(len(items), -1)


@pytest.fixture(scope="module")
def training():
    return make_sets([7, 1, 12, 5, 30], seed=9)


@pytest.fixture(scope="module")
def relative(training):
    features = RelativeFeatures(PARTS)
    features.fit(features.count(training), training.layout.total)
    return features


@pytest.mark.parametrize("lengths", [[5, 1, 8], [1], [1, 1], [40], [0, 3, 0], [0]], ids=str)
def test_features_are_those_of_a_loop(relative, training, lengths):
    sets = make_sets(lengths, seed=sum(lengths))
    features = relative(sets)
    assert features.shape == (sum(lengths), relative.out_dim) and features.dtype == torch.float64
    if sum(lengths):
        torch.testing.assert_close(features.float(), features_by_hand(sets, training), rtol=1e-5, atol=1e-5)


def test_features_do_not_depend_on_the_batch(relative):
    lengths = [5, 0, 1, 9, 2]
    sets = make_sets(lengths)
    alone = [relative(sets[number : number + 1]) for number in range(len(lengths))]
    assert relative(sets).equal(torch.cat(alone))
    order = [3, 0, 4, 2, 1]
    assert relative(sets.take(order)).equal(torch.cat([alone[number] for number in order]))


@given(st.integers(1, 12), st.integers(0, 99))
def test_features_follow_the_order_of_the_items(relative, length, seed):
    sets = make_sets([length], seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(length))
    torch.testing.assert_close(relative(sets.with_values(sets.values[order])), relative(sets)[order])


@given(st.lists(st.tuples(st.integers(-2, 2), SMALL, st.floats(-1e3, 1e3)), min_size=1, max_size=30))
def test_ranks_and_distances_are_those_within_groups(rows):
    groups = np.array([row[0] for row in rows])
    values = np.array([row[1:] for row in rows])
    ranks, distances = compare_within(torch.tensor(values), torch.tensor(groups))
    for group in np.unique(groups):
        for column in range(2):
            own = values[groups == group, column]
            np.testing.assert_allclose(ranks[groups == group, column], ranks_by_hand(own), atol=1e-12)
            np.testing.assert_allclose(distances[groups == group, column], distances_by_hand(own), atol=1e-7)


@pytest.mark.parametrize("lengths", [[6, 6], [3, 0, 8, 1], [5000] + [1] * 300], ids=["equal", "unequal", "one large"])
def test_sets_are_groups(lengths):
    """Sets are sorted one by one, also with values that are not numbers, which come last."""
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.integers(0, 9, (sum(lengths), 3)) / 2).index_fill(0, torch.tensor([1]), torch.nan)
    sets = Sets.from_lengths(values, lengths)
    found = _relative._compare_in_sets(values, sets)
    expected = compare_within(values, sets.layout.ids)
    for own, other in zip(found, expected, strict=True):
        assert torch.equal(own.nan_to_num(9.0), other.nan_to_num(9.0))


@pytest.mark.parametrize("value", [0.1, 1e12, -3.3, 0.0])
def test_equal_values_are_not_told_apart_by_rounding(value):
    ranks, distances = compare_within(torch.full((7, 1), value, dtype=torch.float64), torch.zeros(7, dtype=torch.long))
    assert not ranks.any() and not distances.any()


def test_context_and_many_quantities_are_not_compared():
    assert RelativeFeatures([CONTEXT, Part(3)]).out_dim == 1
    assert RelativeFeatures([Part.vector(32)]).out_dim == 1 + 2 * 32
    assert RelativeFeatures([Part.vector(33)]).out_dim == 1
    # Within groups up to 16 quantities, and in all up to 64.
    assert RelativeFeatures([Part.vector(16), CODE]).out_dim == 1 + 2 * 2 * 16 + 3
    assert RelativeFeatures([Part.vector(17), CODE]).out_dim == 1 + 2 * 17 + 3
    assert RelativeFeatures([Part.vector(32), Part.vector(32), QUANTITY]).out_dim == 1
    # Columns are compared with each other from two on.
    assert RelativeFeatures([CODE, TEXT]).out_dim == 1 + 3 + 5 + 3


def test_rates_count_codes_of_training_items():
    features = RelativeFeatures([CODE, QUANTITY])
    codes = torch.tensor([[1, 0.5], [1, 0.5], [5, 0.5], [0, 0.5]])
    features.fit(features.count(Sets.from_lengths(codes, [3, 1])), 4)
    assert features.rates.tolist() == [0.0, 0.5, 0.0, 0.0, 0.0, 0.25]
    # Fitted again, it counts from the start.
    features.fit(features.count(Sets.from_lengths(codes[:1], [1])), 1)
    assert features.rates.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
