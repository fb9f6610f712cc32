"""A selector that is fitted on a table, and chooses from tables of every kind."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import setgrad as sg
from setgrad.errors import DataError, InfeasibleError, NotFittedError, OptionError
from setgrad.selector import MustHave, SizeRange, SubsetSelector
from tests.selector.conftest import TINY

SETS, ITEMS = 40, 5
COLUMNS: dict[str, Any] = {"set_id": "session", "chosen": "bought", "item_id": "product"}


def make_frame(seed=0):
    """The cheapest product of a session was bought."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "session": np.repeat([f"s{number}" for number in range(SETS)], ITEMS),
            "product": generator.permutation(SETS * ITEMS),
            "price": generator.normal(size=SETS * ITEMS),
            "stars": generator.integers(1, 6, SETS * ITEMS),
        }
    )
    return frame.assign(bought=frame["price"] == frame.groupby("session")["price"].transform("min"))


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def fitted(frame):
    return SubsetSelector(**{**TINY, "learning_rate": 1e-2, "max_epochs": 60}).fit(frame, **COLUMNS)


def test_a_table_is_fitted_as_the_sets_that_are_read_from_it(frame, fitted):
    choices = sg.read_table(frame, **COLUMNS)
    other = SubsetSelector(**{**TINY, "learning_rate": 1e-2, "max_epochs": 60})
    for again in (other.fit(choices), other.fit(*choices)):
        assert again.decision_function(choices.sets).values.equal(fitted.decision_function(choices.sets).values)
        assert again.table_ is None and not hasattr(again, "feature_names_in_")
    assert fitted.feature_names_in_.tolist() == ["price", "stars"]
    assert fitted.score(frame) == fitted.score(choices) == fitted.score(*choices) > 0.9
    assert fitted.score_true_size(frame) == fitted.score_true_size(*choices)


def test_predictions_have_the_rows_and_the_kind_of_the_table(frame, fitted, tmp_path):
    new = make_frame(1).drop(columns="bought").set_index(pd.RangeIndex(7, 7 + SETS * ITEMS))
    picks = fitted.predict(new, carry=["price"])
    assert picks.columns.tolist() == ["session", "product", "chosen", "probability", "rank", "price"]
    assert picks.index.equals(new.index)
    for name in ("session", "product", "price"):
        assert picks[name].tolist() == new[name].tolist()
    sets = sg.read_table(new, set_id="session", features=["price", "stars"]).sets
    assert picks["chosen"].tolist() == fitted.predict(sets).values.tolist()
    assert picks["probability"].tolist() == pytest.approx(fitted.predict_proba(sets).values.tolist())
    for _, rows in picks.groupby("session"):
        assert sorted(rows["rank"]) == list(range(1, ITEMS + 1))
        ordered = rows.sort_values("rank")
        assert ordered["chosen"].tolist() == sorted(rows["chosen"], reverse=True)
        for _, group in ordered.groupby("chosen"):
            assert group["probability"].is_monotonic_decreasing
    for kind in (pl.from_pandas(new), pa.Table.from_pandas(new, preserve_index=False)):
        other = fitted.predict(kind, carry=["price"])
        assert type(other) is type(kind)
        assert [column.to_pylist() for column in pa.table(other)] == [picks[name].tolist() for name in picks.columns]


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz", ".jsonl", ".feather"])
def test_a_saved_model_gives_the_same_picks_from_files(frame, fitted, tmp_path, ending):
    fitted.save(tmp_path / "model")
    loaded, path = sg.load(tmp_path / "model", device="cpu"), tmp_path / f"new{ending}"
    assert loaded.feature_names_in_.tolist() == ["price", "stars"]
    write = {".parquet": "to_parquet", ".feather": "to_feather"}.get(ending)
    if write is not None:
        getattr(frame, write)(path)
    elif ending == ".jsonl":
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        frame.to_csv(path, index=False)
    picks, expected = loaded.predict(str(path), carry=["stars"]), fitted.predict(frame, carry=["stars"])
    for name in ("session", "product", "chosen", "rank"):
        assert picks[name].to_pylist() == expected[name].tolist()
    assert picks["probability"].to_pylist() == pytest.approx(expected["probability"].tolist())


