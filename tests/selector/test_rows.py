"""Rows in any order with groups: arrays and frames, and the tools of scikit-learn that pass them."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import setgrad as sg
from setgrad.errors import DataError, OptionError, ShapeError
from setgrad.selector import SubsetSelector, jaccard
from setgrad.selector._rows import GroupedRows, as_chosen, as_groups
from setgrad.sets import Sets
from tests.selector.conftest import TINY

SETS, ITEMS = 40, 5
OPTIONS = {**TINY, "learning_rate": 1e-2, "max_epochs": 40}


def make_rows(seed=0):
    """The cheapest item of a group is chosen; the rows are shuffled."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(SETS * ITEMS)
    prices = generator.normal(size=(SETS, ITEMS, 2))
    groups = np.repeat([f"g{number}" for number in generator.permutation(SETS)], ITEMS)
    chosen = (prices[..., 0] == prices[..., 0].min(1, keepdims=True)).ravel()
    return prices.reshape(-1, 2)[order].astype(np.float32), chosen[order], groups[order]


def as_lists(x, y, groups):
    """Return sets and masks by a loop, in the order of the first rows."""
    names = list(dict.fromkeys(groups.tolist()))
    return [x[groups == name] for name in names], [y[groups == name] for name in names], names


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture(scope="module")
def fitted(rows):
    x, y, groups = rows
    return SubsetSelector(**OPTIONS).fit(x, y, groups=groups)


def make_frame(rows):
    x, _, groups = rows
    return pd.DataFrame(x, columns=["price", "noise"]).assign(brand=np.where(x[:, 1] > 0, "a", "b"), session=groups)


def test_rows_are_gathered_as_by_a_loop(rows):
    x, y, groups = rows
    sets, _, names = as_lists(x, y, groups)
    grouped = GroupedRows.of(x, groups)
    assert [part.tolist() for part in grouped.sets] == [part.tolist() for part in sets]
    codes = [names.index(name) for name in groups]
    for form in (groups, pd.Series(groups), pl.Series(groups), list(groups), pd.Series(groups).astype("category")):
        assert as_groups(form, len(x)).tolist() == codes
    assert as_groups(torch.tensor(codes), len(x)).tolist() == codes


def test_rows_with_groups_give_the_model_of_the_sets(rows, fitted):
    x, y, groups = rows
    sets, masks, names = as_lists(x, y, groups)
    by_sets = SubsetSelector(**OPTIONS).fit(sets, masks)
    picks, probabilities = fitted.predict(x, groups=groups), fitted.predict_proba(x, groups=groups)
    logits = fitted.decision_function(x, groups=groups)
    assert (picks.shape, picks.dtype, probabilities.shape) == (y.shape, bool, y.shape)
    expected = [by_sets.predict(sets), by_sets.predict_proba(sets), by_sets.decision_function(sets)]
    for result, right in zip((picks, probabilities, logits), expected, strict=True):
        for name, part in zip(names, right, strict=True):
            assert result[groups == name].tolist() == part.tolist()
    assert fitted.score(x, y, groups=groups) == by_sets.score(sets, masks) > 0.9
    for form in (y.astype(int), y.astype(float), torch.from_numpy(y), pd.Series(y), pd.Series(y).astype("boolean")):
        assert fitted.score(x, form, groups=groups) == by_sets.score(sets, masks)
    given = y & (groups == "g3")
    assert fitted.predict(x, groups=groups, given=given, size=2)[given].all()


def test_weights_of_rows_follow_them(rows):
    x, y, groups = rows
    weights = np.where(groups < "g2", 3.0, 1.0)
    by_rows = SubsetSelector(**TINY).fit(x, y, groups=groups, sample_weight=weights)
    sets, masks, names = as_lists(x, y, groups)
    by_sets = SubsetSelector(**TINY).fit(sets, masks, sample_weight=[3.0 if name < "g2" else 1.0 for name in names])
    assert by_rows.decision_function(sets).values.equal(by_sets.decision_function(sets).values)


