"""The generated tables of a shop: what they promise, and that the hidden intent can be inferred from the offers."""

import numpy as np
import pytest

from benchmarks.tables.catalogue import COLOURS
from benchmarks.tables.features import in_context, one_hot, parsed, raw, with_set_means
from benchmarks.tables.methods import fit_method, fit_oracle, score_method, true_sizes
from benchmarks.tables.rivals import LightGBM
from benchmarks.tables.shop import VARIANTS, Shop, draw_shop, ranks, session_sizes, split_sessions

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def shops() -> dict[str, Shop]:
    return {name: draw_shop(name, seed=0) for name in VARIANTS}


@pytest.mark.parametrize("name", VARIANTS)
def test_sessions_are_adjacent_and_of_the_promised_sizes(name: str, shops: dict[str, Shop]) -> None:
    for frame, count in ((shops[name].train, 240), (shops[name].test, 200)):
        starts = frame.session[frame.session != frame.session.shift()]
        assert starts.is_unique and len(starts) == count
        sizes = session_sizes(frame)
        assert sizes.min() >= 10 and sizes.max() <= 60
        assert set(true_sizes(frame)) == {1, 2, 3, 4, 5, 6}
        assert not frame.duplicated(["session", "product_id"]).any()


@pytest.mark.parametrize("name", VARIANTS)
def test_columns_are_of_every_kind(name: str, shops: dict[str, Shop]) -> None:
    frame = shops[name].train
    assert (frame.groupby("session")[["device", "visited", "budget"]].nunique() == 1).all(axis=None)
    products = frame.drop_duplicates("product_id")
    assert 0.1 < products.stars.isna().mean() < 0.2
    assert frame.drop(columns="stars").notna().all(axis=None)
    assert (products.brand.nunique(), products.category.nunique()) == (20, 8)
    assert frame.offer.is_unique
    # A product is the same wherever it is offered.
    facts = ["title", "brand", "category", "price", "sale", "listed"]
    assert (frame.groupby("product_id")[facts].nunique() == 1).all(axis=None)
    assert parsed(frame).colour.isin(COLOURS).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_seed_makes_the_table(name: str, shops: dict[str, Shop]) -> None:
    again, other = draw_shop(name, seed=0), draw_shop(name, seed=1)
    pandas.testing.assert_frame_equal(again.train, shops[name].train)
    pandas.testing.assert_frame_equal(again.test, shops[name].test)
    assert not other.train.head(100).equals(again.train.head(100))


@pytest.mark.parametrize("name", VARIANTS)
def test_who_knows_the_worth_chooses_well(name: str, shops: dict[str, Shop]) -> None:
    shop = shops[name]
    oracle, chance = fit_oracle(shop), fit_method("chance", shop, seed=0, options={}, device=None)
    for sizes in (true_sizes(shop.test), None):
        assert score_method(oracle, shop.test, sizes) > 55
        assert score_method(chance, shop.test, sizes) < 15


@pytest.mark.parametrize("name", VARIANTS)
def test_offers_show_the_intent(name: str, shops: dict[str, Shop]) -> None:
    """What fits is offered more often than in other sessions, so that the share of a value tells."""
    shop = shops[name]
    items = in_context(shop.test)
    fits = shop.fits[1]
    kinds = {"intent": ["category", "colour", "brand"], "bargain": ["category"], "taste": ["colour"]}[name]
    largest = items[[f"{kind}_of_largest" for kind in kinds]].max(axis=1)
    assert largest[fits].mean() > 0.9
    assert shop.test.bought[fits].mean() > 3 * shop.test.bought[~fits].mean()


@pytest.mark.parametrize("name", VARIANTS)
def test_context_lifts_trees(name: str) -> None:
    pytest.importorskip("lightgbm")
    shop = draw_shop(name, seed=2, n_train=120, n_test=100)
    train, validation = split_sessions(shop.train, 0.2, 0)
    frame = shop.test
    scores = []
    for columns in (raw, in_context):
        logits = LightGBM(columns)(train, validation, 0)(frame)
        place = pandas.Series(logits).groupby(frame.session.to_numpy()).rank(ascending=False, method="first").to_numpy()
        sizes = np.repeat(true_sizes(frame), session_sizes(frame))
        scores.append(frame.bought[place <= sizes].mean())
    # The share of chosen items that were bought.
    assert scores[1] > scores[0] + 0.1


def test_ranks_and_shares_equal_those_of_a_loop() -> None:
    frame = draw_shop("bargain", seed=3, n_train=4, n_test=2).train
    items = in_context(frame)
    within = ranks(frame, "stars", ["session", "category"]).to_numpy()
    for row in range(len(frame)):
        others = [
            other
            for other in range(len(frame))
            if frame.session[other] == frame.session[row] and frame.category[other] == frame.category[row]
        ]
        size = int((frame.session == frame.session[row]).sum())
        assert items.category_share[row] == pytest.approx(len(others) / size)
        value, known = frame.stars[row], frame.stars[others].dropna()
        if np.isnan(value):
            assert np.isnan(within[row])
        elif len(known) == 1:
            assert within[row] == 0.5
        else:
            below = (known < value).sum() + ((known == value).sum() - 1) / 2
            assert within[row] == pytest.approx(below / (len(known) - 1))


def test_set_means_are_those_of_each_session() -> None:
    frame = draw_shop("intent", seed=0, n_train=5, n_test=2).train
    columns = one_hot(frame)
    found = with_set_means(columns, frame.session.to_numpy(str))
    for name in frame.session.unique():
        rows = (frame.session == name).to_numpy()
        mean = columns[rows].mean(0)
        np.testing.assert_allclose(
            found[rows], np.c_[columns[rows], np.tile(mean, (rows.sum(), 1)), columns[rows] * mean]
        )


def test_sessions_are_split_as_wholes() -> None:
    frame = draw_shop("taste", seed=0, n_train=20, n_test=2).train
    train, validation = split_sessions(frame, 0.2, 5)
    assert (train.session.nunique(), validation.session.nunique()) == (16, 4)
    assert not set(train.session) & set(validation.session)
    assert len(train) + len(validation) == len(frame)
    assert validation.equals(split_sessions(frame, 0.2, 5)[1])
    assert not validation.equals(split_sessions(frame, 0.2, 6)[1])