def test_columns_are_matched_by_name(frame, fitted):
    other = frame[["stars", "bought", "product", "price", "session"]].assign(extra="x", more=1.0)
    assert fitted.predict(other).equals(fitted.predict(frame))
    assert fitted.predict(frame.astype({"price": object, "stars": "int8"})).equals(fitted.predict(frame))


def test_rows_of_a_set_may_be_apart(frame, fitted):
    shuffled = frame.sample(frac=1, random_state=0)
    together = (
        shuffled.groupby("session", sort=False)
        .head(ITEMS)
        .assign(place=pd.factorize(shuffled["session"])[0])
        .sort_values("place", kind="stable")
    )
    expected = fitted.predict(together, given="bought", carry=["price"])
    with pytest.warns(UserWarning, match="rows with the same 'session' are apart; they are taken together") as caught:
        picks = fitted.predict(shuffled, given="bought", carry=["price"])
    assert len(caught) == 1
    assert picks.index.equals(shuffled.index)
    assert picks[["session", "product", "price"]].equals(shuffled[["session", "product", "price"]])
    assert picks.equals(expected.loc[picks.index])
    with pytest.warns(UserWarning, match="are apart"):
        other = fitted.predict(pl.from_pandas(shuffled), given="bought", carry=["price"])
    assert other.to_pandas().equals(picks.reset_index(drop=True))
    mask = shuffled["bought"].to_numpy()
    for call in (
        lambda: fitted.score(shuffled) - fitted.score(frame),
        lambda: fitted.score(shuffled, mask) - fitted.score(frame),
        lambda: fitted.score(shuffled, given="bought") - 1,
        lambda: (
            (fitted.predict_proba(shuffled, given=mask).values - fitted.predict_proba(together, given="bought").values)
            .abs()
            .max()
        ),
    ):
        with pytest.warns(UserWarning, match="are apart") as caught:
            assert call() == 0
        assert len(caught) == 1


def test_a_set_without_an_id_is_named_by_its_row(frame, fitted):
    gap = frame.assign(session=frame["session"].where(frame.index != 7))
    with pytest.raises(DataError, match=r"column 'session', row 8 .*the value is missing; every row needs an id"):
        fitted.predict(gap)


def test_items_are_numbered_without_the_column_of_their_ids(frame, fitted):
    picks = fitted.predict(frame.drop(columns="product"))
    assert picks.columns.tolist() == ["session", "item", "chosen", "probability", "rank"]
    assert picks["item"].tolist() == list(range(ITEMS)) * SETS


def test_given_and_excluded_name_columns(frame, fitted):
    begun = frame.assign(cart=frame.groupby("session").cumcount() == 0, gone=frame.groupby("session").cumcount() == 1)
    picks = fitted.predict(begun, given="cart", excluded="gone", size=2)
    assert picks["chosen"][begun["cart"]].all() and not picks["chosen"][begun["gone"]].any()
    assert picks.groupby("session")["chosen"].sum().eq(2).all()
    assert picks["probability"][begun["cart"]].eq(1).all() and picks["probability"][begun["gone"]].eq(0).all()
    known = {"given": begun["cart"].to_numpy(), "excluded": begun["gone"].to_numpy()}
    sets = sg.read_table(frame, set_id="session", features=["price", "stars"]).sets
    for method in (fitted.predict_proba, fitted.decision_function):
        assert method(begun, given="cart", excluded="gone").values.equal(method(sets, **known).values)
    (draw,), (same,) = fitted.sample(begun, given="cart", excluded="gone"), fitted.sample(sets, **known)
    assert draw.values.equal(same.values)
    subsets = frame["bought"].to_numpy()
    assert fitted.score(begun, given="cart") == fitted.score(sets, subsets, given=known["given"])


def test_sets_without_an_allowed_subset_are_named_by_their_id(frame, fitted):
    must = [[0, 1] if number == 7 else [] for number in range(SETS)]
    limits = [MustHave(must), SizeRange(0, 1)]
    with pytest.raises(InfeasibleError, match=r"^set 's7' has no allowed subset"):
        fitted.predict(frame, constraint=limits)
    with pytest.warns(RuntimeWarning, match=r"1 of 40 sets have no allowed subset and stay empty: set 's7'"):
        picks = fitted.predict(frame, constraint=limits, on_failure="skip")
    assert not picks["chosen"][picks["session"] == "s7"].any()
    assert picks["chosen"].any()


