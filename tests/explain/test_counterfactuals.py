"""Swaps by enumeration; changed numbers and added items by choosing again."""

import numpy as np
import pandas as pd
import pytest
import torch

from setgrad.selector import SubsetSelector
from setgrad.sets import Sets
from tests.explain.conftest import TINY, make_choices
from tests.explain.oracles import draw_sets, value


def test_swaps_are_the_best_of_all(plain):
    sets = make_choices()[0][:7]
    picks, found = plain.predict(sets), plain.explain(sets, columns=(), near=9)
    rows = {}
    for number, place, other, difference in zip(*(found.swaps[name] for name in found.swaps), strict=True):
        rows[number, place] = other, difference
    for number, items in enumerate(sets):
        chosen = picks[number].nonzero()[:, 0].tolist()
        others = [place for place in range(len(items)) if place not in chosen]
        before = value(plain.function_, items, chosen)
        for place in range(len(items)):
            best = {}
            for other in others if place in chosen else chosen:
                out, joins = (place, other) if place in chosen else (other, place)
                after = value(plain.function_, items, [*(item for item in chosen if item != out), joins])
                best[other] = after - before
            assert ((number, place) in rows) == bool(best)
            if best:
                other, difference = rows[number, place]
                assert difference == pytest.approx(max(best.values()), abs=1e-10)
                assert best[other] == pytest.approx(difference, abs=1e-10)


def test_a_changed_price_flips_the_choice(fitted, shop):
    found = fitted.explain(shop, vary=["price"], columns=()).to_frame("changes")
    picks = fitted.predict(shop).set_index("product")["chosen"]
    assert len(found) > 50
    for change in found.head(25).itertuples():
        visit = shop[shop["visit"] == change.visit].set_index("product")
        assert visit.loc[change.product, "price"] == change.value or np.isnan(visit.loc[change.product, "price"])
        assert change.new_value >= 0
        visit.loc[change.product, "price"] = change.new_value
        again = fitted.predict(visit.reset_index()).set_index("product")["chosen"]
        assert again[change.product] != picks[change.product]


def test_a_smaller_change_that_was_tried_does_not_flip(fitted, shop):
    found = fitted.explain(shop, vary=["price"], columns=()).to_frame("changes")
    picks = fitted.predict(shop).set_index("product")["chosen"]
    prices = shop.set_index("product")["price"]
    known = found[prices[found["product"]].notna().to_numpy()].head(25)
    changed = []
    for change in known.itertuples():
        visit = shop[shop["visit"] == change.visit].set_index("product")
        # The last halving is a four thousandth of an interval, which is at most a sixth of the way to the end.
        visit.loc[change.product, "price"] = change.value + 0.97 * (change.new_value - change.value)
        again = fitted.predict(visit.reset_index()).set_index("product")["chosen"]
        changed.append(again[change.product] != picks[change.product])
    # A choice may flip twice between two numbers that were tried.
    assert np.mean(changed) < 0.2


def test_whole_numbers_stay_whole():
    sets, chosen = make_choices()
    whole = sets.with_values((sets.values * 10).round())
    selector = SubsetSelector(**{**TINY, "max_epochs": 30}).fit(whole, chosen)
    found = selector.explain(whole, vary=["feature 0"], columns=())
    values = found.changes["new_value"]
    assert len(values) > 10 and (values == np.round(values)).all()
    picks = selector.predict(whole)
    for number, place, _, _, new in list(zip(*found.changes.values(), strict=True))[:20]:
        items = whole[number].clone()
        items[place, 0] = new
        assert bool(selector.predict([items]).values[place]) != bool(picks[number][place])


def test_an_added_copy_flips_the_choice(plain):
    sets = make_choices()[0]
    picks, found = plain.predict(sets), plain.explain(sets, columns=(), near=9)
    flipping: dict[tuple[int, int], dict[int, int]] = {}
    for number, items in enumerate(sets):
        variants = Sets.from_list([torch.cat([items, items[[copied]]]) for copied in range(len(items))])
        for copied, after in enumerate(plain.predict(variants)):
            differs = after[:-1] != picks[number]
            for place in differs.nonzero()[:, 0].tolist():
                flipping.setdefault((number, place), {})[copied] = int(differs.sum())
    rows = list(zip(*found.additions.values(), strict=True))
    assert {(number, place) for number, place, _, _ in rows} == set(flipping)
    for number, place, copied, flips in rows:
        assert flipping[number, place][copied] == flips == min(flipping[number, place].values())


def test_size_is_kept_in_changed_sets(fitted, shop):
    found = fitted.explain(shop, size=3, columns=(), vary=["price"])
    assert found.to_frame().groupby("visit")["chosen"].sum().eq(3).all()
    change = found.to_frame("changes").iloc[0]
    visit = shop[shop["visit"] == change["visit"]].copy()
    picks = fitted.predict(visit, size=3).set_index("product")["chosen"]
    visit.loc[visit["product"] == change["product"], "price"] = change["new_value"]
    again = fitted.predict(visit, size=3).set_index("product")["chosen"]
    assert again[change["product"]] != picks[change["product"]]


def test_a_missing_price_is_one_that_can_be_filled_in(fitted, shop):
    gaps = shop[shop["price"].isna()]["product"].tolist()
    found = fitted.explain(shop, near=9, vary=["price"], columns=()).to_frame("changes")
    filled = found[found["product"].isin(gaps)]
    assert len(filled) and pd.isna(filled["value"]).all()


def test_no_swap_without_another_item(plain):
    sets = draw_sets([1, 2], features=2)
    assert len(plain.explain(sets, [[0], [0, 1]]).swaps["set"]) == 0
