"""Explanations of a fitted selector: gains, effects of columns, and their tables."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import setgrad as sg
from setgrad.errors import DataError, NotFittedError, OptionError
from setgrad.selector import SubsetSelector
from tests.explain.conftest import COLUMNS, TINY, make_choices
from tests.explain.oracles import draw_sets, value


def test_gains_are_differences_of_values(plain):
    sets = make_choices()[0][:7]
    picks, found = plain.predict(sets), plain.explain(sets, near=3)
    for row in range(len(found.items["set"])):
        number, place = found.items["set"][row], found.items["item"][row]
        items, subset = sets[number], picks[number].nonzero()[:, 0].tolist()
        assert found.items["chosen"][row] == (place in subset)
        rest = [item for item in subset if item != place]
        expected = value(plain.function_, items, [*rest, place]) - value(plain.function_, items, rest)
        assert found.items["gain"][row] == pytest.approx(expected, abs=1e-10)


def test_chosen_items_and_the_nearest_others_are_explained(plain):
    sets = make_choices()[0][:7]
    picks = plain.predict(sets)
    gains, found = plain.gains(sets, picks), plain.explain(sets, near=2, columns=())
    assert found.columns == []
    for number in range(len(sets)):
        chosen = picks[number].nonzero()[:, 0].tolist()
        others = [place for place in range(len(sets[number])) if place not in chosen]
        nearest = sorted(others, key=lambda place: -float(gains[number][place]))[:2]
        explained = found.items["item"][found.items["set"] == number]
        assert sorted(explained) == sorted([*chosen, *nearest])


def test_effects_are_falls_of_the_gain_with_values_of_other_items(plain):
    sets = make_choices()[0][:7]
    picks, found = plain.predict(sets), plain.explain(sets, near=2)
    for row in range(len(found.items["set"])):
        number, place = found.items["set"][row], found.items["item"][row]
        items, mask = sets[number], picks.take([number]).values[None]
        for column in range(2):
            gains = []
            for other in range(len(items)):
                changed = items.clone()
                changed[place, column] = items[other, column]
                gains.append(float(plain.function_.gains(sg.Sets.from_list([changed]), mask)[0, place].detach()))
            effect = found.items[f"effect of feature {column}"][row]
            if len(items) == 1:
                assert np.isnan(effect)
            else:
                own = gains.pop(place)
                assert effect == pytest.approx(own - np.mean(gains), abs=1e-10)


def test_shapley_values_share_the_value_of_the_chosen_subset(plain):
    sets = make_choices()[0][:7]
    picks, found = plain.predict(sets), plain.explain(sets, columns=())
    nothing = picks.with_values(torch.zeros_like(picks.values))
    worth = (plain.value(sets, picks) - plain.value(sets, nothing)).tolist()
    for number in range(len(sets)):
        rows = found.items["set"] == number
        assert np.nansum(found.items["shapley"][rows]) == pytest.approx(worth[number], abs=1e-10)
        assert (np.isnan(found.items["shapley"][rows]) == ~found.items["chosen"][rows]).all()


def test_a_set_is_explained_alone_as_among_others(fitted, shop):
    together = fitted.explain(shop, vary=["price"])
    for name in ("v3", "v17"):
        alone = fitted.explain(shop[shop["visit"] == name], vary=["price"])
        part = together.of_set(name)
        for table in ("items", "pairs", "swaps", "changes", "additions"):
            one, other = alone.to_frame(table), part.to_frame(table)
            pd.testing.assert_frame_equal(one, other, rtol=1e-4, atol=1e-4)


def test_tables_have_the_ids_and_the_columns_of_the_caller(fitted, shop):
    found = fitted.explain(shop)
    frame, picks = found.to_frame(), fitted.predict(shop).set_index("product")
    effects = [f"effect of {name}" for name in ("brand", "price", "noise", "member")]
    assert frame.columns.tolist() == [
        "visit",
        "product",
        "chosen",
        "gain",
        "shapley",
        "shapley_error",
        "step",
        "step_gain",
        *effects,
    ]
    assert found.columns == ["brand", "price", "noise", "member"]
    own = shop.set_index("product").loc[frame["product"]]
    assert frame["visit"].tolist() == own["visit"].tolist()
    assert frame["chosen"].tolist() == picks.loc[frame["product"], "chosen"].tolist()
    # All items of a visit have the same value of this column.
    assert (frame["effect of member"] == 0).all()
    few = shop[shop["visit"].isin(["v0", "v1", "v2"])]
    for kind in (pl.from_pandas(few), pa.Table.from_pandas(few)):
        others = fitted.explain(kind)
        for table in ("items", "swaps"):
            other, same = others.to_frame(table), found.to_frame(table)
            assert type(other) is type(kind)
            expected = same[same["visit"].isin(few["visit"])]["product"].tolist()
            assert pa.table(other).column("product").to_pylist() == expected
    assert found.to_dict("pairs")["other"] == found.to_frame("pairs")["other"].tolist()
    with pytest.raises(OptionError, match="unknown table 'rows'"):
        found.to_frame("rows")


def test_the_deciding_columns_drive_the_gains(fitted, shop):
    frame = fitted.explain(shop).to_frame()
    sizes = {name: frame[f"effect of {name}"].abs().mean() for name in ("brand", "price", "noise")}
    assert min(sizes["brand"], sizes["price"]) > 3 * sizes["noise"]
    merged = frame.merge(shop[["product", "price"]], on="product").dropna(subset=["price"])
    cheap = merged["price"] < 20
    assert merged.loc[cheap, "effect of price"].mean() > 0 > merged.loc[merged["price"] > 50, "effect of price"].mean()


def test_text_names_items_on_clean_lines(fitted, shop):
    hostile = shop.assign(product=[f"\x1b[2J<script>\n{name}" for name in shop["product"]])
    text = str(fitted.explain(hostile, vary=["price"]))
    assert "\x1b" not in text and "<script> p0" in text
    assert text.splitlines()[0] == "visit v0" and "not shown: 37 of 40 sets" in text
    assert repr(fitted.explain(shop[:8])).startswith("Explanation(1 sets, ")


@pytest.mark.filterwarnings("ignore:.*tells nearly by itself")
def test_ids_that_are_called_like_a_column_keep_their_values():
    sets, chosen = make_choices()
    frame = pd.DataFrame({"gain": np.asarray(sets.layout.ids), "effect of x": range(sets.layout.total)})
    frame = frame.assign(x=sets.values[:, 0].numpy(), bought=chosen.values.numpy())
    selector = SubsetSelector(**TINY).fit(frame, set_id="gain", item_id="effect of x", chosen="bought")
    found = selector.explain(frame[:4])
    assert [found.set_name, found.item_name] == ["id of gain", "id of effect of x"]
    assert set(found.to_frame()["id of gain"]) == {0}


def test_sets_of_one_item_full_and_empty_subsets(plain):
    sets = draw_sets([1, 3, 0, 4], features=2)
    nothing: list[list[int]] = [[], [], [], []]
    for subsets in (nothing, [[0], [0, 1, 2], [], [0, 1, 2, 3]]):
        found = plain.explain(sets, subsets, near=2)
        assert found.items["chosen"].sum() == sum(map(len, subsets))
        assert len(found.swaps["set"]) == 0 and len(found.additions["set"]) == 0
        assert str(found).startswith("set 0")
    assert str(plain.explain(sets.take([2]))) == "nothing to explain: there are no items"
    assert plain.explain(sets.take([])).to_dict()["set"] == []


def test_given_and_excluded_items_stay_what_they_are(fitted, shop):
    some = shop[:16].assign(out=False, cart=False)
    some.loc[[0, 8], "cart"], some.loc[[1, 9], "out"] = True, True
    found = fitted.explain(some, given="cart", excluded="out", near=9, vary=["price"])
    assert {"p0", "p8"} <= set(found.to_frame().query("chosen")["product"])
    assert not {"p1", "p9"} & set(found.items["product"])
    for table in ("swaps", "changes", "additions"):
        assert not {"p0", "p8"} & set(found.to_frame(table)["product"])
    assert not {"p0", "p1", "p8", "p9"} & set(found.swaps["other"])


def test_rows_with_groups_are_named_by_their_rows():
    sets, chosen = make_choices()
    order = torch.randperm(sets.layout.total, generator=torch.Generator().manual_seed(0))
    rows, groups, y = sets.values[order].numpy(), sets.layout.ids[order].numpy(), chosen.values[order].numpy()
    selector = SubsetSelector(**TINY).fit(rows, y, groups=groups)
    found, picks = selector.explain(rows, groups=groups, near=0, columns=()), selector.predict(rows, groups=groups)
    assert sorted(found.items["item"]) == np.flatnonzero(picks).tolist()


def test_own_subsets_are_explained_but_not_changed(fitted, shop):
    found = fitted.explain(shop[:8], shop["bought"][:8].to_numpy(), near=2)
    assert found.to_frame().query("chosen")["product"].tolist() == shop[:8].query("bought")["product"].tolist()
    with pytest.raises(OptionError, match="vary asks what would change the choice of the model"):
        fitted.explain(shop[:8], shop["bought"][:8].to_numpy(), vary=["price"])


def test_wrong_arguments_are_errors(fitted, shop):
    with pytest.raises(NotFittedError):
        SubsetSelector().explain(shop)
    with pytest.raises(OptionError, match="near must be a whole number of at least 0, not -1"):
        fitted.explain(shop, near=-1)
    with pytest.raises(OptionError, match=r"columns must be a list of columns; write \['price'\]"):
        fitted.explain(shop, columns="price")
    with pytest.raises(DataError, match="vary names 'cost', which the model does not read; it reads brand, price"):
        fitted.explain(shop, vary=["cost"])
    with pytest.raises(OptionError, match="vary takes columns of numbers, and 'brand' is not one"):
        fitted.explain(shop, vary=["brand"])
    with pytest.raises(DataError, match="no explained item of set 'v999'"):
        fitted.explain(shop[:8]).of_set("v999")


def test_a_loaded_model_explains_the_same(fitted, shop, tmp_path):
    fitted.save(tmp_path / "model")
    again = sg.load(tmp_path / "model", device="cpu").explain(shop[:24]).to_frame()
    assert again.equals(fitted.explain(shop[:24]).to_frame())
    assert COLUMNS["item_id"] in again