def test_weights_and_validation_are_read_from_tables(frame):
    weighted = frame.assign(weight=np.repeat([1.0, 3.0], SETS * ITEMS // 2))
    selector = SubsetSelector(**TINY).fit(weighted, **COLUMNS, weight="weight", validation=make_frame(2))
    choices, held_out = (
        sg.read_table(table, **COLUMNS, features=["price", "stars"]) for table in (frame, make_frame(2))
    )
    again = SubsetSelector(**TINY).fit(*choices, sample_weight=weighted["weight"].to_numpy(), validation=held_out)
    assert selector.decision_function(choices.sets).values.equal(again.decision_function(choices.sets).values)


def test_columns_that_are_not_used_are_named(frame):
    mixed = frame.assign(brand="a", row_id=range(len(frame)))
    with pytest.warns(UserWarning, match=r"not used: brand \(has one value only\), row_id \(looks like an id\)"):
        SubsetSelector(**{**TINY, "max_epochs": 1}).fit(mixed, **COLUMNS)
    named = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(mixed, **COLUMNS, features=["price"])
    assert named.feature_names_in_.tolist() == ["price"]


WRONG_FITS: dict[str, tuple[dict[str, Any], str]] = {
    "no roles": ({}, r"a table needs set_id and chosen"),
    "no chosen": ({"set_id": "session"}, r"a table needs chosen: the names"),
    "subsets too": ({**COLUMNS, "subsets": [[0]]}, "a table holds the subsets too"),
    "weights too": ({**COLUMNS, "sample_weight": [1.0]}, "name the column of the weights, weight, instead"),
}


@pytest.mark.parametrize("name", WRONG_FITS)
def test_fits_that_are_not_understood_raise(frame, name):
    arguments, message = WRONG_FITS[name]
    with pytest.raises(OptionError, match=message):
        SubsetSelector(**TINY).fit(frame, **arguments)


def test_sets_with_names_of_columns_raise(frame):
    choices = sg.read_table(frame, **COLUMNS)
    with pytest.raises(OptionError, match="set_id and chosen name columns of a table, but sets were passed"):
        SubsetSelector(**TINY).fit(*choices, set_id="session", chosen="bought")
    with pytest.raises(OptionError, match="choices hold the subsets too"):
        SubsetSelector(**TINY).fit(choices, choices.subsets)
    with pytest.raises(OptionError, match=r"pass the subsets that were chosen from the sets: fit\(sets, subsets\)"):
        SubsetSelector(**TINY).fit(choices.sets)


def test_predictions_that_are_not_understood_raise(frame, fitted):
    with pytest.raises(DataError, match=r"the data frame: there is no column 'price' or 'stars'"):
        fitted.predict(frame.drop(columns=["price", "stars"]))
    with pytest.raises(DataError, match="there is no column 'brand'"):
        fitted.predict(frame, carry=["brand"])
    with pytest.raises(OptionError, match="the result has a column 'rank' of its own; leave it out of carry"):
        fitted.predict(frame.assign(rank=1), carry=["rank"])
    with pytest.raises(OptionError, match="carry must be a list of columns"):
        fitted.predict(frame, carry="price")
    sets = sg.read_table(frame, set_id="session", features=["price", "stars"]).sets
    with pytest.raises(OptionError, match="carry names columns of a table, but sets were passed"):
        fitted.predict(sets, carry=["price"])
    with pytest.raises(OptionError, match="scores belong to sets, but a table was passed"):
        fitted.predict(frame, scores=fitted.decision_function(sets))
    with pytest.raises(NotFittedError, match="not fitted yet"):
        SubsetSelector().predict(frame)
    on_sets = SubsetSelector(**{**TINY, "max_epochs": 1}).fit(*sg.read_table(frame, **COLUMNS))
    with pytest.raises(OptionError, match="was not fitted on a table and does not know the columns of the data frame"):
        on_sets.predict(frame)
