"""Tools of scikit-learn that give an estimator nothing but rows, and held-out rows with groups."""

from typing import Any

import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from setgrad import SizeRange
from setgrad.errors import OptionError, ShapeError
from setgrad.selector import SubsetSelector
from tests.selector.conftest import TINY
from tests.selector.test_rows import OPTIONS, as_lists, make_frame, make_rows


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture(scope="module")
def held_out():
    return make_rows(1)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def fitted_alone(rows):
    """For each fold its held-out rows, and a selector that was fitted on the others."""
    frame, (_, y, groups) = make_frame(rows), rows
    return [
        (test, SubsetSelector(**TINY).fit(frame.iloc[train], y[train], set_id="session"))
        for train, test in GroupKFold(3).split(frame, y, groups)
    ]


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_cross_val_predict_gives_what_each_fold_gives(rows, fitted_alone, routing, method):
    frame, (_, y, groups), cv = make_frame(rows), rows, GroupKFold(3)
    selector = SubsetSelector(**TINY).set_fit_request(set_id=True, groups=False)
    found = cross_val_predict(selector, frame, y, params={"groups": groups, "set_id": "session"}, cv=cv, method=method)
    assert found.shape == y.shape
    for test, alone in fitted_alone:
        assert found[test].tolist() == getattr(alone, method)(frame.iloc[test]).tolist()


def test_cross_val_predict_without_a_column_says_what_to_do(rows, routing):
    frame, (_, y, groups) = make_frame(rows).drop(columns="session"), rows
    selector = SubsetSelector(**TINY).set_fit_request(groups=True)
    with pytest.raises(
        OptionError, match=r"as cross_val_predict of scikit-learn, need a column instead: fit with set_"
    ):
        cross_val_predict(selector, frame, y, params={"groups": groups}, cv=GroupKFold(3))


def test_classes_are_there_after_a_fit(rows):
    x, y, groups = rows
    selector = SubsetSelector(**TINY)
    assert not hasattr(selector, "classes_")
    assert selector.fit(x, y, groups=groups).classes_.tolist() == [False, True]


@pytest.mark.parametrize("form", ["array", "frame", "column"])
def test_permutation_importance_finds_the_column_that_counts(rows, form):
    frame, (x, y, groups) = make_frame(rows), rows
    if form == "array":
        data, scoring = x, lambda fitted, rows, bought: fitted.score(rows, bought, groups=groups)
        selector = SubsetSelector(**OPTIONS).fit(data, y, groups=groups)
    elif form == "frame":
        data, scoring = frame[["price", "noise"]], lambda fitted, rows, b: fitted.score(rows, b, groups=groups)
        selector = SubsetSelector(**OPTIONS).fit(data, y, groups=groups)
    else:
        data, scoring = frame[["session", "price", "noise"]], None
        selector = SubsetSelector(**OPTIONS).fit(data, y, set_id="session")
    found = permutation_importance(selector, data, y, scoring=scoring, n_repeats=2, random_state=0)
    *_, price, noise = found.importances_mean
    known = {} if form == "column" else {"groups": groups}
    full = selector.score(data, y, **known)
    # Only the price matters, so without it the score is about that of a guess.
    assert full > 0.9 and price > 0.4 and abs(noise) < 0.1


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_pipeline_hands_on_frames(rows, routing, library):
    frame, (_, y, groups) = make_frame(rows)[["price", "noise"]], rows
    last = SubsetSelector(**TINY).set_fit_request(groups=True).set_predict_request(groups=True)
    pipeline = make_pipeline(StandardScaler(), last).set_output(transform=library)
    picks = pipeline.fit(frame, y, groups=groups).predict(frame, groups=groups)
    assert pipeline[-1].feature_names_in_.tolist() == ["price", "noise"]
    scaled = pd.DataFrame(StandardScaler().fit_transform(frame), columns=["price", "noise"])
    alone = SubsetSelector(**TINY).fit(scaled, y, groups=groups)
    assert (alone.predict(scaled, groups=groups) == picks).all()


