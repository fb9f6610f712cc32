"""Importance of columns: what decides counts, noise does not."""

import numpy as np
import pytest

from setgrad.errors import DataError, OptionError
from setgrad.selector.metrics import mean_jaccard
from tests.explain.conftest import make_choices


def test_deciding_columns_are_important_and_noise_is_not(fitted, shop):
    found = fitted.importance(shop, repeats=3)
    drops, errors = (dict(zip(found.columns, part, strict=True)) for part in (found.drops, found.errors))
    assert set(found.columns[:2]) == {"price", "brand"} and found.columns[0] == max(drops, key=drops.__getitem__)
    assert min(drops["price"], drops["brand"]) > 0.15
    for name in ("noise", "member"):
        assert abs(drops[name]) < 4 * errors[name] + 0.02
    assert found.score == pytest.approx(fitted.score(shop), abs=1e-12)
    # Facts of a visit are exchanged among visits.
    assert dict(zip(found.columns, found.exchanged, strict=True))["member"] == "sets"


def test_an_exchange_moves_values_within_the_sets(plain):
    """With one column, every exchange is a reordering of the sets, and the score is known."""
    sets, chosen = make_choices()
    found = plain.importance(sets, chosen, columns=["feature 1"], repeats=2)
    assert found.columns == ("feature 1",) and found.exchanged == ("items",)
    assert found.score == pytest.approx(mean_jaccard(plain.predict(sets), chosen), abs=1e-12)


def test_without_known_choices_picks_are_compared(fitted, shop):
    found = fitted.importance(shop.drop(columns="bought"), repeats=2)
    assert found.score == 1 and (found.drops >= 0).all()
    assert set(found.columns[:2]) == {"price", "brand"}


def test_the_seed_decides_the_exchanges(fitted, shop):
    one, same, other = (fitted.importance(shop, repeats=1, random_state=seed).to_dict() for seed in (0, 0, 1))
    assert one == same != other


def test_a_column_of_one_value_has_no_importance(fitted, shop):
    found = fitted.importance(shop.assign(noise=0.5), columns=["noise"], repeats=1)
    assert found.drops.tolist() == [0.0] and found.errors.tolist() == [0.0]


def test_the_table_has_clean_names(fitted, shop):
    text = str(fitted.importance(shop, columns=["noise"], repeats=1))
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["column", "------", "noise"]


def test_wrong_arguments_are_errors(fitted, shop, plain):
    with pytest.raises(OptionError, match="repeats must be a whole number of at least 1, not 0"):
        fitted.importance(shop, repeats=0)
    with pytest.raises(DataError, match="columns names 'size', which the model does not read"):
        fitted.importance(shop, columns=["size"])
    assert np.isfinite(fitted.importance(shop[:8], repeats=1).errors).all()
    with pytest.raises(DataError, match="there are no sets"):
        plain.importance(make_choices()[0][:0])
