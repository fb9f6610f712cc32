"""Shapley values: the definition over all orders, and the spread of sampled ones."""

import pytest
import torch

import setgrad as sg
from setgrad.errors import OptionError, ShapeError
from setgrad.explain import shapley_values
from setgrad.functions import Modular
from tests.explain.oracles import CURVED, draw_sets, shapley_by_orders, value


def test_are_the_mean_gains_over_all_orders():
    sets = draw_sets([1, 6, 0, 4, 6])
    found = shapley_values(CURVED, sets)
    for items, shares, errors in zip(sets, found.values, found.errors, strict=True):
        expected = shapley_by_orders(CURVED, items, range(len(items)))
        assert shares.tolist() == pytest.approx(list(expected.values()), abs=1e-12)
        assert errors.tolist() == [0.0] * len(items)


def test_only_players_share_and_the_others_are_in_no_subset():
    sets, players = draw_sets([5, 6, 3]), [[0, 2, 3], [], [1]]
    found = shapley_values(CURVED, sets, players)
    for items, shares, some in zip(sets, found.values, players, strict=True):
        expected = shapley_by_orders(CURVED, items, some)
        assert shares[some].tolist() == pytest.approx(list(expected.values()), abs=1e-12)
        assert shares.isnan().tolist() == [place not in some for place in range(len(items))]


@pytest.mark.parametrize("exact", [12, 3])
def test_add_up_to_the_value_of_all_minus_that_of_none(exact):
    sets = draw_sets([10, 7, 4], seed=1)
    shares = shapley_values(CURVED, sets, exact=exact, pairs=4).values
    for items, share in zip(sets, shares, strict=True):
        whole = value(CURVED, items, range(len(items))) - value(CURVED, items, [])
        assert float(share.sum()) == pytest.approx(whole, abs=1e-10)


def test_sampled_ones_are_within_their_errors():
    sets = draw_sets([9, 8, 10], seed=2)
    exact, drawn = shapley_values(CURVED, sets), shapley_values(CURVED, sets, exact=0, pairs=256)
    distance = (drawn.values.values - exact.values.values).abs() / drawn.errors.values
    assert bool((drawn.errors.values > 0).all())
    # 27 nearly normal numbers.
    assert float(distance.max()) < 4.5
    assert float(distance.square().mean()) < 2


def test_reversed_orders_leave_no_error_where_only_pairs_interact():
    pairs = sg.functions.FromCallable(lambda items, masks: (masks.double() @ items[:, 0]).square())
    sets = draw_sets([15])
    found = shapley_values(pairs, sets, pairs=2)
    x = sets.values[:, 0]
    assert found.values.values.tolist() == pytest.approx((x * x.sum()).tolist(), abs=1e-10)
    assert float(found.errors.values.max()) < 1e-6


def test_draws_follow_from_the_items_and_the_seed():
    sets = draw_sets([14, 13, 20], seed=3)
    together = shapley_values(CURVED, sets, pairs=8).values
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    alone = shapley_values(CURVED, [sets[1][order]], pairs=8).values
    assert alone.values.tolist() == pytest.approx(together[1][order].tolist(), abs=1e-10)
    other = shapley_values(CURVED, sets, pairs=8, random_state=1).values
    assert not torch.allclose(other.values, together.values)


def test_equal_items_have_equal_values():
    items = draw_sets([16]).values
    items[3] = items[9]
    shares = shapley_values(CURVED, [items], pairs=3).values.values
    assert float(shares[3]) == float(shares[9])


def test_of_a_modular_function_are_its_scores():
    sets = sg.Sets.from_list([[[1.0], [-2.0], [3.0]]])
    assert shapley_values(Modular(), sets).values.values.tolist() == pytest.approx([1.0, -2.0, 3.0])


def test_no_sets_have_no_values():
    assert shapley_values(CURVED, draw_sets([])).values.values.tolist() == []


def test_wrong_arguments_are_errors():
    sets = draw_sets([3])
    with pytest.raises(OptionError, match="pairs must be a whole number of at least 2"):
        shapley_values(CURVED, sets, pairs=1)
    with pytest.raises(OptionError, match="exact must be a whole number"):
        shapley_values(CURVED, sets, exact=-1)
    with pytest.raises(ShapeError):
        shapley_values(CURVED, sets, [[True], [True]])
