"""Pairs of items: second differences and the Shapley interaction index, by enumeration."""

import itertools

import pytest
import torch

from setgrad.errors import OptionError
from setgrad.explain import second_differences, shapley_interactions
from tests.explain.oracles import CURVED, draw_sets, index_by_orders, second_difference


def by_set(found, sets):
    """Return the pairs of each set, by their positions."""
    ids, positions = sets.layout.ids, sets.layout.positions
    assert ids[found.first].equal(ids[found.second])
    pairs: list[dict[tuple[int, int], float]] = [{} for _ in range(len(sets))]
    for one, other, number in zip(found.first, found.second, found.values.tolist(), strict=True):
        pairs[int(ids[one])][int(positions[one]), int(positions[other])] = number
    return pairs


def test_second_differences_are_those_of_four_values():
    sets, subsets = draw_sets([5, 1, 0, 4]), [[0, 3], [0], [], []]
    for items, subset, pairs in zip(
        sets, subsets, by_set(second_differences(CURVED, sets, subsets), sets), strict=True
    ):
        expected = {
            pair: second_difference(CURVED, items, subset, *pair)
            for pair in itertools.combinations(range(len(items)), 2)
        }
        assert pairs == pytest.approx(expected, abs=1e-12)


def test_pairs_of_some_items_are_those_of_all():
    sets, subsets, items = draw_sets([5, 6]), [[1], [2, 4]], [[0, 1, 4], [5, 2]]
    every = by_set(second_differences(CURVED, sets, subsets), sets)
    some = by_set(second_differences(CURVED, sets, subsets, items), sets)
    for pairs, of_all, wanted in zip(some, every, items, strict=True):
        assert list(pairs) == list(itertools.combinations(sorted(wanted), 2))
        assert pairs == pytest.approx({pair: of_all[pair] for pair in pairs}, abs=1e-12)


def test_the_index_is_the_mean_over_orders():
    sets, players = draw_sets([5, 2, 0, 6, 1]), [[0, 1, 3, 4], [0, 1], [], [1, 2, 3, 4, 5], [0]]
    for items, some, pairs in zip(
        sets, players, by_set(shapley_interactions(CURVED, sets, players), sets), strict=True
    ):
        expected = {pair: index_by_orders(CURVED, items, some, *pair) for pair in itertools.combinations(some, 2)}
        assert pairs == pytest.approx(expected, abs=1e-12)


def test_the_index_takes_all_items_and_few_sets_of_them():
    sets = draw_sets([4, 3])
    every = shapley_interactions(CURVED, sets)
    named = shapley_interactions(CURVED, sets, [[0, 1, 2, 3], [0, 1, 2]])
    assert torch.equal(every.values, named.values) and len(every.values) == 6 + 3
    with pytest.raises(OptionError, match="set 0 has 4 items, whose 16 subsets"):
        shapley_interactions(CURVED, sets, exact=3)
    assert len(shapley_interactions(CURVED, draw_sets([1, 0])).values) == 0