@pytest.mark.filterwarnings("ignore:.*are apart:UserWarning")
def test_frames_with_groups_are_understood_as_tables(rows, tmp_path):
    frame, (_, y, groups) = make_frame(rows), rows
    items = frame.drop(columns="session")
    by_table = SubsetSelector(**OPTIONS).fit(frame.assign(bought=y), set_id="session", chosen="bought")
    by_groups = SubsetSelector(**OPTIONS).fit(items, y, groups=groups)
    by_column = SubsetSelector(**OPTIONS).fit(frame, y, set_id="session")
    expected = by_table.predict(frame)
    assert by_groups.feature_names_in_.tolist() == ["price", "noise", "brand"]
    by_groups.save(tmp_path / "groups")
    by_column.save(tmp_path / "column")
    for selector, data, known in (
        (by_groups, items, {"groups": groups}),
        (sg.load(tmp_path / "groups", device="cpu"), pl.from_pandas(items), {"groups": groups}),
        (by_column, frame, {}),
        (sg.load(tmp_path / "column", device="cpu"), pl.from_pandas(frame), {}),
        (by_table, items, {"groups": groups}),
    ):
        picks = selector.predict(data, **known)
        assert isinstance(picks, np.ndarray)
        assert picks.tolist() == expected["chosen"].tolist()
        assert selector.predict_proba(data, **known).tolist() == pytest.approx(expected["probability"].tolist())
        assert selector.score(data, y, **known) == by_table.score(frame, y)
    with pytest.raises(OptionError, match="was fitted with groups; pass the group of each row too"):
        by_groups.predict(items)
    with pytest.raises(OptionError, match="carry names columns of a table, but the result is an array"):
        by_column.predict(frame, carry=["price"])


def test_no_column_of_the_frame_is_replaced(rows):
    frame, (_, y, groups) = make_frame(rows).drop(columns="session"), rows
    clash = frame.rename(columns={"price": "groups", "noise": "y"})
    plain = SubsetSelector(**TINY).fit(frame, y, groups=groups, sample_weight=np.ones(len(y)))
    other = SubsetSelector(**TINY).fit(clash, y, groups=groups, sample_weight=np.ones(len(y)))
    assert other.feature_names_in_.tolist() == ["groups", "y", "brand"]
    assert (other.predict_proba(clash, groups=groups) == plain.predict_proba(frame, groups=groups)).all()


def by_folds(x, y, groups, cv):
    """Return predictions and scores by a loop over the folds."""
    picks, scores = np.zeros(len(y), dtype=bool), []
    for train, test in cv.split(x, y, groups):
        selector = SubsetSelector(**TINY).fit(x[train], y[train], groups=groups[train])
        picks[test] = selector.predict(x[test], groups=groups[test])
        _, masks, _ = as_lists(x[test], y[test], groups[test])
        _, chosen, _ = as_lists(x[test], picks[test], groups[test])
        scores.append(float(jaccard(Sets.from_list(chosen), Sets.from_list(masks)).mean()))
    return picks, scores


def test_scikit_learn_passes_groups_on(rows, routing):
    x, y, groups = rows
    cv = GroupKFold(3)
    selector = SubsetSelector(**TINY).set_fit_request(groups=True).set_score_request(groups=True)
    _, scores = by_folds(x, y, groups, cv)
    assert cross_val_score(selector, x, y, params={"groups": groups}, cv=cv) == pytest.approx(scores)
    search = GridSearchCV(selector, {"dim": [4, 16]}, cv=cv, error_score="raise").fit(x, y, groups=groups)
    assert search.cv_results_["mean_test_score"][1] == pytest.approx(np.mean(scores))
    refit = SubsetSelector(**TINY).set_params(**search.best_params_).fit(x, y, groups=groups)
    assert (search.best_estimator_.predict(x, groups=groups) == refit.predict(x, groups=groups)).all()


def test_a_column_of_groups_lets_scikit_learn_predict(rows, routing):
    frame, (_, y, groups) = make_frame(rows), rows
    cv = GroupKFold(3)
    selector = SubsetSelector(**TINY).set_fit_request(set_id=True, groups=False)
    params = {"groups": groups, "set_id": "session"}
    # That predictions are those of each fold is in test_scikit_learn.py.
    scores = cross_val_score(selector.set_score_request(groups=False), frame, y, params=params, cv=cv)
    assert len(scores) == 3 and (scores > 0).all()