def test_rows_without_groups_say_so(rows):
    x, y, groups = rows
    fitted = SubsetSelector(**TINY).fit(x, y, groups=groups)
    with pytest.raises(OptionError, match="one y for each row needs the set of each row too: pass groups"):
        fitted.score(x, y)
    with pytest.raises(
        ShapeError, match=r"items of shape \(2,\), .*; if each row is an item, pass the set of each: gr"
    ):
        fitted.predict(x)


# ---- held-out rows


def same_training(one, other):
    assert one.history_ and [record["validation_loss"] for record in one.history_] == [
        record["validation_loss"] for record in other.history_
    ]


def test_held_out_rows_are_held_out_sets(rows, held_out):
    x, y, groups = rows
    sets, masks, _ = as_lists(*held_out)
    by_sets = SubsetSelector(**TINY).fit(x, y, groups=groups, validation=(sets, masks))
    for validation in (held_out, list(held_out), (held_out[0], pd.Series(held_out[1]), held_out[2].tolist())):
        same_training(SubsetSelector(**TINY).fit(x, y, groups=groups, validation=validation), by_sets)
    lists = as_lists(*rows)[:2]
    same_training(SubsetSelector(**TINY).fit(*lists, validation=held_out), by_sets)


def test_held_out_rows_of_a_frame_are_a_held_out_table(rows, held_out):
    frame, (_, y, groups) = make_frame(rows), rows
    other, (_, other_y, other_groups) = make_frame(held_out), held_out
    items, other_items = frame.drop(columns="session"), pl.from_pandas(other.drop(columns="session"))
    by_groups = SubsetSelector(**TINY).fit(items, y, groups=groups, validation=(other_items, other_y, other_groups))
    by_column = SubsetSelector(**TINY).fit(frame, y, set_id="session", validation=(other, other_y))
    roles: dict[str, Any] = {"set_id": "session", "chosen": "bought"}
    with pytest.warns(UserWarning, match="are apart"):
        by_table = SubsetSelector(**TINY).fit(frame.assign(bought=y), **roles, validation=other.assign(bought=other_y))
    same_training(by_groups, by_table)
    same_training(by_column, by_table)


def test_held_out_rows_may_have_a_constraint(rows, held_out):
    x, y, groups = rows
    sets, masks, _ = as_lists(*held_out)
    one = SizeRange(1, 1)
    by_sets = SubsetSelector(**TINY).fit(x, y, groups=groups, constraint=one, validation=(sets, masks, one))
    for limits in (one, [one]):
        by_rows = SubsetSelector(**TINY).fit(x, y, groups=groups, constraint=one, validation=(*held_out, limits))
        same_training(by_rows, by_sets)


def test_held_out_rows_that_do_not_fit_are_named(rows, held_out):
    frame, (x, y, groups) = make_frame(rows), rows
    selector, items = SubsetSelector(**TINY), frame.drop(columns="session")
    with pytest.raises(ShapeError, match=r"groups has shape \(199,\); pass one value for each of the 200 rows"):
        selector.fit(x, y, groups=groups, validation=(x, y, groups[1:]))
    with pytest.raises(OptionError, match="fitted with groups; pass the group of each row too"):
        selector.fit(items, y, groups=groups, validation=(items, y))
    with pytest.raises(OptionError, match=r"because y was passed; pass it too: validation=\(X, y, groups\)"):
        selector.fit(items, y, groups=groups, validation=items)
    with pytest.raises(OptionError, match=r"pass it too: validation=\(X, y\)"):
        selector.fit(frame, y, set_id="session", validation=frame)
    with pytest.raises(ShapeError, match=r"must be a pair \(sets, subsets\), rows \(X, y, groups\), or one of these"):
        selector.fit(x, y, groups=groups, validation=(*held_out, SizeRange(1, 1), SizeRange(1, 1)))