def test_a_pipeline_passes_groups_on(rows, routing):
    x, y, groups = rows
    asks = {"groups": True}
    last = SubsetSelector(**TINY).set_fit_request(**asks).set_predict_request(**asks).set_score_request(**asks)
    pipeline = make_pipeline(FunctionTransformer(lambda part: 2 * part), last)
    alone = SubsetSelector(**TINY).fit(2 * x, y, groups=groups)
    picks = pipeline.fit(x, y, groups=groups).predict(x, groups=groups)
    assert (picks == alone.predict(2 * x, groups=groups)).all()
    scores = cross_val_score(pipeline, x, y, params={"groups": groups}, cv=GroupKFold(3), error_score="raise")
    assert scores.tolist() == pytest.approx(by_folds(2 * x, y, groups, GroupKFold(3))[1])


def test_requests_belong_to_one_selector(routing):
    selector = SubsetSelector().set_fit_request(groups=True, sample_weight="weights")
    copy = clone(selector)
    copy.set_fit_request(groups=False)
    requests = {name: asked for name, asked in selector.get_metadata_routing().fit.requests.items() if asked}
    assert requests == {"groups": True, "sample_weight": "weights"}
    assert copy.get_metadata_routing().fit.requests["groups"] is False
    assert copy.get_metadata_routing().fit.requests["sample_weight"] == "weights"
    assert selector.get_metadata_routing().predict.requests["groups"] is None
    with pytest.raises(OptionError, match="unknown argument of fit 'group'; choose one of: groups"):
        selector.set_fit_request(group=True)


WRONG = {
    "no groups": (lambda s, f, x, y, g: s.fit(x, y), OptionError, "one y for each row needs the set of each row too"),
    "frame without groups": (lambda s, f, x, y, g: s.fit(f, y), OptionError, "one y for each row needs the set"),
    "no y": (lambda s, f, x, y, g: s.fit(x, groups=g), OptionError, "pass y too: whether each row was chosen"),
    "frame without y": (lambda s, f, x, y, g: s.fit(f, groups=g), OptionError, "pass y, whether each row was chosen"),
    "both": (lambda s, f, x, y, g: s.fit(f, y, groups=g, set_id="session"), OptionError, "both tell the set of a row"),
    "two y": (lambda s, f, x, y, g: s.fit(f, y, groups=g, chosen="brand"), OptionError, "both tell what was chosen"),
    "few groups": (
        lambda s, f, x, y, g: s.fit(x, y, groups=g[1:]),
        ShapeError,
        r"groups has shape \(199,\); .* 200 rows",
    ),
    "few y": (lambda s, f, x, y, g: s.fit(f, y[1:], groups=g), ShapeError, r"y has shape \(199,\)"),
    "other y": (lambda s, f, x, y, g: s.fit(x, y + 1, groups=g), DataError, "y must hold one boolean for each row"),
    "text": (lambda s, f, x, y, g: s.fit(x, np.where(y, "a", "b"), groups=g), DataError, "y must hold one boolean"),
    "flat": (lambda s, f, x, y, g: s.fit(x[:, 0], y, groups=g), ShapeError, r"not with shape \(200,\)"),
    "ragged": (lambda s, f, x, y, g: s.fit([x[:3], x[:2]], y, groups=g), DataError, "groups go with one array"),
    "sets": (lambda s, f, x, y, g: s.fit(Sets.from_list([x]), y, groups=g), OptionError, "sets have theirs already"),
    "no group": (lambda s, f, x, y, g: s.fit(x, y, groups=np.where(y, np.nan, 1)), DataError, "group of every row"),
    "None": (lambda s, f, x, y, g: s.fit(f, y, groups=[None, *g[1:]]), DataError, "group of every row"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_raise(rows, name):
    call, error, message = WRONG[name]
    x, y, groups = rows
    with pytest.raises(error, match=message):
        call(SubsetSelector(**TINY), make_frame(rows), x, y, groups)


def test_zeros_and_ones_are_booleans():
    assert as_chosen([0, 1, 1], 3).tolist() == [False, True, True]
    with pytest.raises(DataError, match="one boolean for each row"):
        as_chosen(pd.Series([True, None, False]), 3)
